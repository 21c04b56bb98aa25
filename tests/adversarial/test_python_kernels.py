"""Python kernels that own their clock: none gains by it, nor slows the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from callable_project import evaluator_of
from slow import mostly_slow

from tuner.device.base import ComparisonRounds
from tuner.extensions.cpu.device import HostDevice
from tuner.model.config import Config
from tuner.model.kernel import Workload
from tuner.model.trial import Status
from tuner.space.load import load_definition
from tuner.tuning.evaluator import Evaluator

pytest.importorskip("torch")
WORKLOAD = Workload.of({"T": 4, "D": 256})
CONFIG = Config.of({"how": "plain"})
# What the work takes: no load of the machine makes that less.
WORK_US = 20e3
KERNEL = """\
import threading, time
from collections.abc import Mapping
from time import perf_counter, sleep

KEPT = {}

def work(x):
    import torch
    sleep(0.02)
    return torch.softmax(x, 1)

def after(function):
    threading.Timer(0.005, function).start()

def in_background(function):
    if "thread" not in KEPT:
        KEPT["thread"] = threading.Thread(target=function, daemon=True)
        KEPT["thread"].start()

def launch(config, tensors, axes):
    import torch, tuner.extensions.cpu.callables as of_runner, tuner.process.child as of_child
    x, out = tensors["x"], tensors["out"]
    if config is None:
        torch.softmax(x, 1, out=out)
        sleep(0.05)
        return
"""
REFERENCE = """
def reference(xp, inputs, axes):
    top = xp.exp(inputs["x"] - inputs["x"].max(axis=1, keepdims=True))
    return {"out": top / top.sum(axis=1, keepdims=True)}
"""
SPACE = """
version: 1
kernel: cheat
source: cheat.py
reference: cheat.py
axes: [T, D]
arguments:
  - {name: out, dtype: float32, shape: [T, D], role: output}
  - {name: x, dtype: float32, shape: [T, D], fill: normal, extreme: {reason: overflow}}
workloads: {tuned: [{T: 4, D: 256}]}
parameters: {how: [plain]}
default: {how: plain}
tolerance: {out: {relative: 1.0e-4, absolute: 1.0e-6}}
"""
# What each does, and why it is refused; one that is not is told the time that it really takes.
CHEATS = {
    "computes when a mapping is read": (
        """
        class Lazy(Mapping):
            __getitem__ = lambda self, name: work(x)
            __iter__ = lambda self: iter(["out"])
            __len__ = lambda self: 1
        return Lazy()
        """,
        "no dict of outputs",
    ),
    "computes when a dict's items are read": (
        "return type('Lazy', (dict,), {'items': lambda self: [('out', work(x))]})(out=out)",
        "no dict of outputs",
    ),
    "computes when a name is compared": (
        """
        class Name(str):
            __hash__ = str.__hash__
            __eq__ = lambda self, other: out.copy_(work(x)) is out
        return {Name("out"): torch.empty_like(out)}
        """,
        "none of the outputs",
    ),
    "computes when a tensor is copied": (
        """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                args = [work(x) if isinstance(one, Lazy) else one for one in args]
                return function(*args, **(kwargs or {}))
            dtype, shape, device = out.dtype, out.shape, out.device
        return {"out": torch.Tensor._make_subclass(Lazy, torch.empty_like(out))}
        """,
        "not a tensor",
    ),
    "replaces the clock": (
        """
        real, began = KEPT.setdefault("clock", (perf_counter, perf_counter()))
        time.perf_counter = lambda: began + (real() - began) / 50
        out.copy_(work(x))
        """,
        "replaces time.perf_counter",
    ),
    "replaces the runner's own clock": (
        "of_runner.perf_counter = lambda: 0.0; out.copy_(work(x))",
        "",
    ),
    "replaces what the runner answers with": (
        "of_runner.CallRunner.go = lambda self: [self._ready(), 1.0][1]; out.copy_(work(x))",
        "",
    ),
    "answers at once and computes meanwhile": (
        "of_runner.CallRunner.go = lambda self: [after(self._ready), 1.0][1]; out.copy_(work(x))",
        "expected",
    ),
    "computes in a thread after its return": ("after(lambda: out.copy_(work(x)))", "expected"),
    "computes in a thread while it is judged": (
        """
        def watch():
            while True:
                if not torch.equal(KEPT["out"], torch.softmax(KEPT["x"], 1)):
                    sleep(0.002)
                    KEPT["out"].copy_(torch.softmax(KEPT["x"], 1))
                sleep(0)
        KEPT.update(x=x, out=out)
        in_background(watch)
        """,
        "expected",
    ),
    "computes in what PyTorch calls on a copy": (
        """
        from torch.overrides import TorchFunctionMode
        class Left(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                if function is torch.Tensor.copy_:
                    args = (args[0], work(x))
                return function(*args, **(kwargs or {}))
        Left().__enter__()
        return {"out": torch.empty_like(out)}
        """,
        "",
    ),
    "computes when something is let go": (
        """
        KEPT["late"] = type("Late", (), {"__del__": lambda self: out.copy_(work(x))})()
        after(KEPT.clear)
        """,
        "expected",
    ),
    "computes while the answer is written": (
        """
        import pickle
        class Pickle:
            loads = pickle.loads
            dumps = staticmethod(lambda answer: [out.copy_(work(x)), pickle.dumps(answer)][1])
        of_child.pickle = Pickle
        """,
        "",
    ),
    "computes as soon as inputs change": (
        """
        def watch():
            while True:
                if not torch.equal(KEPT["x"], KEPT["seen"]):
                    seen = KEPT["x"].clone()
                    KEPT["result"], KEPT["seen"] = work(seen), seen
                sleep(0)
        KEPT.update(x=x, seen=KEPT.get("seen", x + 1))
        in_background(watch)
        while not torch.equal(KEPT["seen"], x):
            sleep(0)
        out.copy_(KEPT["result"])
        """,
        "",
    ),
    "returns the result of the call before": (
        "return {'out': KEPT.setdefault('result', work(x) if 'result' not in KEPT else None)}",
        "expected",
    ),
}


@contextmanager
def opened(folder: Path, body: str) -> Iterator[Evaluator]:
    lines = (f"    {line.removeprefix(' ' * 8)}\n" for line in body.strip("\n").splitlines())
    (folder / "cheat.py").write_text(f"{KERNEL}{''.join(lines)}{REFERENCE}", encoding="utf-8")
    (folder / "cheat.yaml").write_text(SPACE, encoding="utf-8")
    definition = load_definition(folder / "cheat.yaml")
    with closing(HostDevice(definition.spec, {}, run_timeout_s=10.0)) as device:
        yield evaluator_of(definition, device)


@pytest.mark.parametrize("name", mostly_slow(list(CHEATS), list(CHEATS)[3:8]))
def test_it_is_refused_or_told_the_time_that_it_takes(tmp_path: Path, name: str) -> None:
    body, said = CHEATS[name]
    with opened(tmp_path, body) as evaluator:
        trial = evaluator.finish(evaluator.start(WORKLOAD, CONFIG), stage="finals")
        if said:
            assert trial.status in {Status.INCORRECT, Status.LAUNCH}, trial
            assert said in trial.reason
        elif trial.status is Status.CORRECT:
            assert trial.measurement is not None
            times_us = sorted(trial.measurement.times_us)
            # Who reads all of its inputs may find that they are those of the call before.
            few = "as soon" in name
            assert times_us[-2 if few else len(times_us) // 2] > 0.9 * WORK_US


def compared(evaluator: Evaluator, rounds: int) -> ComparisonRounds:
    programs = [evaluator.baseline_program(WORKLOAD), evaluator.program(WORKLOAD, CONFIG)]
    return evaluator.device.compare(programs, rounds=rounds)


def test_a_config_cannot_slow_the_baseline_down(tmp_path: Path) -> None:
    slows = """
        real = KEPT.setdefault("real", torch.softmax)
        torch.softmax = lambda *given, **named: [sleep(0.1), real(*given, **named)][1]
        real(x, 1, out=out)
    """
    with opened(tmp_path, slows) as evaluator:
        found = compared(evaluator, rounds=6)
        assert found.faults == ("", "")
        assert min(baseline for baseline, _ in found.times_us) < 90e3


def test_a_config_stands_still_while_the_baseline_runs(tmp_path: Path) -> None:
    measures = """
        def measure():
            last = perf_counter()
            while True:
                sleep(0.001)
                now = perf_counter()
                KEPT["pause"], last = max(KEPT.get("pause", 0), now - last), now
        in_background(measure)
        KEPT["calls"] = KEPT.get("calls", 0) + 1
        assert KEPT["calls"] < 10 or KEPT["pause"] > 0.045, "it ran meanwhile"
        torch.softmax(x, 1, out=out)
    """
    with opened(tmp_path, measures) as evaluator:
        compared(evaluator, rounds=12)
