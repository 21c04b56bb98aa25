"""What compiling a Python kernel ahead takes: what is drawn, and what is said of it."""

from __future__ import annotations

from contextlib import nullcontext

import compile_ahead
import pytest

from tuner.device.cuda.prepare import Prepared


def test_every_process_compiles_configs_of_its_own_that_are_valid() -> None:
    plan = compile_ahead.plan_of(columns=256, tokens=64)
    drawn = compile_ahead.sources(plan, 6)
    assert len(set(drawn)) == 6
    assert drawn == compile_ahead.sources(plan, 6)
    for one in drawn:
        assert "\nAXES = {'M': 64, 'E': 256, 'N': 256," in one
        assert "'WEIGHTS': 'fp8_block'" in one


def test_what_compiles_nothing_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def prepare(self, _: str) -> Prepared:
            return Prepared()

    monkeypatch.setattr(compile_ahead, "stages", lambda _: nullcontext())
    with pytest.raises(SystemExit, match="nothing was compiled"):
        compile_ahead.passed(Silent(), ["one"])


def test_the_means_are_over_processes() -> None:
    first = {"ready": 2.0, "first": {"clock": 1.0, "cubin": 0.5}, "again": {"clock": 0.1}}
    second = {"ready": 4.0, "first": {"clock": 3.0, "cubin": 0.0}, "again": {"clock": 0.3}}
    assert compile_ahead.mean_of([first, second]) == {
        "ready_s": 3.0,
        "first_s": {"clock": 2.0, "cubin": 0.25},
        "again_s": {"clock": 0.2},
    }
