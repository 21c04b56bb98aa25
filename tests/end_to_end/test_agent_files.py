"""`tune --agent files`: somebody answers in a folder, rightly, wrongly, late or not at all."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_project import OWN, Bench, template_of
from faults import wait_until

from tuner.app.plan import new_plan
from tuner.cli import options, run_command
from tuner.extensions.agents.budget import read_prices
from tuner.extensions.agents.replies import KNOWN_METRICS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


DOCS = (Path(__file__).parents[2] / "docs/agents.md").read_text(encoding="utf-8")
DOCUMENTED: dict[str, list[str]] = {}
for word, text in re.findall(r"^```(\w+)\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL):
    DOCUMENTED.setdefault(word, []).append(text)
COMMANDS = re.findall(r"^tune (.*)$", "".join(DOCUMENTED["sh"]), re.MULTILINE)


class Person:
    """Whoever answers in the exchange folder of one round."""

    def __init__(self, bench: Bench, number: int = 1) -> None:
        self.folder = bench.root / f"exchange/round-{number:02}"

    def waits_for(self, name: str) -> str:
        """Wait for a file and read it."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.stat().st_size, f"{name}")
        return path.read_text(encoding="utf-8")

    def answers(self, template: str, space: str = OWN, plan: str = "") -> None:
        """Write the files, the plan first."""
        files = {"plan.json": plan, "template.cu.j2": template, "space.yaml": space}
        for name, text in files.items():
            if text:
                (self.folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "project")
    yield bench
    bench.close()


def asking(bench: Bench, *words: object) -> tuple[str, ...]:
    return bench.new("--agent", "files", "--exchange", "exchange", *words)


def test_a_wrong_answer_comes_back_as_a_problem_and_a_right_one_goes_on(bench: Bench) -> None:
    person = Person(bench)
    process = bench.start(asking(bench, "--rounds", 1))
    request = person.waits_for("request.md")
    assert "kPieces = 512" in request and "# Findings about initial" in request
    person.answers(template_of(8).replace("2.0f", "3.0f"), plan=DOCUMENTED["json"][0])
    problem = person.waits_for("problem.md")
    assert "incorrect with block=" in problem
    assert "Write template.cu.j2 and space.yaml again" in problem
    assert (person.folder / "refused-1/template.cu.j2").exists()
    assert not (person.folder / "template.cu.j2").exists()
    (template,), (_, space) = DOCUMENTED["cuda"], DOCUMENTED["yaml"]
    person.answers(template, space)
    ended = bench.ended(process)
    assert ended.code == 0, ended.err
    assert not (person.folder / "problem.md").exists()
    assert list(bench.candidates()) == ["initial", "r1"]
    (record,) = bench.records()
    assert record.idea is not None and record.idea.change == "multiply once"
    assert len(record.problems) == 1


@pytest.mark.slow
def test_an_answer_that_does_not_come_in_time_can_be_given_later(bench: Bench) -> None:
    person = Person(bench)
    ended = bench.run(asking(bench, "--rounds", 1, "--wait", "1s"))
    assert ended.code == 4
    assert ended.errors == 1
    assert "no answer yet: template.cu.j2 and space.yaml are to be written in " in ended.err
    assert "exchange/round-01/request.md says what is asked" in ended.err
    assert "No result yet" in ended.out
    assert "to go on       tune --resume mine" in ended.out
    assert not bench.results(), "the finals wait for the answer"

    person.answers(template_of(8).replace("= sum;", "= sun;"))
    later = bench.resume(None, "--wait", "1s")
    assert later.code == 4
    assert "round-01/problem.md says what is asked" in later.err
    assert "template.cu.j2:8: error: 'sun'" in (person.folder / "problem.md").read_text("utf-8")

    person.answers(template_of(8))
    last = bench.resume(None, "--wait", "1s", "--json", "--quiet")
    assert last.code == 0, last.err
    (made,) = json.loads(last.out)["rounds"]
    assert (made["end"], made["candidate"], len(made["refused"])) == ("searched", "r1", 1)
    assert [path.name for path in person.folder.glob("refused-*")] == ["refused-1"]


@pytest.mark.slow
def test_a_file_named_stop_ends_the_rounds(bench: Bench) -> None:
    person = Person(bench)
    process = bench.start(asking(bench, "--rounds", 3))
    person.waits_for("request.md")
    (bench.root / "exchange/stop").touch()
    ended = bench.ended(process)
    assert ended.code == 0, ended.err
    assert set(bench.results()) == {"N=1000", "N=500"}
    assert "round 1        on initial: nothing left to try" in ended.out


def test_an_exchange_that_is_no_folder_is_told_before_anything_is_measured(bench: Bench) -> None:
    (bench.root / "exchange").write_text("mine", encoding="utf-8")
    ended = bench.run(asking(bench))
    assert ended.code == 2
    assert "exchange: the folder cannot be made: File exists" in ended.err
    assert not bench.folder.exists()


# What the documentation says besides


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_in_the_documentation_is_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(bench.root)
    (bench.root / "prices.yaml").write_text(DOCUMENTED["yaml"][0], encoding="utf-8")
    with run_command.command.make_context("tune", shlex.split(line)) as context:
        settings = options.settings_of(context, context.params)
        kernel, resume = context.params["source"], context.params["resume"]
    assert bool(kernel) != bool(resume)
    if resume is None:
        settings["space"] = bench.root / "scale.yaml"
        config = new_plan(bench.root / "scale.cu", settings).config
        assert config.agent in ("openai", "files")
        prices = read_prices(config.prices or bench.root / "prices.yaml")
        assert prices.of(config.model or "my-model").output == 10


def test_every_metric_is_documented() -> None:
    listed = re.findall(r"^\| `(\w+)` \| ", DOCS.split("| metric | meaning |")[1], re.MULTILINE)
    assert tuple(listed) == KNOWN_METRICS
