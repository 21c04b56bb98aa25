"""A run of a Python kernel: what it imports is asked for before anything compiles."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from callable_project import KERNEL, SPACE, callable_project

from tests.support.simulated_device import SimulatedDevice
from tuner.app.plan import RunOptions
from tuner.app.run import run
from tuner.compiler.base import Compiler, CompileRequest, CompileResult, PythonCompiler
from tuner.device.base import Outcome, Program


class Noting(SimulatedDevice):
    """Compiles calls as a GPU does; notes in which order it is asked for what."""

    capabilities = SimulatedDevice.capabilities | {"callables"}

    def __init__(self) -> None:
        super().__init__(lambda program: 10.0)
        self.asked: list[tuple[str, bytes]] = []

    def call_compiler(self, jobs: int | None) -> Compiler:
        return NotingCompiler(self.asked)

    def import_ahead(self, program: Program) -> None:
        self.asked.append(("import", program.cubin))

    def run(self, program: Program, **options: object) -> Outcome:
        self.asked.append(("run", program.cubin))
        return super().run(program)


class NotingCompiler(PythonCompiler):
    def __init__(self, asked: list[tuple[str, bytes]]) -> None:
        self._asked = asked

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        self._asked.append(("compile", request.source.encode()))
        return super().submit(request)


def test_the_first_baseline_is_imported_before_anything_compiles_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener
) -> None:
    folder, device = callable_project(tmp_path), Noting()
    monkeypatch.setattr("tuner.app.open.open_device", lambda *_, **__: device)
    settings = {"space": folder / SPACE, "device": "cuda", "searcher": "random", "trials": 2}
    run(folder / KERNEL, settings, RunOptions(session=tmp_path / "session"), listener)
    (first, module), *later = device.asked
    assert first == "import"
    assert later[0] == ("compile", module)
    assert next(what for what in later if what[0] == "run") == ("run", module)
    assert "import" not in dict(later)
