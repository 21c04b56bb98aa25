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
from fake_openai import KEY, MODEL, FakeOpenAI, Reply, Request, failure
from faults import wait_until

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
    assert "which config is fastest, a GPU has to say" in ended.out, "the results are shown"
    assert (bench.folder / "report.html").exists()
    assert "to go on       tune --resume mine" in ended.out
    assert set(bench.results()) == {"N=1000", "N=500"}
    assert KEY not in ended.out + ended.err


def used(text: str, sent: int, written: int) -> Reply:
    return Reply(text=text, usage=(sent, 0, written))


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


@pytest.mark.slow
def test_without_a_server_the_run_says_so_at_once_and_ends_with_what_it_has(bench: Bench) -> None:
    ended = bench.run(bench.asking("--rounds", 2), {"OPENAI_BASE_URL": NOBODY})
    assert_ended_with_the_best_so_far(bench, ended)
    first, *_ = ended.err.splitlines()
    said = f"the connection to {NOBODY} failed"
    assert first.startswith("Warning: ") and said in first
    assert said in ended.err.split("Error: ")[1]
    assert set(bench.results().values()) == {"initial"}
    # Nor does a key that a server refuses stand anywhere.
    with FakeOpenAI([], key="sk-another-9876543210") as server:
        environ = {**server.environ, "OPENAI_API_KEY": KEY}
        refused = bench.resume(environ, "--json", "--quiet")
    assert refused.code == 4
    assert "Incorrect API key provided: [key]" in refused.err
    found = json.loads(refused.out)
    assert len(found["workloads"]) == 2
    assert "Incorrect API key provided: [key]" in found["agent"]["failure"]
    assert [one["end"] for one in found["rounds"]] == ["open"]
    assert KEY.encode() not in bench.bytes_of_all_files()


@pytest.mark.slow
def test_a_model_without_a_valid_template_is_an_error_that_tells_what_was_tried(
    bench: Bench,
) -> None:
    unfit = answer(template_of(8).replace("2.0f", "@{ nobody }@"), OWN)
    with FakeOpenAI([planned(), *[unfit] * 4]) as server:
        ended = bench.ask(server, "--rounds", 1)
    assert_ended_with_the_best_so_far(bench, ended)
    assert server.left == 0
    assert f"openai:{MODEL} wrote no valid template in 1 rounds" in ended.err
    assert "round 1        on initial, add fewer pieces: refused 4 times" in ended.out
    assert "`nobody` is not declared" in ended.out
    assert set(bench.candidates()) == {"initial"}
    assert (bench.folder / "rounds/01/attempt-4/template.cu.j2").exists(), "nothing is lost"


class Held:
    """A reply that does not come before it is let go."""

    def __init__(self) -> None:
        self.asked, self.free = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Reply:
        self.asked.set()
        self.free.wait(60)
        return failure(503)


@pytest.mark.slow
def test_a_run_that_ends_in_a_round_goes_on_there_and_asks_nothing_twice(bench: Bench) -> None:
    words, script = bench.asking("--rounds", 2), [planned(), good(64), planned(), WRONG]
    last: list[Request] = []
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        held = Held()
        with FakeOpenAI([*script, held]) as server:
            process = bench.start(words, server.environ)
            wait_until(held.asked.is_set, "the request for a repair")
            os.killpg(process.pid, number)
            ended = bench.ended(process)
            held.free.set()
        assert ended.code == code
        if number is signal.SIGINT:
            assert ended.err == "interrupted; resume with: tune --resume mine\n"
        assert len(server.chats) == len(script) + 1
        last.append(server.chats[-1])
        words, script = ("--resume", "mine"), []
    before = bench.said()
    closed = bench.resume(None, "--rounds", "0")
    assert closed.code == 0, closed.err
    # Which of the two is faster a loaded CPU can't say; both were searched.
    assert bench.tried() == {"initial", "r1"}, "what the first round gave is not lost"
    assert set(bench.results().values()) <= bench.tried()
    assert re.search(r"^round 2 .*not ended", closed.out, re.M), closed.out
    with FakeOpenAI([good()]) as again:
        resumed = bench.resume(again.environ)
    assert resumed.code == 0, resumed.err
    assert [chat.messages for chat in (*last, *again.chats)] == [last[0].messages] * 3
    assert bench.said()[: len(before)] == before
    assert list(bench.candidates()) == ["initial", "r1", "r2"]
