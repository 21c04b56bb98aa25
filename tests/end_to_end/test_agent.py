"""`tune --agent openai` against a server over a real socket, with kernels that really run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from agent_doubles import answer
from agent_project import (
    OWN,
    Bench,
    Ended,
    good,
    planned,
    template_of,
)
from fake_openai import KEY, FakeOpenAI, Request, Step, calls

from tuner.session.events import CandidateMade, Planned

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

FEW = template_of(8)
# What goes wrong, each with what the next request says of it; None for what is right.
FIRST_ROUND: tuple[tuple[str, Step, str | None], ...] = (
    (
        "calls",
        calls(
            ("compile", {"template": FEW.replace("= sum;", "= sun;")}),
            ("verify", {"template": FEW.replace("2.0f", "3.0f")}),
            ("measure", {"template": FEW}),
        ),
        None,
    ),
    ("no plan", "{'base': 'initial'}", "the reply holds no JSON object"),
    ("another candidate", planned(base="r7"), "`base` is 'r7', which is no candidate"),
    ("a plan", planned(0.3, base="initial"), None),
    (
        "a template that does not compile",
        answer(FEW.replace("= sum;", "= sun;"), OWN),
        "template.cu.j2:8: error: 'sun' was not declared",
    ),
    ("a wrong kernel", answer(FEW.replace("2.0f", "3.0f"), OWN), "incorrect with block=64 on N="),
    (
        "an illegal address",
        answer(FEW.replace("in[i] *", "in[i - 100000000] *"), OWN),
        "launch with block=64 on N=",
    ),
    ("the repair", good(64), None),
)


@dataclass(frozen=True)
class Played:
    """A session with a model over a socket, which has come to its end."""

    bench: Bench
    server: FakeOpenAI
    ended: Ended


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Two rounds: of mistakes that are repaired, and of what the model learns from the first."""

    def second(request: Request) -> str:
        finding = re.search(r"^1\. \[(\w+)", request.last, re.MULTILINE)
        assert finding is not None, request.last
        hypothesis = f"it is the {finding[1]}"
        return planned(0.5, hypothesis=hypothesis, base="initial", reference="r1")

    bench = Bench(tmp_path_factory.mktemp("agent") / "project")
    script = [*(step for _, step, _ in FIRST_ROUND), second, good(8)]
    with FakeOpenAI(script) as server:
        ended = bench.ask(server, "--rounds", 2, "--policy", "llm")
    assert ended.code == 0, ended.err
    yield Played(bench, server, ended)
    bench.close()


def test_each_round_makes_a_candidate_that_is_better_than_the_baseline(played: Played) -> None:
    bench = played.bench
    assert played.server.left == 0
    assert bench.candidates() == {"initial": None, "r1": "initial", "r2": "initial"}
    pieces = [int(re.findall(r"kPieces = (\d+)", text)[0]) for text in bench.templates().values()]
    assert pieces[1:] == [64, 8]
    speedups = [one.outcome.speedup for one in bench.records() if one.outcome]
    assert len(speedups) == 2
    assert all(speedup is not None and speedup > 1.5 for speedup in speedups)
    assert set(bench.results().values()) <= {"r1", "r2"}
    assert bench.tried() == {"initial", "r1", "r2"}, "nothing of a refused answer is timed"


def test_the_next_request_says_what_was_wrong(played: Played) -> None:
    assert [len(event.problems) for event in played.bench.events(CandidateMade)] == [3, 0]
    for request, (name, _, told) in zip(played.server.chats[1:], FIRST_ROUND, strict=False):
        assert told is None or told in request.last, name
        assert str(played.bench.root) not in request.last
        assert "mine/rounds" not in request.last
    names = [name for name, _, _ in FIRST_ROUND]
    uncompiled = played.server.chats[names.index("a template that does not compile") + 1].last
    assert "\n    8 |     out[i] = sun;\n" in uncompiled


def test_parallel_calls_are_answered_in_order_with_what_really_came_out(played: Played) -> None:
    *_, asked, compiled, wrong, measured = played.server.chats[1].messages
    ids = [call["id"] for call in asked["tool_calls"]]
    assert [message["tool_call_id"] for message in (compiled, wrong, measured)] == ids
    assert "template.cu.j2:8: error: " in compiled["content"]
    assert "incorrect: " in wrong["content"] and "expected" in wrong["content"]
    assert re.search(r"the draft, .* us; the baseline .* us: [\d.]+x", measured["content"])


def test_a_round_reads_what_came_of_the_one_before(played: Played) -> None:
    bench, chats = played.bench, played.server.chats
    assert "Nothing was tried before this round." in chats[0].last
    request = chats[len(FIRST_ROUND)].last
    assert "round 1 -> r1: add fewer pieces\n  ran correctly" in request
    assert " got x" not in request, "a CPU's times tell nothing"
    assert "kPieces = 64" in request
    assert "Choose the candidate to build on, `base`" in request
    assert "# Candidate initial" in chats[-1].last, "what the briefing has not shown in full"
    _, idea = (event.idea for event in bench.events(Planned))
    assert f"\n1. [{idea.hypothesis.removeprefix('it is the ')}" in request
    assert idea.expectations[0].factor == 0.5
    # A server can cache what all rounds begin with.
    assert len({json.dumps([chat.messages[:2], chat.body["tools"]]) for chat in chats}) == 1


def test_the_end_tells_what_every_round_came_to_and_nothing_the_key(played: Played) -> None:
    bench, out = played.bench, played.ended.out
    for number in (1, 2):
        assert re.search(
            rf"^round {number}        on initial, add fewer pieces: ran correctly$",
            out,
            re.MULTILINE,
        )
    assert re.search(r"^tokens         [\d,]+ read \([\d,]+ of them cached\), ", out, re.M)
    assert "which config is fastest, a GPU has to say" in out
    assert KEY not in out + played.ended.err
    left = bench.bytes_of_all_files()
    assert KEY.encode() not in left
    assert b"add fewer pieces" in left, "the session is among what was read"
    # A session whose rounds are over needs no server.
    resumed = bench.resume(None, "--json", "--quiet")
    assert (resumed.code, resumed.err) == (0, "")
    found = json.loads(resumed.out)
    assert [one["end"] for one in found["rounds"]] == ["searched"] * 2
    assert found["agent"]["failure"] is None
