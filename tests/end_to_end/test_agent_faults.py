"""A model's server that fails, a budget that ends, a run that is killed: nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_doubles import answer
from agent_project import OWN, Bench, Ended, good, planned, template_of
from fake_openai import KEY, MODEL, FakeOpenAI, Reply, Request, dropped, failure
from faults import trials, wait_until
from hostile_server import HostileServer, chunk, head

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

NOBODY = "http://127.0.0.1:9/v1"
WRONG = answer(template_of(8).replace("2.0f", "3.0f"), OWN)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "project")
    yield bench
    bench.close()


def assert_ended_with_the_best_so_far(bench: Bench, ended: Ended) -> None:
    assert ended.code == 4
    assert ended.errors == 1, ended.err
    assert "95 % interval" in ended.out, "the results are shown"
    assert (bench.folder / "report.html").exists()
    assert "to go on       tune --resume mine" in ended.out
    assert set(bench.results()) == {"N=1000", "N=500"}
    assert KEY not in ended.out + ended.err


# A server with failures that pass


def test_rate_limits_and_a_connection_that_drops_are_survived(bench: Bench) -> None:
    script = [failure(429, "slow down", retry_after=0.05), planned(), dropped(good(), 5), good()]
    with FakeOpenAI(script) as server:
        ended = bench.ask(server, "--rounds", 1)
    assert ended.code == 0, ended.err
    assert list(bench.candidates()) == ["initial", "r1"]
    assert server.chats[0].messages == server.chats[1].messages
    assert server.chats[2].messages == server.chats[3].messages
    limit, drop = (entry for entry in bench.said() if entry["type"] == "failure")
    assert "answered 429: slow down" in limit["error"]
    assert drop["usage"]["output_tokens"] > 0, "what came before the drop is counted"


# A budget


def used(text: str, sent: int, written: int) -> Reply:
    return Reply(text=text, usage=(sent, 0, written))


@pytest.mark.slow
def test_tokens_that_end_after_a_candidate_end_the_rounds_and_not_the_run(bench: Bench) -> None:
    script = [used(planned(), 6_000, 100), used(good(), 7_000, 500), "never asked for"]
    with FakeOpenAI(script) as server:
        ended = bench.ask(server, "--rounds", 3, "--max-tokens", 20_000)
    assert ended.code == 0, ended.err
    assert ended.errors == 0
    assert server.left == 1
    assert list(bench.candidates()) == ["initial", "r1"]
    assert "the budget of 20000 tokens is used up: 13600 are spent" in ended.out
    assert "tokens         13,000 read, 600 written" in ended.out
    assert all(chat.body["max_completion_tokens"] < 20_000 for chat in server.chats)


@pytest.mark.slow
def test_money_that_ends_before_a_candidate_is_an_error_with_the_best_so_far(bench: Bench) -> None:
    prices = f"version: 1\ncurrency: EUR\nmodels: {{{MODEL}: {{input: 10, output: 100}}}}\n"
    (bench.root / "prices.yaml").write_text(prices, encoding="utf-8")
    limits = ("--max-cost", "0.2", "--prices", "prices.yaml")
    with FakeOpenAI([used(planned(), 2_000, 200), used(WRONG, 4_000, 500)]) as server:
        ended = bench.ask(server, "--rounds", 2, *limits)
        assert_ended_with_the_best_so_far(bench, ended)
        assert "the budget of 0.2 EUR is used up: 0.13 are spent" in ended.err
        assert "raise --max-cost" in ended.err
        assert re.search(r"^tokens .*, cost 0\.13$", ended.out, re.MULTILINE)
        # with more money the round goes on with the repair that could not be paid for
        server.script.append(good())
        more = bench.resume(server.environ, "--max-cost", "5", "--rounds", "1")
    assert more.code == 0, more.err
    assert len(server.chats) == 3
    assert "incorrect with block=" in server.chats[2].last
    assert list(bench.candidates()) == ["initial", "r1"]


@pytest.mark.slow
def test_a_model_that_never_stops_writing_spends_its_budget_and_no_more(bench: Bench) -> None:
    def endless(path: str, body: bytes) -> Iterator[bytes]:
        yield head(404 if path.endswith("models") else 200)
        while not path.endswith("models"):
            yield chunk({"content": "word " * 400})

    with HostileServer(endless) as server:
        words = bench.asking("--rounds", 2, "--max-tokens", 60_000)
        ended = bench.run(words, {"OPENAI_BASE_URL": server.url})
    assert_ended_with_the_best_so_far(bench, ended)
    assert "the budget of 60000 tokens is used up" in ended.err
    used = [entry["usage"] for entry in bench.said() if "usage" in entry]
    assert sum(one["input_tokens"] + one["output_tokens"] for one in used) <= 60_000 * 1.01


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-cost", "1"), "the model's price is unknown"),
        (("--prices", "prices.yaml"), f"prices.yaml: no price for the model '{MODEL}'"),
    ],
)
def test_prices_that_are_missing_are_told_before_anything_is_measured(
    bench: Bench, words: tuple[str, ...], said: str
) -> None:
    prices = "version: 1\nmodels: {other: {input: 1, output: 2}}\n"
    (bench.root / "prices.yaml").write_text(prices, encoding="utf-8")
    with FakeOpenAI([]) as server:
        ended = bench.ask(server, *words)
    assert ended.code == 2
    assert said in ended.err
    assert not server.requests
    assert not bench.folder.exists()


# An agent that cannot go on


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "there is no model to talk to"),
        ({"OPENAI_BASE_URL": NOBODY}, f"the connection to {NOBODY} failed"),
    ],
    ids=["no key", "no server"],
)
@pytest.mark.slow
def test_without_a_server_the_run_says_so_at_once_and_ends_with_what_it_has(
    bench: Bench, environ: dict[str, str], said: str
) -> None:
    ended = bench.run(bench.asking("--rounds", 2), environ)
    assert_ended_with_the_best_so_far(bench, ended)
    first, *_ = ended.err.splitlines()
    assert first.startswith("Warning: ") and said in first
    assert said in ended.err.split("Error: ")[1]
    assert bench.results().keys() == {"N=1000", "N=500"}
    assert set(bench.results().values()) == {"initial"}


@pytest.mark.slow
def test_an_unknown_model_is_told_with_those_that_there_are(bench: Bench) -> None:
    with FakeOpenAI([], models=["other-1", "other-2"]) as server:
        ended = bench.ask(server, "--rounds", 2, "--json", "--quiet")
    assert ended.code == 4
    assert ended.errors == 1
    assert f"no model '{MODEL}'" in ended.err.splitlines()[0]
    found = json.loads(ended.out)
    assert len(found["workloads"]) == 2
    assert f"no model '{MODEL}'" in found["agent"]["failure"]
    assert [one["end"] for one in found["rounds"]] == ["open"]


def test_a_refused_key_is_not_shown(bench: Bench) -> None:
    with FakeOpenAI([], key="sk-another-9876543210") as server:
        ended = bench.run(bench.asking("--rounds", 1), {**server.environ, "OPENAI_API_KEY": KEY})
    assert_ended_with_the_best_so_far(bench, ended)
    assert "Incorrect API key provided: [key]" in ended.err
    assert KEY.encode() not in bench.bytes_of_all_files()


@pytest.mark.slow
def test_a_model_without_a_valid_template_is_an_error_that_tells_what_was_tried(
    bench: Bench,
) -> None:
    with FakeOpenAI([planned(), *[WRONG] * 4] * 2) as server:
        ended = bench.ask(server, "--rounds", 2)
    assert_ended_with_the_best_so_far(bench, ended)
    assert server.left == 0
    assert f"openai:{MODEL} wrote no valid template in 2 rounds" in ended.err
    for number in (1, 2):
        assert f"round {number}        on initial, add fewer pieces: refused 4 times" in ended.out
    assert "refused: incorrect with block=" in ended.out
    assert set(bench.candidates()) == {"initial"}
    assert (bench.folder / "rounds/02/attempt-4/template.cu.j2").exists(), "nothing is lost"


@pytest.mark.slow
def test_a_server_that_fails_for_good_leaves_the_candidates_so_far(bench: Bench) -> None:
    with FakeOpenAI([planned(), good(), failure(403, "no access any more")]) as server:
        ended = bench.ask(server, "--rounds", 3)
        assert_ended_with_the_best_so_far(bench, ended)
        assert "no access any more" in ended.err
        assert set(bench.results().values()) == {"r1"}
        server.script += [planned(), good(4), planned(), good(2)]
        more = bench.resume(server.environ)
    assert more.code == 0, more.err
    assert list(bench.candidates()) == ["initial", "r1", "r2", "r3"]
    assert "round 1 -> r1" in server.chats[3].last


# A run that is ended from outside


class Held:
    """A reply that does not come before it is let go."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Reply:
        self.asked.set()
        self.free.wait(60)
        return failure(503)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)], ids=["kill -9", "Ctrl-C"]
)
@pytest.mark.slow
def test_a_run_that_ends_in_a_round_goes_on_there_and_asks_nothing_twice(
    bench: Bench, number: signal.Signals, code: int
) -> None:
    held = Held()
    with FakeOpenAI([planned(), good(64), planned(), WRONG, held]) as server:
        process = bench.start(bench.asking("--rounds", 2), server.environ)
        wait_until(held.asked.is_set, "the request for a repair")
        os.killpg(process.pid, number)
        ended = bench.ended(process)
        held.free.set()
    assert ended.code == code
    if number is signal.SIGINT:
        assert ended.err == "interrupted; resume with: tune --resume mine\n"
    before = bench.said()
    with FakeOpenAI([good()]) as again:
        resumed = bench.resume(again.environ)
    assert resumed.code == 0, resumed.err
    assert len(again.chats) == 1
    assert again.chats[0].messages == server.chats[4].messages
    assert bench.said()[: len(before)] == before
    assert list(bench.candidates()) == ["initial", "r1", "r2"]


@pytest.mark.slow
def test_a_killed_run_can_be_brought_to_an_end_without_further_rounds(bench: Bench) -> None:
    held = Held()
    with FakeOpenAI([planned(), good(), held]) as server:
        process = bench.start(bench.asking("--rounds", 2), server.environ)
        wait_until(held.asked.is_set, "the second round")
        process.kill()
        bench.ended(process)
        held.free.set()
    ended = bench.resume(None, "--rounds", "0")
    assert ended.code == 0, ended.err
    assert set(bench.results().values()) == {"r1"}, "what the first round gave is not lost"
    assert "round 2        not ended" in ended.out


@pytest.mark.slow
def test_a_run_that_is_killed_in_the_search_of_a_candidate_needs_no_server_to_go_on(
    bench: Bench,
) -> None:
    slow = answer(template_of(4096), OWN.replace("[32, 64]", "[16, 24, 32, 40, 48, 56, 64]"))

    def searched() -> list[str]:
        return [one.config.key for one in trials(bench.folder) if one.candidate == "r1"]

    with FakeOpenAI([planned(), slow]) as server:
        words = bench.asking("--rounds", 1)
        many = tuple("7" if before == "--trials" else word for before, word in _pairs(words))
        process = bench.start(many, server.environ)
        wait_until(searched, "a trial of the candidate")
        process.kill()
        bench.ended(process)
    first = searched()
    assert 0 < len(first) < 7
    with FakeOpenAI([]) as silent:
        resumed = bench.resume(silent.environ)
    assert resumed.code == 0, resumed.err
    assert not silent.chats
    assert searched()[: len(first)] == first
    assert len(set(searched())) == 7


def _pairs(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return zip(("", *words), words, strict=False)
