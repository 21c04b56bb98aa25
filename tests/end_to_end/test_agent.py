"""`tune --agent openai` against a server over a real socket, with kernels that really run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence

import pytest
from agent_doubles import answer
from agent_project import (
    OWN,
    Bench,
    Ended,
    fewer_pieces,
    good,
    planned,
    template_of,
)
from fake_openai import KEY, FakeOpenAI, Reply, Request, Step, calls, truncated

from tuner.session.events import CandidateMade, Planned, RoundRefused

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

Played = tuple[Bench, FakeOpenAI, Ended]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Played]]:
    """Run a new session to its end with a model that follows a script."""
    opened: list[Bench] = []

    def played(script: Sequence[Step], *words: object, **server: object) -> Played:
        bench = Bench(tmp_path_factory.mktemp("agent") / "project")
        opened.append(bench)
        with FakeOpenAI(script, **server) as fake:  # type: ignore[arg-type]
            ended = bench.ask(fake, *words)
        return bench, fake, ended

    yield played
    for bench in opened:
        bench.close()


# Three rounds that each react to the one before


@pytest.fixture(scope="module")
def three(play: Callable[..., Played]) -> Played:
    """A model that promises what the last round gave, and goes on with the base's template."""

    def first(request: Request) -> str:
        assert "Nothing was tried before this round." in request.last
        return planned(0.3)

    def later(request: Request) -> str:
        got = re.findall(r"got x(\d+\.\d+)", request.last)
        finding = re.search(r"^1\. \[(\w+)", request.last, re.MULTILINE)
        assert got and finding is not None, request.last
        return planned(float(got[-1]), hypothesis=f"it is the {finding[1]}")

    steps = [first, fewer_pieces, later, fewer_pieces, later, fewer_pieces]
    return play(steps, "--rounds", 3)


def test_three_rounds_make_three_candidates_each_better_than_the_baseline(three: Played) -> None:
    bench, server, ended = three
    assert ended.code == 0, ended.err
    assert server.left == 0
    assert list(bench.candidates()) == ["initial", "r1", "r2", "r3"]
    assert bench.candidates()["r1"] == "initial"
    pieces = [re.findall(r"kPieces = (\d+)", t)[0] for t in bench.templates().values()]
    assert int(pieces[1]) == 64 and int(pieces[2]) == 8
    speedups = [one.outcome.speedup for one in bench.records() if one.outcome]
    assert len(speedups) == 3
    assert all(speedup is not None and speedup > 1.5 for speedup in speedups)
    assert set(bench.results().values()) <= {"r1", "r2", "r3"}


def test_a_round_reads_what_came_of_the_one_before(three: Played) -> None:
    bench, server, _ = three
    second, third = server.chats[2].last, server.chats[4].last
    outcome = bench.records()[0].outcome
    assert outcome is not None and outcome.over_base is not None
    told = re.search(r"expected time x0.30 on all workloads, got x(\d+\.\d+)", second)
    assert told is not None
    assert float(told[1]) == pytest.approx(1 / outcome.over_base, abs=0.006)
    assert "round 1 -> r1: add fewer pieces" in second
    assert "kPieces = 64" in second
    assert "Build on the candidate r1" in second
    assert "round 2 -> r2: add fewer pieces" in third
    for event, request in zip(bench.events(Planned)[1:], (second, third), strict=True):
        finding = event.idea.hypothesis.removeprefix("it is the ")
        assert f"\n1. [{finding}" in request
    factors = [event.idea.expectations[0].factor for event in bench.events(Planned)]
    assert factors[1] == float(told[1])


def test_all_rounds_begin_alike_so_that_a_server_can_cache_them(three: Played) -> None:
    _, server, _ = three
    assert len({json.dumps(chat.messages[:2]) for chat in server.chats}) == 1
    assert len({json.dumps(chat.body["tools"]) for chat in server.chats}) == 1


def test_the_key_is_nowhere(three: Played) -> None:
    bench, _, ended = three
    assert KEY not in ended.out + ended.err
    left = bench.bytes_of_all_files()
    assert KEY.encode() not in left
    assert b"add fewer pieces" in left, "the session is among what was read"


def test_the_end_tells_what_every_round_came_to(three: Played) -> None:
    _, _, ended = three
    for number, base in ((1, "initial"), (2, "r1")):
        assert re.search(
            rf"^round {number}        on {base}, add fewer pieces: \d+\.\d\dx over the baseline$",
            ended.out,
            re.MULTILINE,
        )
    assert re.search(r"^tokens         [\d,]+ read \([\d,]+ of them cached\), ", ended.out, re.M)
    assert "95 % interval" in ended.out


def test_a_session_whose_rounds_are_over_needs_no_server(three: Played) -> None:
    bench, _, _ = three
    ended = bench.resume(None, "--json", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert [one["end"] for one in found["rounds"]] == ["searched"] * 3
    assert found["agent"]["failure"] is None


# What is refused, and what can be repaired

FEW = template_of(8)
CHEATING = FEW.replace("sum += in[i] *", "sum += in[0] *")
# Each with what the next request says of it; None for what is right.
SCRIPT: tuple[tuple[str, Step, str | None], ...] = (
    ("a plan that is no JSON", "{'base': 'initial'}", "the reply holds no JSON object"),
    ("a plan", planned(), None),
    ("a block that is cut off", truncated(good()[:300]), "the reply was cut off after"),
    (
        "a template that does not compile",
        answer(FEW.replace("= sum;", "= sun;"), OWN),
        "template.cu.j2:8: error: 'sun' was not declared",
    ),
    ("a wrong kernel", answer(FEW.replace("2.0f", "3.0f"), OWN), "incorrect with block=64 on N="),
    ("the repair", good(), None),
    ("another plan", planned(), None),
    (
        "a looser limit",
        answer(FEW, f"{OWN}limits: {{max_registers: 255}}"),
        "`limits.max_registers` is looser than the user's 64",
    ),
    ("one element for all", answer(CHEATING, OWN), "incorrect with block="),
    (
        "an illegal address",
        answer(FEW.replace("in[i] *", "in[i - 100000000] *"), OWN),
        "launch with block=64 on N=",
    ),
    ("a good end", good(4), None),
)
NAMES = [name for name, _, _ in SCRIPT]
TOLD = {name: told for name, _, told in SCRIPT if told}


@pytest.fixture(scope="module")
def refused(play: Callable[..., Played]) -> Played:
    """Two rounds that come to a candidate by repairs."""
    return play([step for _, step, _ in SCRIPT], "--rounds", 2)


@pytest.mark.slow
def test_rounds_go_on_after_what_was_refused(refused: Played) -> None:
    bench, server, ended = refused
    assert ended.code == 0, ended.err
    assert server.left == 0
    assert list(bench.candidates()) == ["initial", "r1", "r2"]
    assert [len(event.problems) for event in bench.events(CandidateMade)] == [3, 3]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.slow
def test_the_next_request_says_what_was_wrong(refused: Played, name: str) -> None:
    bench, server, _ = refused
    request = server.chats[NAMES.index(name) + 1]
    assert TOLD[name] in request.last
    assert str(bench.root) not in request.last
    assert "mine/rounds" not in request.last


@pytest.mark.slow
def test_an_error_of_the_compiler_comes_with_the_lines_of_the_template(refused: Played) -> None:
    _, server, _ = refused
    told = server.chats[NAMES.index("a template that does not compile") + 1].last
    assert "\n    8 |     out[i] = sun;\n" in told


@pytest.mark.slow
def test_nothing_of_a_refused_answer_is_timed(refused: Played) -> None:
    bench, _, _ = refused
    assert bench.tried() == {"initial", "r1", "r2"}


# Policies


@pytest.mark.slow
def test_with_the_policy_llm_the_model_names_the_base_and_a_reference(
    play: Callable[..., Played],
) -> None:
    script: list[Step] = [
        planned(base="r7"),
        planned(base=None),
        planned(base="initial"),
        good(64),
        planned(base="initial", reference="r1"),
        good(8),
    ]
    bench, server, ended = play(script, "--rounds", 2, "--policy", "llm")
    assert ended.code == 0, ended.err
    assert "Choose the candidate to build on, `base`" in server.chats[0].last
    assert "`base` is 'r7', which is no candidate; candidates: initial" in server.chats[1].last
    assert "the plan names no `base`" in server.chats[2].last
    assert "# Candidate r1" in server.chats[5].last
    assert "kPieces = 64" in server.chats[5].last
    assert bench.candidates() == {"initial": None, "r1": "initial", "r2": "initial"}
    assert [event.idea.reference for event in bench.events(Planned)] == ["", "r1"]


# Tools


def restless(request: Request) -> Reply:
    return calls(*[("read_notes", {})] * 9)


@pytest.fixture(scope="module")
def calling(play: Callable[..., Played]) -> Played:
    """One round with tools that are called in parallel, and one with calls that never end."""
    wanted = calls(
        ("compile", {"template": FEW.replace("= sum;", "= sun;")}),
        ("render", {"config": {"block": 32}}),
        ("verify", {"template": FEW}),
        ("verify", {"template": FEW.replace("2.0f", "3.0f")}),
        ("measure", {"template": FEW}),
    )
    return play([wanted, planned(), good(), *[restless] * 20], "--rounds", 2)


@pytest.mark.slow
def test_parallel_calls_are_answered_in_order_with_what_really_came_out(calling: Played) -> None:
    _, server, _ = calling
    *_, asked, compiled, rendered, right, wrong, measured = server.chats[1].messages
    ids = [call["id"] for call in asked["tool_calls"]]
    told = (compiled, rendered, right, wrong, measured)
    assert [message["tool_call_id"] for message in told] == ids
    assert "template.cu.j2:8: error: " in compiled["content"]
    assert "constexpr int kBlock = 32;" in rendered["content"]
    assert "correct with the inputs" in right["content"]
    assert "incorrect: " in wrong["content"] and "expected" in wrong["content"]
    assert re.search(r"the draft, .* us; the baseline .* us: [\d.]+x", measured["content"])


@pytest.mark.slow
def test_calls_without_end_cost_a_round_and_no_more(calling: Played) -> None:
    bench, server, ended = calling
    assert ended.code == 0, ended.err
    assert list(bench.candidates()) == ["initial", "r1"]
    (lost,) = bench.events(RoundRefused, 2)
    assert "goes on calling tools after its 24 calls" in lost.problems[0]
    assert server.left > 0
    answered = [e["message"] for e in bench.said(2) if e.get("message", {}).get("role") == "tool"]
    assert sum("not run" not in message["content"] for message in answered) == 24
