"""Calls that are prepared in other processes: what becomes of those that nobody waits for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from callable_project import callable_project, read_project

from tuner.compiler.base import CompileRequest
from tuner.device.cuda import prepare
from tuner.device.cuda.prepare import CallCompiler, Prepared
from tuner.model.kernel import CALL


def test_what_was_cancelled_is_not_prepared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began, go_on = threading.Event(), threading.Event()
    asked: list[str] = []

    def prepared(source: str, _: object) -> Prepared:
        asked.append(source)
        began.set()
        assert go_on.wait(60)
        return Prepared()

    monkeypatch.setattr(prepare, "_prepare_source", prepared)
    compiler = CallCompiler(read_project(callable_project(tmp_path)).spec, "cpu", jobs=1)
    try:
        first, second, third = (
            compiler.submit(CompileRequest(f"x = {number}\n", (CALL,), "cuda"))
            for number in range(3)
        )
        assert began.wait(60)
        assert second.cancel()
        go_on.set()
        assert first.result(60).ok
        assert third.result(60).ok
    finally:
        compiler.close()
    assert asked == ["x = 0\n", "x = 2\n"]
