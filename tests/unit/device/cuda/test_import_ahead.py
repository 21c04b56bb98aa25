"""What a Python kernel imports is imported in the worker while the kernel compiles elsewhere."""

from __future__ import annotations

import ast
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
from callable_project import KERNEL, callable_project, evaluator_of, read_project
from calling_worker import CallingWorker

from tests.support.fake_torch import FakeTorch
from tests.support.simulated_device import SimulatedDevice
from tuner.compiler.base import Compiler
from tuner.device.base import Program
from tuner.device.callables import late_imports
from tuner.device.cuda.device import CudaRunner
from tuner.device.cuda.peers import PeerHome, PeerLaunchers
from tuner.device.cuda.prepare import CallCompiler
from tuner.device.layout import Arena, Layout
from tuner.device.reference import PeerError
from tuner.device.verify.restarting_worker import RunFailedError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status
from tuner.tuning.evaluator import Evaluator

WORKLOAD = Workload.of({"T": 16, "D": 256})
ARENA = Arena("T=16", Layout((), (), 0), None, None)
LAUNCH = """
def launch(config, tensors, axes, TEMPERATURE="one"):
    engine()

def engine():
    try:
        import a_package_that_is_not_there
    except ImportError:
        import slow_engine
"""
# As much of PyTorch and Triton as whoever calls a module asks for.
LIBRARIES = {
    "torch.py": """
        from types import SimpleNamespace
        float32 = "float32"
        zeros = lambda shape, dtype, device: None
        cuda = SimpleNamespace(
            is_initialized=lambda: False,
            set_device=lambda ordinal: None,
            set_per_process_memory_fraction=lambda share, ordinal: None,
            ExternalStream=lambda stream, device: None,
        )
        """,
    "triton/__init__.py": "",
    "triton/runtime/__init__.py": "",
    "triton/runtime/jit.py": "class JITFunction: run = None",
    "triton/runtime/autotuner.py": "class Autotuner: run = None",
}
# Waits until another process imports it as well, unless none does.
MEETING = """
import os, time
from pathlib import Path
here = Path(__file__).parent
(here / f"{os.getpid()}.began").touch()
late_s = time.monotonic() + 60
while len(list(here.glob("*.began"))) < 2 and time.monotonic() < late_s:
    time.sleep(0.01)
if time.monotonic() >= late_s:
    (here / "alone").touch()
"""
# What a library may say that an attempt to import it has left in part.
OTHERWISE_AGAIN = """
import sys
before, sys.tried = hasattr(sys, "tried"), True
raise OSError("it is loaded already" if before else "no such driver")
"""
BLOCKING = """
import os, time
from pathlib import Path
(Path(__file__).parent / f"{os.getpid()}.began").touch()
time.sleep(600)
"""


class ForCalls(SimulatedDevice):
    """Compiles and imports as the GPU does, and answers by a function."""

    capabilities = SimulatedDevice.capabilities | {"callables"}

    def __init__(self, spec: KernelSpec, runner: CudaRunner) -> None:
        super().__init__(lambda program: 10.0)
        self._spec, self.runner = spec, runner

    def call_compiler(self, jobs: int | None) -> Compiler:
        return CallCompiler(self._spec, "cpu", jobs)

    def import_ahead(self, program: Program) -> None:
        self.runner.import_ahead(program)


class Stage:
    """A Python kernel, and the processes that compile and run it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        (callable_project(folder) / KERNEL).write_text(LAUNCH, encoding="utf-8")
        for name, text in LIBRARIES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(dedent(text), encoding="utf-8")
        definition = read_project(folder)
        source = definition.spec.source
        self.runner = CudaRunner(0, PeerHome(source, source=source))
        stack.callback(self.runner.close)
        self.runner.describe()
        device = ForCalls(definition.spec, self.runner)
        self.evaluator: Evaluator = evaluator_of(definition, device)
        self.evaluator.compiler = device.call_compiler(1)
        stack.callback(self.evaluator.compiler.close)

    def engine(self, text: str) -> None:
        (self.folder / "slow_engine.py").write_text(text, encoding="utf-8")

    def program(self) -> Program:
        return self.evaluator.baseline_program(WORKLOAD)

    def failure(self) -> tuple[Status, str]:
        with pytest.raises(RunFailedError) as caught:
            self.runner.attach(ARENA)
            self.runner.run_once(self.program(), 0)
        return caught.value.status, str(caught.value)

    @property
    def pid(self) -> int:
        return int(self.runner.describe()["pid"])


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("tuner.device.cuda.device.CudaWorker", CallingWorker)
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def test_worker_and_compiler_import_at_the_same_time(stage: Stage) -> None:
    stage.engine(MEETING)
    before = stage.pid
    stage.evaluator.import_ahead(WORKLOAD)
    program = stage.program()
    stage.runner.attach(ARENA)
    stage.runner.run_once(program, 0)
    assert not (stage.folder / "alone").exists()
    assert (stage.folder / f"{before}.began").exists()
    assert stage.pid == before


@pytest.mark.parametrize(
    "text",
    ["import a_dependency_that_is_not_there", OTHERWISE_AGAIN, "import os; os._exit(7)"],
    ids=["missing", "other", "ended"],
)
def test_an_import_that_fails_is_told_as_where_nothing_was_imported_ahead(
    stage: Stage, text: str
) -> None:
    stage.engine(text)
    expected = stage.failure()
    stage.runner.detach()
    stage.runner._drop_worker()
    before = stage.pid
    stage.evaluator.import_ahead(WORKLOAD)
    assert stage.failure() == expected
    assert stage.pid != before


def test_a_worker_that_takes_too_long_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.engine(BLOCKING)
    before = stage.pid
    stage.evaluator.import_ahead(WORKLOAD)
    monkeypatch.setattr("tuner.device.cuda.device.CALL_WARM_UP_S", 0.1)
    monkeypatch.setattr("tuner.device.cuda.device.FIRST_CALL_S", 0.1)
    stage.runner.attach(ARENA)
    assert stage.pid != before


def test_nothing_waits_or_is_left_where_a_run_ends_meanwhile(stage: Stage) -> None:
    stage.engine(BLOCKING)
    pid = stage.pid
    stage.evaluator.import_ahead(WORKLOAD)
    until_s = time.monotonic() + 60
    while not (stage.folder / f"{pid}.began").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    stage.runner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_worker_that_has_imported_leaves_by_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.engine("import atexit\natexit.register(lambda: open(__file__ + '.left', 'w').close())")
    stage.evaluator.import_ahead(WORKLOAD)
    monkeypatch.setattr("tuner.device.cuda.device.ANSWERED_S", 60.0)
    stage.runner.close()
    assert (stage.folder / "slow_engine.py.left").exists()


def test_one_that_replaces_a_killed_worker_imports_when_it_runs(stage: Stage) -> None:
    stage.engine("")
    stage.evaluator.import_ahead(WORKLOAD)
    stage.runner.attach(ARENA)
    assert stage.runner.describe()["imported"]
    stage.runner._drop_worker()
    assert not stage.runner.describe()["imported"]
    stage.runner.attach(ARENA)
    stage.runner.run_once(stage.program(), 0)
    assert stage.runner.describe()["imported"]


def test_a_worker_at_work_is_not_asked(stage: Stage) -> None:
    stage.engine("")
    stage.runner.attach(ARENA)
    stage.evaluator.import_ahead(WORKLOAD)
    assert not stage.runner.describe()["imported"]


def test_a_worker_that_has_died_is_replaced_and_nobody_is_blamed(stage: Stage) -> None:
    stage.engine("")
    os.kill(stage.pid, signal.SIGKILL)
    stage.evaluator.import_ahead(WORKLOAD)
    stage.runner.attach(ARENA)
    stage.runner.run_once(stage.program(), 0)


def test_what_breaks_off_is_told_and_what_finds_nothing_is_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeTorch())
    launchers = PeerLaunchers(0, 0, PeerHome(stage.folder))
    stage.engine("from os import a_name_that_is_not_there")
    with pytest.raises(PeerError, match="a_name_that_is_not_there"):
        launchers.import_ahead(stage.program())
    stage.engine("")
    launchers.import_ahead(stage.program())
    assert sys.modules.pop("slow_engine")


def test_what_only_some_configs_import_is_left_to_them() -> None:
    text = """
        import torch
        def launch(config, tensors, axes):
            import always
            try:
                from package import first
            except ImportError:
                import second
            if config["backend"] == "other":
                import other
            else:
                import own
            def inner():
                import deep
            inner()
        """
    found = [ast.unparse(one) for one in late_imports(dedent(text))]
    expected = ["always", "from package import first", "second", "deep"]
    assert [one.removeprefix("import ") for one in found] == expected
