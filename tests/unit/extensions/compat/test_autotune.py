"""`@tuner.autotune` over something that is called as Triton's kernels are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tuner
from tuner.model.errors import InputError, KernelError


@dataclass
class ScriptedStopwatch:
    """Tell times that a test has written down, and count the calls."""

    read_us: Callable[[], float]
    hardware: Mapping[str, str] = field(default_factory=lambda: {"gpu": "none"})
    calls: int = field(default=0, init=False)

    def identify(self) -> Mapping[str, str]:
        return self.hardware

    def time_us(self, call: Callable[[], Any]) -> float:
        self.calls += 1
        call()
        return self.read_us()


class FakeKernel:
    """Called as `kernel[grid](*arguments, **meta)`: it doubles, and notes how it was called."""

    arg_names = ("x", "y", "n")
    src = "def double(x, y, n, block): ..."

    def __init__(self, works: Callable[[int], float] = lambda block: 2.0) -> None:
        self.works, self.blocks = works, list[int]()
        self.grids: list[Any] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(x: Any, y: Any, n: int, block: int, num_warps: int = 4) -> None:
            self.grids.append(grid({"block": block}) if callable(grid) else grid)
            self.blocks.append(block)
            y[:n] += self.works(block) * x[:n]

        return launch


def config(block: int, **more: Any) -> SimpleNamespace:
    """Make what `triton.Config` makes."""
    return SimpleNamespace(kwargs={"block": block}, num_warps=4, num_stages=None, **more)


CONFIGS = [config(64), config(128), config(256)]
X = np.arange(1, 33, dtype=np.float32)


def tuned(
    folder: Path, kernel: FakeKernel, us: dict[int, float], configs: Any = CONFIGS, **more: Any
) -> tuple[Any, ScriptedStopwatch]:
    watch = ScriptedStopwatch(lambda: us[kernel.blocks[-1]])
    decorate = tuner.autotune(configs=configs, key=["n"], folder=folder, stopwatch=watch, **more)
    return decorate(kernel), watch


def call(kernel: Any, n: int = 32) -> Any:
    y = np.ones(32, np.float32)
    kernel[lambda meta: (n // meta["block"] + 1,)](X, y, n)
    return y


def test_the_fastest_config_is_launched_and_outputs_are_as_of_one_call(tmp_path: Path) -> None:
    kernel = FakeKernel()
    fast, watch = tuned(tmp_path, kernel, {64: 3.0, 128: 1.0, 256: 2.0})
    np.testing.assert_array_equal(call(fast), 1 + 2 * X)
    assert fast.best_config is CONFIGS[1]
    assert kernel.blocks[-1] == 128
    assert kernel.grids[-1] == (1,)
    measured = watch.calls
    call(fast)
    assert watch.calls == measured


def test_every_call_begins_with_what_the_caller_gave(tmp_path: Path) -> None:
    kernel, seen = FakeKernel(), []
    watch = ScriptedStopwatch(lambda: 1.0)
    held = np.broadcast_to(np.float32(3), 32)  # cannot be written
    fast = tuner.autotune(CONFIGS, ["n"], folder=tmp_path, stopwatch=watch)(kernel)

    class Noting(np.ndarray):
        def __setitem__(self, place: Any, values: Any) -> None:
            if place is not Ellipsis:
                seen.append(self.copy())
            super().__setitem__(place, values)

    y = np.ones(32, np.float32).view(Noting)
    fast[(1,)](held, y, 32)
    assert len(seen) == watch.calls + len(CONFIGS) + 1  # one more of each is checked
    np.testing.assert_array_equal(y, np.full(32, 7))
    assert {float(one[0]) for one in seen} == {7.0}


def test_what_lies_around_and_inside_is_called_as_by_triton(tmp_path: Path) -> None:
    class Heuristics:
        fn = FakeKernel()

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return self.fn[grid]

    watch = ScriptedStopwatch(lambda: 1.0)
    decorate = tuner.autotune(CONFIGS, (), folder=tmp_path, stopwatch=watch)
    Heuristics.fn.fn = lambda x, y, n, block: None  # type: ignore[attr-defined]
    fast, y = decorate(Heuristics()), np.zeros(32, np.float32)
    assert fast.arg_names == ("x", "y", "n", "block")
    fast.run(X, y, 32, grid=(1,), warmup=False)
    np.testing.assert_array_equal(y, 2 * X)
    with pytest.raises(InputError, match="launches nothing"):
        fast.run(X, y, 32, grid=(1,), warmup=True)


def test_a_second_start_measures_nothing(tmp_path: Path) -> None:
    us = {64: 3.0, 128: 1.0, 256: 2.0}
    call(tuned(tmp_path, FakeKernel(), us)[0])
    kernel = FakeKernel()
    again, watch = tuned(tmp_path, kernel, us)
    call(again)
    assert (watch.calls, kernel.blocks) == (0, [128])


def test_another_key_source_gpu_or_list_of_configs_is_measured_anew(tmp_path: Path) -> None:
    us = {64: 3.0, 128: 1.0, 256: 2.0}
    fast, watch = tuned(tmp_path, FakeKernel(), us)
    call(fast)
    before = watch.calls
    call(fast, 16)
    assert watch.calls == 2 * before
    other = FakeKernel()
    other.src = "def double(x, y, n, block): pass"
    for kernel, hardware, configs in [
        (other, {"gpu": "none"}, CONFIGS),
        (FakeKernel(), {"gpu": "another"}, CONFIGS),
        (FakeKernel(), {"gpu": "none"}, CONFIGS[:2]),
    ]:
        fast, watch = tuned(tmp_path, kernel, us, configs)
        watch.hardware = hardware
        call(fast)
        assert watch.calls > 0


def test_a_config_that_leaves_other_outputs_never_wins(tmp_path: Path) -> None:
    kernel = FakeKernel(lambda block: 2.0 if block != 128 else 2.1)
    fast, _ = tuned(tmp_path, kernel, {64: 3.0, 128: 1.0, 256: 2.0})
    np.testing.assert_array_equal(call(fast), 1 + 2 * X)
    assert fast.best_config is CONFIGS[2]


def test_a_config_that_only_seems_faster_does_not_take_the_firsts_place(tmp_path: Path) -> None:
    kernel, turns = FakeKernel(), iter(range(10_000))
    # In the search the others are faster; beside the first one they win every other round.
    noise = ScriptedStopwatch(
        lambda: 2.0 if kernel.blocks[-1] == 64 else 1.9 + 0.2 * (next(turns) % 2)
    )
    fast = tuner.autotune(CONFIGS[:2], ["n"], folder=tmp_path, stopwatch=noise)(kernel)
    call(fast)
    assert fast.best_config is CONFIGS[0]


def test_configs_that_do_not_run_are_passed_over(tmp_path: Path) -> None:
    def works(block: int) -> float:
        if block < 256:
            raise RuntimeError("out of resource")
        return 2.0

    fast, _ = tuned(tmp_path, FakeKernel(works), {256: 1.0})
    call(fast)
    assert fast.best_config is CONFIGS[2]
    with pytest.raises(KernelError, match="no config runs"):
        call(tuned(tmp_path, FakeKernel(works), {}, CONFIGS[:2])[0])


def test_many_configs_are_searched_and_few_of_them_tried(tmp_path: Path) -> None:
    configs = [{"block": block, "num_warps": warps} for block in range(1, 61) for warps in (1, 2)]
    kernel = FakeKernel()
    fast, _ = tuned(tmp_path, kernel, {block: 100.0 - block for block in range(61)}, configs)
    call(fast)
    assert len(set(kernel.blocks)) < 60
    assert fast.best_config["block"] > 50


def test_hooks_and_pruning_are_called_as_triton_does(tmp_path: Path) -> None:
    seen = []
    hooked = [config(64, pre_hook=lambda named: seen.append(named["block"])), *CONFIGS[1:]]
    pruning = {
        "early_config_prune": lambda configs, named, **meta: configs[:2],
        "perf_model": lambda block, **named: block,
        "top_k": 1,
    }
    kernel = FakeKernel()
    fast, _ = tuned(tmp_path, kernel, {64: 1.0}, hooked, prune_configs_by=pruning, warmup=5)
    call(fast)
    assert set(kernel.blocks) == {64} == set(seen)
    with pytest.raises(InputError, match="do_bench"):
        tuner.autotune(CONFIGS, ["n"], do_bench=print)
    with pytest.raises(InputError, match="names 'm'"):
        tuner.autotune(CONFIGS, ["m"], folder=tmp_path, stopwatch=ScriptedStopwatch(float))(kernel)


def _measure(folder: Path, queue: Any) -> None:
    fast, watch = tuned(folder, FakeKernel(), {64: 3.0, 128: 1.0, 256: 2.0})
    call(fast)
    queue.put(watch.calls)


def test_processes_share_one_measurement(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_measure, args=(tmp_path, queue)) for _ in range(4)]
    for process in processes:
        process.start()
    calls = sorted(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert calls[:3] == [0, 0, 0]
    assert calls[3] > 0
    # What is no file of ours is measured anew and written over.
    (pinned,) = tmp_path.glob("*.json")
    pinned.write_text("{")
    fast, watch = tuned(tmp_path, FakeKernel(), {64: 3.0, 128: 1.0, 256: 2.0})
    call(fast)
    assert watch.calls > 0
    assert pinned.read_text().startswith('{\n "config"')
