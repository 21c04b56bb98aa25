"""From sessions of an engine's batch-invariant product to the table for its deterministic mode.

The forms are those of SGLang 0.5.17 (`batch_invariant_ops.py`) and vLLM 0.32.0
(`determinism/batch_invariant_configs.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from math import log
from pathlib import Path
from statistics import fmean
from typing import Literal

import click

from tuner.compiler.base import measured_with
from tuner.dispatch.evidence import find_wrong_variants
from tuner.dispatch.table import SessionDispatch, collect_times
from tuner.extensions.engines.configs.files import CONFIG_KEYS, TITLES, Config, Engine
from tuner.extensions.engines.configs.origins import require_one_gpu, require_triton
from tuner.extensions.engines.configs.used import TIMEOUT_S, ask
from tuner.extensions.export.folder import as_argument
from tuner.extensions.export.sources import template
from tuner.extensions.export.winners import Winners, winners_of
from tuner.model import TUNER_VERSION
from tuner.model.config import Config as Chosen
from tuner.model.errors import InputError, SessionError
from tuner.model.hardware import COMPUTE_CAPABILITIES, limits_for
from tuner.model.statistics import geometric_mean
from tuner.model.trial import INITIAL, Variant
from tuner.session.session import Session

KERNEL = "matmul_persistent"
TESTED: Mapping[Engine, str] = {"sglang": "SGLang 0.5.17", "vllm": "vLLM 0.32.0"}
# By which vLLM finds a GPU's table; it reads none on others.
FAMILIES: Mapping[int, str] = {9: "hopper", 10: "blackwell", 12: "sm120"}
# What a function of vLLM's adds to each config.
GROUP_OF_VLLM = 8
# What of a tile changes hands at most, in what Triton 3.6 was seen to compile (bf16).
MOST_OF_A_TILE = 1 << 15
GROUPS: Mapping[Engine, str] = {"sglang": "sglang.srt.plugins", "vllm": "vllm.general_plugins"}


@dataclass(frozen=True, slots=True, order=True)
class Product:
    """What an engine finds a product by: the weight's rows and columns on one GPU."""

    n: int
    k: int


@dataclass(frozen=True, slots=True)
class ProductConfigs:
    """The configs of one product by the most rows that each serves, with the same bits of rows.

    `speedup` is over what the engine does by itself, in the geometric mean over the sizes: with
    DeepGEMM where that was there, or with its own config.
    """

    rows: Mapping[int, Config]
    speedup: float
    session: Path
    deepgemm: bool = False


@dataclass(frozen=True, slots=True)
class ProductTable:
    """The products of one GPU, what they were measured with, and what a user should know."""

    engine: Engine
    gpu: str
    capability: tuple[int, int]
    triton: str
    products: Mapping[Product, ProductConfigs] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_product(session: Path) -> bool:
    """Whether a session is of an engine's invariant product."""
    with Session.open(session, read_only=True) as opened:
        return opened.manifest.kernel == KERNEL


def product_table(
    sessions: Iterable[Path], engine: Engine, triton: str, space: Path | None = None
) -> ProductTable:
    """Collect the products of sessions; a shape whose configs are slower than the engine is left.

    Raises `SessionError` for a session of another kernel, engine, GPU or Triton.
    """
    gpu, capability, notes = "", (0, 0), list[str]()
    products: dict[Product, ProductConfigs] = {}
    for folder in sessions:
        winners = winners_of(folder, None, space)
        _require_product(winners, engine, folder)
        require_one_gpu(winners, gpu, folder)
        gpu, capability = winners.device.name, winners.device.compute_capability
        with Session.open(folder, read_only=True) as session:
            require_triton(session, triton, "table is")
            deepgemm = measured_with(session.environment.get("compiler", ""), "sgl-deep-gemm")
            wrong = find_wrong_variants(session.trials(stage=None), session.checks())
        for product, rows in _group_by_product(winners.dispatch, wrong).items():
            configs = _choose(rows, one_step=engine == "vllm")
            name = f"N={product.n}, K={product.k}"
            speedup = geometric_mean([row.speedup for row in configs.values()])
            product_configs = products.get(product)
            if speedup < 1.0:
                notes.append(f"{name}: {TITLES[engine]}'s own is {1 / speedup:.2f}x as fast")
            elif product_configs is None or product_configs.speedup < speedup:
                table = {most: _engine_config(row.config) for most, row in configs.items()}
                products[product] = ProductConfigs(table, speedup, folder, bool(deepgemm))
    return ProductTable(engine, gpu, capability, triton, dict(sorted(products.items())), (*notes,))


def tell_deepgemm(table: ProductTable) -> Iterator[str]:
    """Say where some products of a table were measured over DeepGEMM, and others were not."""
    without = [f"N={p.n}, K={p.k}" for p, configs in table.products.items() if not configs.deepgemm]
    if 0 < len(without) < len(table.products):
        yield f"{', '.join(without)}: measured without DeepGEMM, unlike the others: tune them anew"


def join_tables(tables: Iterable[ProductTable]) -> ProductTable:
    """Make one table of those of several sessions on the same GPU."""
    first, *others = tables
    products = dict(first.products)
    for table in others:
        products.update(table.products)
    notes = (*first.notes, *(note for table in others for note in table.notes))
    return replace(first, products=dict(sorted(products.items())), notes=notes)


def _require_product(winners: Winners, engine: Engine, folder: Path) -> None:
    operators = winners.manifest.config.operators
    if winners.spec.name != KERNEL or operators.get("ENGINE") != engine:
        whose = f" of {operators['ENGINE']}" if "ENGINE" in operators else ""
        raise SessionError(
            f"is of {winners.spec.name}{whose}, no invariant product of {TITLES[engine]}",
            path=folder,
            remedy=f"tune kernels/sglang/{KERNEL}.py --operator ENGINE={engine}, and export tables "
            "apart from other files",
        )
    if not winners.dispatch.table.keeps_rows:
        raise SessionError(
            "has chosen no class of bits, so that rows may differ from one size to another",
            path=folder,
            remedy=f"finish it with `tune --resume {folder}`",
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """A config of one size, and how many times faster it is than the engine's own."""

    config: Chosen
    speedup: float


# The configs of a product, by the number of rows that they were measured with.
_Rows = Mapping[int, Sequence[_Row]]


def _group_by_product(
    dispatch: SessionDispatch, wrong: frozenset[Variant]
) -> Mapping[Product, _Rows]:
    """Group by product and rows what final rounds compared, the fastest first, then what else is
    known to have the bits that are kept, by the search's times."""
    products: dict[Product, dict[int, list[_Row]]] = {}
    times = collect_times(dispatch.trials, wrong)
    for entry in dispatch.table.entries:
        compared = [
            one
            for one in dispatch.evidence.get(entry.workload, ())
            if one.variant.candidate == INITIAL
        ]
        if not compared:
            continue
        rows = [_Row(one.variant.config, 1.0 / one.ratio) for one in compared]
        searched = times.get(entry.workload, {})
        if first_us := searched.get(compared[0].variant):
            others = searched.keys() - {one.variant for one in compared}
            by_time = sorted((searched[variant], str(variant), variant) for variant in others)
            rows += [_Row(v.config, rows[0].speedup * first_us / us) for us, _, v in by_time]
        axes = entry.workload.values
        products.setdefault(Product(axes["N"], axes["K"]), {})[axes["M"]] = rows
    return {product: dict(sorted(rows.items())) for product, rows in products.items()}


def _choose(rows: _Rows, *, one_step: bool) -> Mapping[int, _Row]:
    """Choose a config for each size; with `one_step` all have the BLOCK_SIZE_K that costs least.

    A size of which no config has that is left out: the next larger one's config serves it.
    """
    if not one_step:
        return {most: configs[0] for most, configs in rows.items()}
    by_step: dict[object, dict[int, _Row]] = {}
    for most, configs in rows.items():
        for row in configs:
            by_step.setdefault(row.config["BLOCK_SIZE_K"], {}).setdefault(most, row)

    def cost(step: object) -> tuple[int, float]:
        chosen = by_step[step].items()
        return -len(chosen), fmean(log(rows[most][0].speedup / row.speedup) for most, row in chosen)

    return by_step[min(by_step, key=cost)]


def _engine_config(config: Chosen) -> Config:
    return {name: int(config[name]) for name in CONFIG_KEYS}


def shared_bytes(config: Config, capability: tuple[int, int]) -> int:
    """Estimate what a config takes at most on a GPU: the pipeline, and what of a tile moves."""
    rows, columns = config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]
    # wgmma reads a stage while another is loaded.
    whole = capability[0] == 9 and rows >= 64
    stages = config["num_stages"] - (0 if whole else 1)
    pipeline = 2 * (rows + columns) * config["BLOCK_SIZE_K"] * stages
    return pipeline + min(2 * rows * columns, MOST_OF_A_TILE)


def too_large_on(config: Config) -> tuple[str, ...]:
    """Name the compute capabilities, from 8.0 on, whose blocks have less shared memory."""
    return tuple(
        f"{major}.{minor}"
        for major, minor in COMPUTE_CAPABILITIES
        if major >= 8
        and shared_bytes(config, (major, minor)) > limits_for((major, minor)).shared_bytes_per_block
    )


def table_files(table: ProductTable) -> dict[Path, str]:
    """Write a table as a package that the engine loads by itself, by its files' places.

    Raises `InputError` for a table without products, for a GPU of which vLLM reads none, and for
    configs that it can't say.
    """
    if not table.products:
        why = "; ".join(table.notes) or "no session has a winner"
        raise InputError("there is no product to write", remedy=why)
    engine, package = table.engine, f"invariant_{table.engine}"
    family = FAMILIES.get(table.capability[0], "ada" if table.capability == (8, 9) else "")
    if engine == "vllm":
        _require_sayable(table, family)
    values = {
        "package": package,
        "version": TUNER_VERSION,
        "engine": engine,
        "tested": TESTED[engine],
        "group": GROUPS[engine],
        "family": family,
        "table": table,
        "too_large_on": too_large_on,
        "deepgemm": all(product.deepgemm for product in table.products.values()),
    }
    runtime = resources.files("tuner.extensions.runtime") / "products.py"
    return {
        Path(package, "pyproject.toml"): template("products_pyproject.toml.j2").render(**values),
        Path(package, package, "__init__.py"): template("products_init.py.j2").render(**values),
        Path(package, package, "table.py"): template(f"products_{engine}.py.j2").render(**values),
        Path(package, package, "products.py"): runtime.read_text(encoding="utf-8"),
    }


def _require_sayable(table: ProductTable, family: str) -> None:
    if not family:
        major, minor = table.capability
        raise InputError(
            f"vLLM reads no table on {table.gpu}, of compute capability {major}.{minor}",
            remedy="it knows Ada, Hopper and Blackwell (0.32.0); SGLang's table is for every GPU",
        )
    for product, configs in table.products.items():
        steps = {config["BLOCK_SIZE_K"] for config in configs.rows.values()}
        groups = {config["GROUP_SIZE_M"] for config in configs.rows.values()}
        if len(steps) > 1 or groups != {GROUP_OF_VLLM}:
            raise InputError(
                f"N={product.n}, K={product.k}: vLLM's table has one BLOCK_SIZE_K for all sizes "
                f"and GROUP_SIZE_M={GROUP_OF_VLLM}, not {sorted(steps)} and {sorted(groups)}",
                remedy="tune it with --operator ENGINE=vllm, and export it anew: "
                f"{configs.session}",
            )


@dataclass(frozen=True, slots=True)
class UsedProducts:
    """Which version was asked, and in what its launches differ from a table."""

    version: str
    differences: tuple[str, ...]


def used_products(
    table: ProductTable,
    folder: Path,
    python: Sequence[str],
    *,
    mode: Literal["plain", "deterministic"] = "deterministic",
) -> UsedProducts:
    """Load a written table into the engine, and have linear layers of its shapes multiply.

    The engine's own deterministic mode decides what multiplies; a stand-in takes the launches.
    Raises `WorkerError` with what it said where it refuses the table, or gives no answer.
    """
    asked = [
        {"n": product.n, "k": product.k, "tokens": [*configs.rows, max(configs.rows) + 1]}
        for product, configs in table.products.items()
    ]
    question = {
        "engine": table.engine,
        "kind": "product",
        "products": asked,
        "gpu": table.gpu,
        "capability": list(table.capability),
        "triton": table.triton,
        "mode": mode,
        "folder": str(folder.resolve()),
        "package": folder.name,
    }
    environment = {**os.environ, "VLLM_BATCH_INVARIANT": str(int(mode == "deterministic"))}
    found = ask(question, table.engine, environment, python, TIMEOUT_S)
    differences = []
    for row in found["rows"]:
        product = table.products[Product(row["n"], row["k"])]
        if row["config"] != _serving(product.rows, row["tokens"]):
            by = row["by"] or ", ".join(f"{n}={v}" for n, v in row["config"].items())
            differences.append(
                f"N={row['n']}, K={row['k']}: {row['tokens']} tokens: {TITLES[table.engine]} "
                f"multiplies with {by}"
            )
    return UsedProducts(found["version"], tuple(differences))


def _serving(rows: Mapping[int, Config], tokens: int) -> Config:
    """Choose as the engines do: the first for as many rows or more, else the last."""
    return rows[next((most for most in rows if most >= tokens), max(rows))]


def tell_table(table: ProductTable, to: Path, python: Sequence[str] | None) -> None:
    """Print where a table was written, and what the engine makes of it where it is here."""
    for note in (*table.notes, *tell_deepgemm(table)):
        click.echo(note, err=True)
    folder = to / f"invariant_{table.engine}"
    shapes = f"{len(table.products)} shape{'s' * (len(table.products) != 1)}"
    click.echo(f"{folder} ({shapes}): pip install --no-deps {as_argument(str(folder))}")
    title = TITLES[table.engine]
    if python is None:
        click.echo(f"{title} is not installed here: not checked by its own code")
        return
    used = used_products(table, folder, python)
    for line in used.differences:
        click.echo(line, err=True)
    if not used.differences:
        click.echo(f"{title} {used.version} multiplies with them as they are written")
