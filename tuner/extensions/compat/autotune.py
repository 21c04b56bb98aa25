"""`@tuner.autotune` in the place of `triton.autotune`: searched, checked, and pinned on disk."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from filelock import FileLock

from tuner.compiler.cache import user_cache_dir
from tuner.extensions.compat.bench import CALL
from tuner.extensions.compat.tuning import FINALISTS, LOG, ROUNDS, Judge, choose_fastest
from tuner.model import TUNER_VERSION
from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.errors import InputError, KernelError
from tuner.model.expressions import Value
from tuner.model.trial import INITIAL, Measurement, Status, Trial
from tuner.process.files import atomic_write, parse_json, read_text
from tuner.search.factory import default_budget, make_searcher
from tuner.search.pool import Pool

# Times of one config in the search.
SAMPLES = 3
# Of a `triton.Config`, beside its keyword arguments.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
# What is taken from `triton.autotune` and needs nothing: arrays are always put back, and how often
# a call is timed is decided here.
NEEDLESS = frozenset({"reset_to_zero", "restore_value", "warmup", "rep", "use_cuda_graph"})


def autotune(
    configs: Sequence[Any],
    key: Sequence[str] = (),
    *,
    prune_configs_by: Mapping[str, Any] | None = None,
    folder: Path | str | None = None,
    stopwatch: Stopwatch | None = None,
    **needless: object,
) -> Callable[[Any], Autotuned]:
    """Choose among the configs of a Triton kernel, for each value of the arguments in `key`.

    `configs` are `triton.Config`s or dicts of keyword arguments. The first that runs is the
    default: the others have to leave in all arrays what it leaves, and one that is not faster
    never takes its place. The winner is kept in `folder`, the user's cache by default.
    """
    if unknown := sorted(needless.keys() - NEEDLESS):
        raise InputError(
            f"{unknown[0]}= has no meaning here",
            remedy=f"leave it out; taken are configs, key, prune_configs_by, "
            f"{', '.join(sorted(NEEDLESS))}",
        )
    if not configs:
        raise InputError("no configs are given", remedy="list one or more")
    place = user_cache_dir() / "autotune" if folder is None else Path(folder)

    def decorate(kernel: Any) -> Autotuned:
        watch = GpuStopwatch() if stopwatch is None else stopwatch
        return Autotuned(kernel, list(configs), tuple(key), prune_configs_by or {}, place, watch)

    return decorate


@dataclass(frozen=True, slots=True)
class _Call:
    """One call as the caller made it: the grid, and its arguments by place and by name."""

    kernel: Any
    grid: Any
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    names: tuple[str, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        return {**dict(zip(self.names, self.positional, strict=False)), **self.named}

    @property
    def arrays(self) -> dict[str, Any]:
        given = self.arguments.items()
        return {k: v for k, v in given if hasattr(v, "copy_") or isinstance(v, np.ndarray)}

    def run(self, config: Any) -> Any:
        meta = keywords_of(config)
        if hook := getattr(config, "pre_hook", None):
            hook({**self.arguments, **meta})
        return self.kernel[self.grid](*self.positional, **{**self.named, **meta})


class Autotuned:
    """A kernel that is called as before, `kernel[grid](*arguments, **meta)`, without the configs.

    `best_config` is that of the last call.
    """

    def __init__(
        self,
        kernel: Any,
        configs: Sequence[Any],
        key: tuple[str, ...],
        pruning: Mapping[str, Any],
        folder: Path,
        stopwatch: Stopwatch,
    ) -> None:
        self.fn, self.configs, self.key = kernel, configs, key
        self.arg_names = tuple(getattr(kernel, "arg_names", ()) or _names_of(kernel))
        self.best_config: Any = None
        self._pruning, self._folder, self._stopwatch = pruning, folder, stopwatch
        self._known: dict[str, Any] = {}
        if missing := [name for name in key if name not in self.arg_names]:
            raise InputError(
                f"key= names {missing[0]!r}", remedy=f"arguments: {', '.join(self.arg_names)}"
            )

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*positional: Any, **named: Any) -> Any:
            call = _Call(self.fn, grid, positional, named, self.arg_names)
            given = call.arguments
            dtypes = {name: str(array.dtype) for name, array in call.arrays.items()}
            key = json.dumps([[repr(given.get(name)) for name in self.key], dtypes], sort_keys=True)
            if key not in self._known:
                self._known[key] = self._find_pin(call, key)
            self.best_config = self._known[key]
            return call.run(self.best_config)

        return launch

    def run(self, *positional: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
        """Launch, called as what lies around a kernel calls it (`triton.heuristics`)."""
        if warmup:
            raise InputError("warmup=True launches nothing", remedy="call the kernel once")
        return self[grid](*positional, **named)

    def _find_pin(self, call: _Call, key: str) -> Any:
        """Read the winner, or measure one; processes that ask for the same wait for one another."""
        of = {
            **self._stopwatch.identify(),
            "tune": TUNER_VERSION,
            "source": _source_of(self.fn),
            "configs": [repr(keywords_of(config)) for config in self.configs],
            "key": key,
        }
        digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()
        path = self._folder / f"{digest[:32]}.json"
        if (found := self._read(path)) is not None:
            return found
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if (found := self._read(path)) is not None:
                return found
            arrays = call.arrays
            kept = {k: a.clone() if hasattr(a, "clone") else a.copy() for k, a in arrays.items()}
            try:
                trials = _Trials(call, kept, self._stopwatch)
                chosen, times_us = self._fastest(trials, self._prune(call))
            finally:
                _restore(arrays, kept)
            content = {"config": repr(keywords_of(chosen)), **times_us, "of": of}
            atomic_write(path, json.dumps(content, indent=1))
        return chosen

    def _read(self, path: Path) -> Any:
        try:
            named = parse_json(read_text(path))["config"]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or not ours: it is measured and written anew
        return next((config for config in self.configs if repr(keywords_of(config)) == named), None)

    def _fastest(self, trials: _Trials, configs: Sequence[Any]) -> tuple[Any, dict[str, float]]:
        """Search, then let the best meet the first config in turns."""
        while configs and not trials.begin(configs[0]):
            configs = configs[1:]
        if not configs:
            raise KernelError("no config runs", remedy=f"the last one said: {trials.reason}")
        times = _search(configs, trials)
        order = sorted((k for k in times if k != 0), key=lambda k: times[k])
        finalists = [0, *order[:FINALISTS]]
        rounds = [[trials.once_us(configs[k]) for k in finalists] for _ in range(ROUNDS)]
        chosen, medians = choose_fastest(rounds)
        LOG.info(
            "%s: %s, %.2f us; the first config %.2f us",
            *(getattr(self.fn, "__name__", "kernel"), keywords_of(configs[finalists[chosen]])),
            *(medians[chosen], medians[0]),
        )
        return configs[finalists[chosen]], {"time_us": medians[chosen], "default_us": medians[0]}

    def _prune(self, call: _Call) -> Sequence[Any]:
        configs = self.configs
        if early := self._pruning.get("early_config_prune"):
            configs = list(early(configs, call.arguments, **call.named)) or configs
        model, top = self._pruning.get("perf_model"), self._pruning.get("top_k")
        if model and top:
            count = int(top * len(configs)) if isinstance(top, float) else top
            estimates = [model(**{**call.arguments, **keywords_of(config)}) for config in configs]
            ranked = sorted(range(len(configs)), key=lambda k: estimates[k])
            # The first stays: it is what the others are checked against.
            configs = [configs[k] for k in sorted({0, *ranked[: max(count, 1)]})]
        return configs


class _Trials:
    """Run configs on one call's arrays, which have their content anew each time."""

    def __init__(self, call: _Call, kept: Mapping[str, Any], stopwatch: Stopwatch) -> None:
        self._call, self._kept, self._stopwatch = call, kept, stopwatch
        self._expected: dict[str, Any] = {}
        self.reason = ""

    def begin(self, config: Any) -> bool:
        """Run the config that the others are compared with; tell whether it runs."""
        if not self._runs(config):
            return False
        arrays = self._call.arrays
        self._expected = {name: _to_host(one) for name, one in arrays.items()}
        return True

    def is_right(self, config: Any) -> bool:
        if not self._runs(config):
            return False
        found = [_to_host(array) for array in self._call.arrays.values()]
        dtypes = [_dtype_of(array) for array in self._call.arrays.values()]
        judge = Judge([*self._expected.values()], is_answer=False, dtypes=dtypes)
        self.reason = judge.fault(found)
        if self.reason:
            LOG.warning("%s leaves other outputs: %s", keywords_of(config), self.reason)
        return not self.reason

    def time_us(self, config: Any) -> float:
        return median(self.once_us(config) for _ in range(SAMPLES))

    def once_us(self, config: Any) -> float:
        _restore(self._call.arrays, self._kept)
        return self._stopwatch.time_us(lambda: self._call.run(config))

    def _runs(self, config: Any) -> bool:
        _restore(self._call.arrays, self._kept)
        try:
            self._stopwatch.time_us(lambda: self._call.run(config))
            _restore(self._call.arrays, self._kept)
            self._call.run(config)
        except Exception as error:  # noqa: BLE001 - a config's compiler or launch may raise anything
            self.reason = f"{type(error).__name__}: {error}"
            LOG.info("%s does not run: %s", keywords_of(config), self.reason)
            return False
        return True


def _search(configs: Sequence[Any], trials: _Trials) -> dict[int, float]:
    """Time all of few configs, of many those that a search asks for; the first is known right."""
    times = {0: trials.time_us(configs[0])}

    def tried_us(place: int) -> float | None:
        if place not in times and trials.is_right(configs[place]):
            times[place] = trials.time_us(configs[place])
        return times.get(place)

    plain = (bool, int, float, str)
    listed: list[dict[str, Value]] = [
        {k: v if isinstance(v, plain) else repr(v) for k, v in keywords_of(config).items()}
        for config in configs
    ]
    names = dict.fromkeys(name for config in listed for name in config)
    if any(len(config) != len(names) for config in listed):  # they span no space
        for place in range(1, len(configs)):
            tried_us(place)
        return times
    ordered = [Config.of({name: config[name] for name in names}) for config in listed]
    places = {config: place for place, config in reversed([*enumerate(ordered)])}
    parameters = tuple(Parameter(n, tuple(dict.fromkeys(c[n] for c in listed))) for n in names)
    pool = Pool.of(parameters, ordered)
    budget = default_budget("auto", len(pool))
    searcher = make_searcher("auto", pool, SearchSpace(parameters), seed=0, budget=budget)
    for _ in range(budget):
        for config in searcher.ask(1):
            us = tried_us(places[config])
            status = Status.INCORRECT if us is None else Status.CORRECT
            measurement = None if us is None else Measurement((us,), 1, 1)
            reason = trials.reason if us is None else ""
            searcher.tell(Trial(INITIAL, CALL, config, status, reason, measurement=measurement))
    return times


def keywords_of(config: Any) -> dict[str, Any]:
    """Give what a config hands to its kernel, those of `OPTIONS` that are set among them."""
    if isinstance(config, Mapping):
        return dict(config)
    options = {name: getattr(config, name, None) for name in OPTIONS}
    return {**config.kwargs, **{name: one for name, one in options.items() if one is not None}}


def _names_of(kernel: Any) -> list[str]:
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return list(inspect.signature(kernel).parameters)


def _source_of(kernel: Any) -> str:
    """Give the text that decides what a kernel does; Triton's has what it calls too."""
    while kernel is not None:
        if known := getattr(kernel, "cache_key", None) or getattr(kernel, "src", None):
            return str(known)
        last, kernel = kernel, getattr(kernel, "fn", None)
    return inspect.getsource(last)


def _restore(arrays: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Put back what has changed: an array that is expanded over its memory cannot be written."""
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            if not np.array_equal(array, kept[name]):
                array[...] = kept[name]
        elif not array.equal(kept[name]):
            array.copy_(kept[name])


def _to_host(array: Any) -> Any:
    if not hasattr(array, "detach"):
        return array.copy()
    host = array.detach().cpu()
    # NumPy has no narrower floats than these.
    narrow = _dtype_of(array).startswith(("bfloat", "float8"))
    return (host.float() if narrow else host).numpy().copy()


def _dtype_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


# Written before each call, so that no cache of a GPU holds its inputs.
FLUSHED_BYTES = 256 << 20


class Stopwatch(Protocol):
    """Time calls one by one, with caches as cold as each other."""

    def identify(self) -> Mapping[str, str]:
        """Name the hardware and the versions that times depend on."""

    def time_us(self, call: Callable[[], Any]) -> float:
        """Run a call once; return what it took."""


@dataclass
class GpuStopwatch:
    """Time calls on PyTorch's current GPU by its events."""

    _flushed: Any = field(default=None, init=False)

    def identify(self) -> Mapping[str, str]:
        torch, triton = import_module("torch"), import_module("triton")
        return {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": str(torch.version.cuda or torch.version.hip),
        }

    def time_us(self, call: Callable[[], Any]) -> float:
        torch = import_module("torch")
        if self._flushed is None:
            self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flushed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return 1000.0 * float(start.elapsed_time(end))
