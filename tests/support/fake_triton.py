"""As much of Triton and Helion as a drafted launch uses: nothing runs, launches are noted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@dataclass
class Launch:
    """One launch: the kernel's name, its grid, and what it was handed by name."""

    kernel: str
    grid: tuple[int, ...]
    handed: dict[str, Any]


@dataclass
class Kernel:
    """What `triton.jit` makes of a function."""

    function: Callable[..., None]
    launches: list[Launch]

    @property
    def arg_names(self) -> list[str]:
        return [*self.function.__code__.co_varnames[: self.function.__code__.co_argcount]]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: object, **named: object) -> None:
            self.run(*arguments, grid=grid, **named)

        return launch

    def run(self, *arguments: object, grid: Any, **named: object) -> None:
        names = self.arg_names[: len(arguments)]
        assert not {*names} & {*named}, "handed twice"
        handed = {**dict(zip(names, arguments, strict=True)), **named}
        size = grid(handed) if callable(grid) else grid
        self.launches.append(Launch(self.function.__name__, tuple(size), handed))


@dataclass
class Around(Kernel):
    """What lies around a kernel: Triton's autotuner with its first config, or heuristics."""

    function: Any
    launches: list[Launch]
    first: Mapping[str, object] = field(default_factory=dict)
    values: Mapping[str, Callable[[Mapping[str, object]], object]] = field(default_factory=dict)

    @property
    def fn(self) -> Any:
        return self.function

    @property
    def arg_names(self) -> list[str]:
        names: list[str] = self.fn.arg_names
        return names

    def run(self, *arguments: object, grid: Any, **named: object) -> None:
        known = {**dict(zip(self.arg_names, arguments, strict=False)), **named}
        assert not {*self.first} & {*named}, "the autotuner chooses it"
        more = {name: heuristic(known) for name, heuristic in self.values.items()}
        self.fn.run(*arguments, grid=grid, **named, **self.first, **more)


@dataclass
class Config:
    """`triton.Config`: the parameters and what the compiler is told."""

    kwargs: Mapping[str, object]
    num_warps: int = 4
    num_stages: int = 3
    pre_hook: object = None


def install(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Put the stand-ins where Triton is imported from; give the list of launches to come."""
    launches: list[Launch] = []
    triton, language = ModuleType("triton"), ModuleType("triton.language")

    def jit(function: Any = None, **_: object) -> Any:
        return jit if function is None else Kernel(function, launches)

    def autotune(configs: list[Config], key: object, **_: object) -> Any:
        first = {**configs[0].kwargs, "num_warps": configs[0].num_warps}
        return lambda inner: Around(inner, launches, first=first)

    def heuristics(values: Mapping[str, Any]) -> Any:
        return lambda inner: Around(inner, launches, values=values)

    target = SimpleNamespace(backend="cuda")
    active = SimpleNamespace(get_current_target=lambda: target)
    for name, value in {
        **{"jit": jit, "autotune": autotune, "heuristics": heuristics, "Config": Config},
        "cdiv": lambda a, b: -(-a // b),
        "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        "language": language,
        "runtime": SimpleNamespace(driver=SimpleNamespace(active=active)),
        "testing": SimpleNamespace(
            perf_report=lambda _: lambda function: function, Benchmark=lambda **_: None
        ),
    }.items():
        setattr(triton, name, value)
    language.constexpr = int  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    return launches


# As much of Triton 3.6's as chooses a config; whatever it asks of a GPU there is not.
AUTOTUNER = """
class Config:
    pre_hook = None

    def __init__(self, **kwargs):
        self.kwargs = kwargs

    def all_kwargs(self):
        return self.kwargs


class Autotuner:
    def __init__(self, fn, configs, prune, reset_to_zero=(), cache_results=False):
        self.fn, self.configs, self.prune = fn, configs, prune
        self.reset_to_zero, self.cache_results = reset_to_zero, cache_results
        self.cache = {}

    def pre_hook(self, named, reset_only=False):
        for name in self.reset_to_zero:
            named[name].zero_()

    def _bench(self, *given, config, **named):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    def check_disk_cache(self, key, configs, benchmark):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    def prune_configs(self, named):
        return self.prune(self.configs)

    def run(self, **named):
        key = tuple(named)
        if len(self.configs) > 1 and key not in self.cache:
            pruned = self.prune_configs(named)

            def benchmark():
                timings = {one: self._bench(config=one, **named) for one in pruned}
                self.cache[key] = min(timings, key=timings.get)
                self.pre_hook({**named, **self.cache[key].all_kwargs()}, reset_only=True)

            if self.cache_results:
                self.check_disk_cache(key, pruned, benchmark)
            else:
                benchmark()
        config = self.cache[key] if len(self.configs) > 1 else self.configs[0]
        return self.fn.run(**named, **config.all_kwargs())
"""


def write_autotuner(folder: Path) -> Path:
    """Write a package `triton` that has only its autotuner, for processes to import."""
    package = folder / "triton" / "runtime"
    package.mkdir(parents=True)
    for path in (package.parent, package):
        (path / "__init__.py").touch()
    (package / "autotuner.py").write_text(AUTOTUNER, encoding="utf-8")
    return folder
