"""Tune a kernel given as text, on arrays and a dict: no file is written that stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from tuner.extensions.compat.bench import ArrayBench, BenchSettings, device_named, language_named
from tuner.extensions.compat.launching import SourceKernel, list_configs
from tuner.extensions.compat.tuning import (
    FINALISTS,
    ROUNDS,
    Budget,
    TriedConfig,
    Tuning,
    choose_fastest,
    say_failures,
)
from tuner.model.config import Config
from tuner.model.errors import InputError, KernelError
from tuner.model.settings import AUTO, CallSettings, RunSettings, read
from tuner.search.factory import DEFAULT_BUDGET
from tuner.source import parse_source

SETTINGS = ("device", "searcher", "trials", "time_s", "seed")
CALL_SETTINGS = ("kernel", "include")


@dataclass(frozen=True, slots=True)
class TunedArrays:
    """The fastest config of a kernel that was given as text, and all that was tried.

    `time_us` and `default_us`, the first config's, are medians of rounds in which the best configs
    met the first one in turns: what is not faster in most of them does not take its place. `trials`
    has a dict for each config, with its `status`, `reason` and `time_us` in the search, None where
    there is no time.
    """

    config: Mapping[str, Any]
    time_us: float
    default_us: float
    source: str
    trials: tuple[Mapping[str, Any], ...]
    device: str

    @property
    def speedup(self) -> float:
        return self.default_us / self.time_us


def tune_arrays(
    source: str,
    arguments: Sequence[Any] | Mapping[str, Any],
    parameters: Mapping[str, Sequence[Any]],
    *,
    grid: Any,
    block: Any = None,
    constraints: Any = None,
    shared_memory: Any = 0,
    answer: Sequence[Any] | Mapping[str, Any] | None = None,
    atol: float = 1e-6,
    verify: Callable[..., Any] | Literal[False] | None = None,
    lang: str | None = None,
    options: Sequence[str] = (),
    **settings: Any,
) -> TunedArrays:
    """Find the fastest config of `source`, in which each of the `parameters` is a macro.

    `arguments` are NumPy arrays and scalars in the kernel's order; in a dict the names are for
    the `answer`. `grid` and `block` are one to three numbers, expressions over the parameters or
    functions of a config; `block` is the parameter of this name unless it is given. The first
    config is the default: each other one has to leave what it leaves, or the `answer`. Of the
    settings of `tune` it takes those in `SETTINGS` and `CALL_SETTINGS`.

    Raises `KernelError` where the first config does not run, or is wrong.
    """
    if unknown := sorted(settings.keys() - {*SETTINGS, *CALL_SETTINGS}):
        raise InputError(
            f"{unknown[0]}= is not for source text and arrays",
            remedy=f"settings here: {', '.join((*SETTINGS, *CALL_SETTINGS))}",
        )
    asked = read(RunSettings, {name: settings[name] for name in SETTINGS if name in settings})
    calling = {name: settings[name] for name in CALL_SETTINGS if name in settings}
    call = read(CallSettings, calling)
    headers = [call.include] if isinstance(call.include, str | Path) else call.include
    language = language_named(lang, source)
    names = list(arguments) if isinstance(arguments, Mapping) else []
    values = list(arguments.values()) if isinstance(arguments, Mapping) else list(arguments)
    if isinstance(answer, Mapping):
        answer = _order_answer(answer, names)
    if block is None and "block" not in parameters:
        raise InputError(
            "nothing says how many threads a block has",
            remedy='add a parameter "block", or block=("block_x", "block_y")',
        )
    sizes = ("block",) if block is None else block
    launched = SourceKernel(
        name=call.kernel or _only_kernel(source),
        source=source,
        problem_size=grid,
        divisors=([], [], []),
        block=sizes,
        define={name: itemgetter(name) for name in parameters},
        shared_bytes=shared_memory,
    )
    space, pool = list_configs(parameters, constraints)
    default = Config.of({parameter.name: parameter.values[0] for parameter in space.parameters})
    default = default if default in pool else pool[0]
    bench_settings = BenchSettings(
        launched.name,
        language,
        device_named(0 if asked.device == AUTO else asked.device, language),
        tuple(options),
        tuple(Path(folder).resolve() for folder in headers),
    )
    with ArrayBench(bench_settings, launched.instance(default).source, values) as bench:
        tuning = Tuning(bench, space, pool, launched.instance, answer, atol, verify)
        trials = asked.trials or min(DEFAULT_BUDGET, pool.estimated_size)
        budget = Budget(trials, asked.time_s)
        tried = []
        for config in tuning.run(asked.searcher, budget, asked.seed, default):
            tried.append(config)
            if tried[0].time_us is None:
                first = tried[0].measured
                raise KernelError(
                    f"the first config, {tried[0].config}, fails ({first.status}): {first.reason}",
                    remedy="it is what the others are held against: mend it, or list values that "
                    "work first",
                )
        say_failures(tried)
        right = sorted(filter(_time_of, tried[1:]), key=_time_of)
        finalists = [tried[0], *right[:FINALISTS]]
        place, medians = 0, [_time_of(tried[0])]
        if right:
            instances = [launched.instance(finalist.config) for finalist in finalists]
            place, medians = choose_fastest(bench.compare(instances, ROUNDS))
        best = launched.instance(finalists[place].config)
        rows = tuple(
            {
                **trial.config,
                "status": str(trial.measured.status),
                "reason": trial.measured.reason,
                "time_us": trial.time_us,
            }
            for trial in tried
        )
        found = dict(best.config), medians[place], medians[0], best.source
        return TunedArrays(*found, rows, bench.info.name)


def _order_answer(answer: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    if others := [name for name in answer if name not in names]:
        raise InputError(
            f"`answer` names {others[0]!r}", remedy=f"arguments: {', '.join(names) or 'none'}"
        )
    return [answer.get(name) for name in names]


def _time_of(tried: TriedConfig) -> float:
    return tried.time_us or 0.0


def _only_kernel(source: str) -> str:
    names = [kernel.name for kernel in parse_source(source, Path("source")).kernels]
    if len(names) == 1:
        return names[0]
    raise InputError(
        f"the source has {len(names)} kernels",
        remedy=f'say which one: kernel="{names[0] if names else "NAME"}"',
    )
