"""Runs of this folder end without a comparison of machine code, which compiles twice."""

from __future__ import annotations

import pytest

import tuner.tuning.machine_code


@pytest.fixture(autouse=True)
def without_machine_code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.stem != "test_machine_code":
        monkeypatch.setattr(tuner.tuning.machine_code, "find_nvdisasm", lambda: None)
