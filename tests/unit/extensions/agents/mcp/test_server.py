"""The server before a run that is made up: what it waits for, and how it ends."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest
from agent_doubles import Tools
from served_runs import ANSWER, PLAN, Call, Quiet, led, one_round, progress, text

from tuner.app.plan import RunOptions
from tuner.extensions.agents.mcp.arguments import Ending, StartArguments
from tuner.extensions.agents.mcp.session_runner import Defaults, RunWatch, run_session
from tuner.extensions.agents.mcp_agent import Handoff
from tuner.model.errors import InputError
from tuner.model.settings import GivenSettings


def test_the_end_of_the_last_round_is_told_before_the_results_are_there(tmp_path: Path) -> None:
    measured = Event()

    def finals(watch: RunWatch) -> None:
        watch.update(progress("finals"))
        measured.wait(10.0)

    async def work(call: Call) -> None:
        await call("start")
        assert "does not compile" in text(await call("submit", **PLAN, **ANSWER))
        told = text(await call("submit", **ANSWER))
        assert told.startswith("- round 1: 1.20x over the baseline")
        assert "call `finish`" in told
        assert "call `finish`" in text(await call("briefing"))
        measured.set()
        result = await call("finish")
        assert result.structured_content == {"workloads": [1]}
        assert "it is done" in text(result)
        assert "it is done" in text(await call("status"))
        refused = await call("submit", **ANSWER)
        assert refused.is_error
        assert "the run is over" in text(refused)

    led(tmp_path, one_round(Tools("compile"), finals), work)


def test_a_tool_that_takes_too_long_is_waited_for_by_the_same_call(tmp_path: Path) -> None:
    ready = Event()
    tools = Tools("compile", answer=lambda name, given: str(ready.wait(10.0)))

    async def work(call: Call) -> None:
        await call("start")
        first = await call("compile", block=64)
        assert first.is_error
        assert "call it again with the same arguments" in text(first)
        ready.set()
        while (again := await call("compile", block=64)).is_error:
            pass
        assert text(again) == "True"
        assert len(tools.called) == 1
        assert text(await call("compile", block=64)) == "True"
        assert len(tools.called) == 2

    led(tmp_path, one_round(tools), work, wait_s=0.1)


def test_the_status_says_how_far_the_run_is(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call("start")
        told = text(await call("status"))
        assert "N=64: baseline 12.00 us, best of the search 4.000 us (3.00x); 0 of 10" in told
        assert "round 1 waits for `submit`" in told

    led(tmp_path, one_round(Tools()), work)


def test_a_client_may_not_choose_a_program_to_run(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        refused = await call("start", device="command:./measure.sh")
        assert refused.is_error
        assert "`device` names a program" in text(refused)
        assert not (await call("start", device="host")).is_error

    led(tmp_path, one_round(Tools()), work)


def test_a_client_may_not_name_a_recording_outside_of_the_root(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        for path in ("../outside.json.xz", "/etc/passwd"):
            refused = await call("start", device=f"recorded:{path}")
            assert refused.is_error
            assert "`device` is outside the folder" in text(refused)
        assert not (await call("start", device="recorded:inside.json.xz")).is_error

    led(tmp_path, one_round(Tools()), work)


def test_a_session_says_with_which_command_it_would_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, ...]] = []

    def noted(kernel: Path, settings: object, options: RunOptions, *_: Any, **__: Any) -> None:
        told.append(options.command)
        raise InputError("it is not run here")

    monkeypatch.setattr("tuner.extensions.agents.mcp.session_runner.run", noted)
    settings: GivenSettings = {"time_s": 90.0, "policy": "mcts", "sources": (Path("/cutlass"),)}
    defaults = Defaults(tmp_path, Path("scale.cu"), settings, RunOptions(), None)
    seat = Handoff()
    run_session(defaults, StartArguments(invariant=True), seat, RunWatch(seat, Quiet()))
    words = "--time 90.0s --policy mcts --sources /cutlass --invariant"
    assert [" ".join(one[1:]) for one in told] == [f"mcp scale.cu {words}"]


def test_another_session_can_follow_one_that_is_over(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        assert not (await call("start")).is_error
        assert (await call("start")).is_error
        assert "no round" in text(await call("finish"))
        assert "Round 1 is open" in text(await call("start"))
        assert text(await call("briefing")).startswith("You make CUDA kernels faster")

    led(tmp_path, one_round(Tools()), work)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_that_breaks_off_is_no_silence(tmp_path: Path) -> None:
    def broken(wish: StartArguments, seat: Handoff, watch: RunWatch) -> Ending:
        raise ZeroDivisionError

    async def work(call: Call) -> None:
        result = await call("start")
        assert result.is_error
        assert "the run broke off" in text(result)

    led(tmp_path, broken, work)


def test_what_the_client_wishes_reaches_the_run(tmp_path: Path) -> None:
    (tmp_path / "k.cu").touch()
    wishes: list[StartArguments] = []

    def tuning(wish: StartArguments, seat: Handoff, watch: RunWatch) -> Ending:
        wishes.append(wish)
        return Ending("")

    async def work(call: Call) -> None:
        given = {"device": "host", "trials": 3, "rounds": 2, "workloads": ["N=1"]}
        await call("start", kernel=str(tmp_path / "k.cu"), session="new/mine", **given)
        await call("start", resume="old")
        both = await call("start", resume="old", kernel="k.cu")
        assert both.is_error

    led(tmp_path, tuning, work)
    assert wishes == [
        StartArguments(
            kernel="k.cu", session="new/mine", device="host", trials=3, rounds=2, workloads=["N=1"]
        ),
        StartArguments(resume="old"),
    ]


def test_a_plan_is_written_of_the_fields_that_were_given(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call("start")
        told = text(await call("submit", hypothesis="why", **ANSWER))
        assert "`change` is missing" in told
        assert "`hypothesis`" not in told

    led(tmp_path, one_round(Tools()), work)
