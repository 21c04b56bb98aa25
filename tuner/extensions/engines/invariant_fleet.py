"""Make the table of an engine's batch-invariant products for models: a session for each shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.extensions.engines.configs.files import TITLES, Config, Engine, write_files
from tuner.extensions.engines.configs.found import find_capability
from tuner.extensions.engines.configs.needed import linear_layers
from tuner.extensions.engines.configs.products import (
    KERNEL,
    Product,
    ProductTable,
    join_tables,
    product_table,
    shared_bytes,
    table_files,
    too_large_on,
)
from tuner.extensions.engines.fleet import TuningJob, tune_each
from tuner.model.errors import TunerError
from tuner.model.hardware import limits_for
from tuner.model.progress import Progress
from tuner.model.settings import GivenSettings
from tuner.session.session import Session
from tuner.session.store import DATABASE

# The numbers of rows in vLLM's table; each config is a compilation more when an engine starts.
ROWS = (1, 4, 8, 16, 32, 64, 256, 512, 1024, 2048)
# What both engines take by themselves. SGLang has no other for a GPU with less shared memory, nor
# for fp16, where it has twice the columns.
DEFAULT: Config = {
    **{"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8},
    **{"num_warps": 8, "num_stages": 3},
}
FP16_OF_SGLANG: Config = {**DEFAULT, "BLOCK_SIZE_N": 256}


@dataclass(frozen=True, slots=True)
class WantedProduct:
    """A shape, the layers of models that have it, and its session."""

    product: Product
    layers: tuple[str, ...]
    session: Path

    @property
    def state(self) -> str:
        """Say what became of its session: `missing`, `begun` or `complete`."""
        if not (self.session / DATABASE).exists():
            return "missing"
        with Session.open(self.session, read_only=True) as opened:
            return "complete" if opened.state == "complete" else "begun"


def wanted_products(
    models: Iterable[Path], engine: Engine, sessions: Path, *, tp: int = 1
) -> tuple[WantedProduct, ...]:
    """List the shapes of models' linear layers, each once; raise as `linear_layers` does."""
    layers: dict[Product, dict[str, None]] = {}
    for model in models:
        for layer in linear_layers(model, engine, tp=tp):
            layers.setdefault(Product(layer.n, layer.k), {})[layer.name] = None
    return tuple(
        WantedProduct(product, tuple(names), sessions / _session_name(engine, product))
        for product, names in layers.items()
    )


def _session_name(engine: Engine, product: Product) -> str:
    return f"invariant-{engine}-N{product.n}-K{product.k}"


def jobs_of(
    wanted: Iterable[WantedProduct], engine: Engine, rows: Sequence[int] = ROWS
) -> tuple[TuningJob, ...]:
    """Say what to tune: for each shape all numbers of rows, whose bits are one problem."""
    return tuple(
        TuningJob(
            job.session.name,
            KERNEL,
            {"ENGINE": engine},
            tuple(f"M={count},N={job.product.n},K={job.product.k}" for count in rows),
        )
        for job in wanted
    )


@dataclass(frozen=True, slots=True)
class MadeTable:
    """What came of a fleet's jobs: the table of all sessions, and why a shape is not in it."""

    table: ProductTable | None
    failed: Mapping[str, str] = field(default_factory=dict)


def make(
    jobs: Sequence[TuningJob],
    folder: Path,
    to: Path,
    engine: Engine,
    triton: str,
    settings: GivenSettings,
    *,
    say: Callable[[str], None],
    progress: Callable[[TuningJob, Progress], None] | None = None,
) -> MadeTable:
    """Tune what is left of the jobs; after each the table of all complete sessions is written.

    Those of other models in `folder` are in it too: it is one table for a GPU and a Triton. A
    session there is gone on with; a job that fails leaves the others to be made. Raises
    `InputError` where the kernel is not in this checkout, `DeviceError` without a GPU.
    """
    failed: dict[str, str] = {}
    tables: dict[str, ProductTable] = {}
    own = {job.name for job in jobs}
    for path in sorted(folder.glob(f"invariant-{engine}-*")):
        if path.name not in own and (path / DATABASE).exists():
            with suppress(TunerError):  # it is not complete, and nobody asks for it
                tables[path.name] = product_table([path], engine, triton)

    def read(session: Path) -> ProductTable:
        return product_table([session], engine, triton)

    tuned = tune_each(jobs, folder, "rows", settings, read, failed, say=say, progress=progress)
    for job, table in tuned:
        tables[job.name] = table
        if any(one.products for one in tables.values()):
            write_files(to, table_files(join_tables(tables.values())), replace=True)
    return MadeTable(join_tables(tables.values()) if tables else None, failed)


def object_of(wanted: WantedProduct) -> dict[str, object]:
    """Make what `--json` says of a shape."""
    product = wanted.product
    return {
        "n": product.n,
        "k": product.k,
        "layers": [*wanted.layers],
        "session": str(wanted.session),
        "state": wanted.state,
    }


def lines_of(
    wanted: Sequence[WantedProduct], engine: Engine, gpu: str, where: str
) -> Iterator[str]:
    """List the shapes for a terminal, and what of the engine's own configs the GPU can't hold."""
    left = sum(product.state != "complete" for product in wanted)
    yield f"{TITLES[engine]}, {gpu}, {where}: {left} of {len(wanted)} shapes to tune"
    for product in wanted:
        layers = ", ".join(product.layers)
        yield f"{product.state:8}  N={product.product.n:<6}  K={product.product.k:<5}  {layers}"
    capability = find_capability(gpu)
    if capability is None:
        return
    limit = limits_for(capability).shared_bytes_per_block
    owns = {"bf16": DEFAULT} | ({"fp16": FP16_OF_SGLANG} if engine == "sglang" else {})
    for dtype, config in owns.items():
        if (taken := shared_bytes(config, capability)) > limit:
            yield (
                f"{TITLES[engine]}'s own config for {dtype} takes up to {taken:,} bytes of shared "
                f"memory, and a block has {limit:,} on {gpu}: its mode may die there"
            )


def marks_of(table: ProductTable) -> Iterator[str]:
    """Say which configs of a table other GPUs have too little shared memory for."""
    rows = [config for product in table.products.values() for config in product.rows.values()]
    marked = [capabilities for config in rows if (capabilities := too_large_on(config))]
    if marked:
        of = ", ".join(
            dict.fromkeys(capability for capabilities in marked for capability in capabilities)
        )
        yield f"{len(marked)} of {len(rows)} configs are too large for GPUs of {of}: marked there"
