"""Kernel Tuner's `tune_kernel` and `run_kernel`, on our compilers, devices, checks and searches."""

from __future__ import annotations

import hashlib
import json
import reprlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tuner.extensions.compat.bench import (
    ArrayBench,
    BenchSettings,
    device_named,
    host_array,
    language_named,
)
from tuner.extensions.compat.launching import (
    BLOCK_SIZES,
    SourceKernel,
    evaluate,
    list_configs,
    listed_restrictions,
    read_source,
)
from tuner.extensions.compat.tuning import IN_ORDER, LOG, Budget, TriedConfig, Tuning, say_failures
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import InputError, KernelError
from tuner.model.languages import OPENCL
from tuner.model.trial import Status
from tuner.process.files import atomic_write, parse_json, read_text
from tuner.search.factory import require_listed
from tuner.search.pool import Pool

Results = list[dict[str, Any]]
_FULL_SEARCH = (None, "brute_force")
# What has no meaning here, and what to do instead.
REFUSED = {
    "texmem_args": "textures are not supported: read the array through a pointer",
    "observers": "leave them out: times are measured as everywhere in tune, and "
    "`tune KERNEL --objective energy` measures energy",
    "simulation_mode": "`tune compare --recording FILE` searches a cache file without a device",
    "objectives": "give one `objective`",
    "compiler": "leave it out: the compiler is the device's",
    "platform": 'give one number for all platforms: device="opencl:1"',
}


def tune_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    tune_params: Mapping[str, Sequence[Any]],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    restrictions: Any = None,
    answer: Sequence[Any] | None = None,
    atol: float = 1e-6,
    verify: Callable[..., Any] | Literal[False] | None = None,
    verbose: bool = False,
    lang: str | None = None,
    device: int | str = 0,
    platform: int = 0,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Any = None,
    compiler: str | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    log: int | None = None,
    iterations: int = 7,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    strategy: Any = None,
    strategy_options: Mapping[str, Any] | None = None,
    cache: str | Path | None = None,
    metrics: Mapping[str, Any] | None = None,
    simulation_mode: bool = False,
    parallel: Any = None,
    observers: Any = None,
    objective: str | None = None,
    objective_higher_is_better: bool | None = None,
    objectives: Any = None,
    seed: int | None = None,
) -> tuple[Results, dict[str, Any]]:
    """Time the configs of a kernel; return those that are right, and what they were timed on.

    The arguments are Kernel Tuner's. `device` may also be a text, as after `--device`: "host" runs
    CUDA on the CPU. Without an `answer` every config has to leave what the first one leaves;
    `verify=False` compares nothing. Times are in milliseconds. Raises `InputError` for arguments
    that mean nothing here.
    """
    given = locals()
    _refuse(given, REFUSED)
    with ExitStack() as stack:
        _, pool = list_configs(tune_params, restrictions)
        kernel, bench = _open(stack, given, pool[0])
        info = bench.info
        limit = kernel.thread_limit(tune_params, info.limits.threads_per_block)
        space, pool = list_configs(tune_params, [limit, *listed_restrictions(restrictions)])
        kept = None
        if cache is not None:
            # Kernel Tuner adds this end.
            path = Path(f"{cache}" if str(cache).endswith(".json") else f"{cache}.json")
            kept = CacheFile(path, _header(given, bench, space))
            stack.callback(kept.write)
        tuning = Tuning(
            *(bench, space, pool, kernel.instance),
            *(None if answer is None else [host_array(one) for one in answer], atol, verify),
        )
        if kept is not None:
            tuning.recall = kept.find
        searcher, budget = _search(strategy, strategy_options or {}, pool)
        tried, rows = [], []
        for config in tuning.run(searcher, budget, seed or 0):
            tried.append(config)
            if config.time_us is not None:
                row = _row(config, metrics or {})
                rows.append(row)
                if kept is not None and config.known is None:
                    kept.keep(config.config, row)
        say_failures(tried)
    env: dict[str, Any] = {"device_name": info.name, **info.environment, "iterations": iterations}
    env["failures"] = [
        {**trial.config, "status": str(trial.measured.status), "reason": trial.measured.reason}
        for trial in tried
        if trial.time_us is None
    ]
    if rows:
        objective = objective or "time"
        if objective not in rows[0]:
            raise InputError(
                f"objective={objective!r} is no metric",
                remedy=f"it is one of: {', '.join(rows[0])}",
            )
        best = max if objective_higher_is_better else min
        env["best_config"] = best(rows, key=lambda row: row[objective])
        LOG.info("best config: %s", env["best_config"])
    return rows, env


def run_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Any,
    arguments: Sequence[Any],
    params: Mapping[str, Any],
    grid_div_x: Any = None,
    grid_div_y: Any = None,
    grid_div_z: Any = None,
    lang: str | None = None,
    device: int | str = 0,
    platform: int = 0,
    smem_args: Mapping[str, Any] | None = None,
    cmem_args: Mapping[str, Any] | None = None,
    texmem_args: Any = None,
    compiler: str | None = None,
    compiler_options: Sequence[str] | None = None,
    defines: Mapping[str, Any] | None = None,
    block_size_names: Sequence[str] | None = None,
    quiet: bool = False,
    log: int | None = None,
) -> list[Any]:
    """Run one config of a kernel; return its arguments as they are afterwards.

    Raises `KernelError` where it does not compile or run.
    """
    given = locals()
    _refuse(given, REFUSED)
    _, pool = list_configs({name: [value] for name, value in params.items()})
    with ExitStack() as stack:
        kernel, bench = _open(stack, given, pool[0])
        measured = bench.measure(kernel.instance(pool[0]))
    if measured.status is not Status.CORRECT or not measured.outputs:
        raise KernelError(f"{kernel_name} with {pool[0]}: {measured.status}: {measured.reason}")
    return list(measured.outputs[0])


def _refuse(given: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    for name, remedy in refused.items():
        if given.get(name):
            shown = reprlib.repr(given[name])
            raise InputError(f"{name}={shown} has no meaning here", remedy=remedy)


def _open(
    stack: ExitStack, given: Mapping[str, Any], first: Config
) -> tuple[SourceKernel, ArrayBench]:
    """Open a bench for the arguments that `tune_kernel` and `run_kernel` share."""
    source, folders = read_source(given["kernel_source"])
    text = source if isinstance(source, str) else source(dict(first))
    language = language_named(given["lang"], text)
    constants = given["cmem_args"] or {}
    if constants and language is OPENCL:
        raise InputError(
            "cmem_args are CUDA's and HIP's", remedy="pass constant memory in `arguments`"
        )
    shared = dict(given["smem_args"] or {})
    size = shared.pop("size", 0)
    _refuse(shared, dict.fromkeys(shared, "of smem_args there is `size`, in bytes"))
    names = tuple(given["block_size_names"] or ())
    kernel = SourceKernel(
        name=given["kernel_name"],
        source=source,
        problem_size=given["problem_size"],
        divisors=(given["grid_div_x"], given["grid_div_y"], given["grid_div_z"]),
        block_names=(*names, *BLOCK_SIZES[len(names) :]),
        define=given["defines"],
        shared_bytes=size,
        constants={name: host_array(values) for name, values in constants.items()},
    )
    include, options = list(folders), []
    for option in given["compiler_options"] or ():
        if option.startswith("-I"):
            include.append(Path(option[2:].strip()).resolve())
        else:
            options.append(option)
    device = device_named(given["device"], language)
    settings = BenchSettings(kernel.name, language, device, tuple(options), tuple(include))
    bench = ArrayBench(settings, kernel.instance(first).source, given["arguments"])
    return kernel, stack.enter_context(bench)


def _search(strategy: Any, options: Mapping[str, Any], pool: Pool) -> tuple[str, Budget]:
    """Choose the search: all configs in order, random ones, or ours for any other strategy."""
    name = strategy if strategy is None or isinstance(strategy, str) else ""
    name = getattr(strategy, "__name__", "").rpartition(".")[2] if name == "" else name
    if name == "":
        raise InputError(
            f"strategy={strategy!r} is a search of your own",
            remedy="give the name of one of Kernel Tuner's, for which tune's own search stands",
        )
    budget = Budget(int(options.get("max_fevals", pool.estimated_size)), options.get("time_limit"))
    if name in _FULL_SEARCH:
        if "max_fevals" not in options:
            require_listed(pool)
        return IN_ORDER, budget
    if "max_fevals" not in options:
        budget = Budget(min(100, pool.estimated_size), budget.seconds)
    return "random" if name == "random_sample" else "auto", budget


def _row(tried: TriedConfig, metrics: Mapping[str, Any]) -> dict[str, Any]:
    of = tried.measured
    assert of.measurement is not None
    row: dict[str, Any] = {**tried.config}
    if tried.known is not None:
        row = dict(tried.known)
    else:
        row["time"] = of.measurement.median_us / 1000
        row["times"] = [us / 1000 for us in of.measurement.times_us]
        row["compile_time"] = 1000 * of.compile_s
        row["verification_time"] = 0.0  # part of the benchmark's
        row["benchmark_time"] = 1000 * of.benchmark_s
        row["strategy_time"] = 1000 * tried.ask_s
        row["framework_time"] = 0.0
        row["timestamp"] = datetime.now(UTC).isoformat()
    for name, metric in metrics.items():
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
        row[name] = metric(row) if callable(metric) else evaluate(metric, numbers)
    return row


def _header(given: Mapping[str, Any], bench: ArrayBench, space: SearchSpace) -> dict[str, Any]:
    problem = [repr(given[name]) for name in ("problem_size", "compiler_options")]
    source = bench.source.encode()
    shapes = [(argument.dtype.name, list(np.shape(argument))) for argument in bench.arguments]
    parts = repr([problem, shapes]).encode()
    return {
        "device_name": bench.info.name,
        "kernel_name": given["kernel_name"],
        "tune_params_keys": [parameter.name for parameter in space.parameters],
        "problem": hashlib.sha256(source + parts).hexdigest(),
    }


# Between two writes of the whole file, in seconds.
INTERVAL_S = 2.0


@dataclass
class CacheFile:
    """Hold rows by config; `header` says what they are of, and has to be that of the file.

    Kernel Tuner's own files are read as well: of theirs nothing is known but kernel, device and
    parameters.
    """

    path: Path
    header: Mapping[str, Any]
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _written_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        try:
            text = read_text(self.path)
            # Kernel Tuner leaves an open file without its end.
            kept = parse_json(text if text.rstrip().endswith("}}") else text.rstrip(", \n") + "}}")
            rows = dict(kept["cache"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"is no cache: {error}", path=self.path) from error
        for name, wanted in self.header.items():
            if name in kept and kept[name] != wanted:
                raise InputError(
                    f"the cache is of another {name}: {kept[name]!r}, and this is {wanted!r}",
                    path=self.path,
                    remedy="name another file, or delete this one",
                )
        self._rows.update(rows)

    def find(self, config: Config) -> dict[str, Any] | None:
        """Return the row of a config that was timed."""
        row = self._rows.get(self._key(config), {})
        return row if isinstance(row.get("times"), list) else None

    def keep(self, config: Config, row: Mapping[str, Any]) -> None:
        self._rows[self._key(config)] = dict(row)
        if time.monotonic() - self._written_s > INTERVAL_S:
            self.write()

    def write(self) -> None:
        atomic_write(self.path, json.dumps({**self.header, "cache": self._rows}, default=str))
        self._written_s = time.monotonic()

    def _key(self, config: Config) -> str:
        return ",".join(map(str, config.values()))
