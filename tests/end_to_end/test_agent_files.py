"""`tune --agent files`: somebody answers in a folder, rightly, wrongly, late or not at all."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_project import OWN, Bench, Ended, template_of

from tuner.app.plan import new_plan
from tuner.cli import options, run_command
from tuner.extensions.agents.budget import read_prices
from tuner.extensions.agents.replies import KNOWN_METRICS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


DOCS = (Path(__file__).parents[2] / "docs/agents.md").read_text(encoding="utf-8")
DOCUMENTED: dict[str, list[str]] = {}
for word, text in re.findall(r"^```(\w+)\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL):
    DOCUMENTED.setdefault(word, []).append(text)
COMMANDS = re.findall(r"^tune (?!gate )(.*)$", "".join(DOCUMENTED["sh"]), re.MULTILINE)
(GATE,) = re.findall(r"^tune (gate .*)$", "".join(DOCUMENTED["sh"]), re.MULTILINE)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "project")
    yield bench
    bench.close()


@pytest.mark.slow
def test_an_answer_may_come_later_and_a_wrong_one_comes_back_as_a_problem(bench: Bench) -> None:
    folder = bench.root / "exchange/round-01"

    def answers(template: str, space: str = OWN) -> None:
        (folder / "template.cu.j2").write_text(template, encoding="utf-8")
        (folder / "space.yaml").write_text(space, encoding="utf-8")

    exchange = ("--agent", "files", "--exchange", "exchange", "--rounds", 1, "--wait", "0.1s")
    ended = bench.run(bench.new(*exchange))
    assert ended.code == 4
    assert ended.errors == 1
    assert "no answer yet: template.cu.j2 and space.yaml are to be written in " in ended.err
    assert "exchange/round-01/request.md says what is asked" in ended.err
    assert "No result yet" in ended.out
    assert "to go on       tune --resume mine" in ended.out
    assert not bench.results(), "the finals wait for the answer"
    request = (folder / "request.md").read_text("utf-8")
    assert "kPieces = 512" in request and "# Findings about initial" in request
    assert len(request.split()) < 1300, "with the rules, which later requests leave out"

    (folder / "plan.json").write_text(DOCUMENTED["json"][0], encoding="utf-8")
    answers(template_of(8).replace("= sum;", "= sun;"))
    later = bench.resume(None, "--wait", "0.1s")
    assert later.code == 4
    assert "round-01/problem.md says what is asked" in later.err
    problem = (folder / "problem.md").read_text("utf-8")
    assert "template.cu.j2:8: error: 'sun'" in problem
    assert "Write template.cu.j2 and space.yaml again" in problem
    assert (folder / "refused-1/template.cu.j2").exists()
    assert not (folder / "template.cu.j2").exists()

    (template,), (_, space) = DOCUMENTED["cuda"], DOCUMENTED["yaml"]
    answers(template, space)
    last = bench.resume(None, "--wait", "0.1s", "--json", "--quiet")
    assert last.code == 0, last.err
    (made,) = json.loads(last.out)["rounds"]
    assert (made["end"], made["candidate"], len(made["refused"])) == ("searched", "r1", 1)
    assert [path.name for path in folder.glob("refused-*")] == ["refused-1"]
    assert not (folder / "problem.md").exists()
    assert list(bench.candidates()) == ["initial", "r1"]
    (record,) = bench.records()
    assert record.idea is not None and record.idea.change == "multiply once"


@pytest.mark.slow
def test_the_gate_says_before_a_round_what_it_would_say_of_an_answer(bench: Bench) -> None:
    folder = bench.root / "exchange/round-01"
    folder.mkdir(parents=True)
    (template,), (_, space) = DOCUMENTED["cuda"], DOCUMENTED["yaml"]
    kernel = (bench.root / "scale.cu").read_text(encoding="utf-8")

    def gate(template: str, *words: str) -> Ended:
        (folder / "template.cu.j2").write_text(template, encoding="utf-8")
        (folder / "space.yaml").write_text(space, encoding="utf-8")
        return bench.run((*shlex.split(GATE), "--space", "scale.yaml", *words))

    sound = gate(template)
    assert sound.code == 0, sound.err
    assert "configs compile for sm_90a" in sound.out
    assert re.search(r"scale with block=64 items=1 on N=\d+: \d+ registers", sound.out)
    assert "verifying on the CPU, on N=" in sound.out and sound.out.endswith("passed\n")
    sizes = [1028, 4 << 20, 260, 1 << 24]
    named = gate(template, *(word for size in sizes for word in ("--workload", f"N={size}")))
    assert named.code == 0, named.err
    looked_at = re.findall(r"^((?:not )?verified on N=\d+.*)$", named.out, re.MULTILINE)
    assert [line.rstrip() for line in looked_at] == [
        *(f"verified on N={size}" for size in sizes[:3]),
        "not verified on N=16777216: of 134.2 MB, over 64 MiB",
    ]
    assert "multiples of 4" not in named.out
    listed = (bench.root / "scale.yaml").read_text(encoding="utf-8")
    edges = listed.replace("held_out: [{N: 500}]", "held_out: [], edge_cases: [{N: 13}]")
    (bench.root / "scale.yaml").write_text(edges, encoding="utf-8")
    odd = gate(template, "--workload", f"N={1 << 24}")
    (bench.root / "scale.yaml").write_text(listed, encoding="utf-8")
    assert "verified on N=13\n" in odd.out
    assert "all tuned sizes of N are multiples of 4, and none that was verified is" in odd.out
    smaller = gate(template, "--workload", f"N={1 << 24}", "--target", "sm_80")
    assert (smaller.code, "compile for sm_80" in smaller.out) == (0, True), smaller.err
    said = "the smallest size, N=16777216, is of 134.2 MB, over 64 MiB: smaller ones that nobody"
    assert said in smaller.out and re.search(r"^verified on N=\d+$", smaller.out, re.MULTILINE)
    (bench.root / "scale.cu").write_text(kernel.replace("i < N", f"i < N && N >= {1 << 24}"))
    unshown = gate(template, "--workload", f"N={1 << 24}")
    (bench.root / "scale.cu").write_text(kernel)
    assert unshown.code == 5, unshown.err
    assert (
        "not verified: the smallest size, N=16777216, is of 134.2 MB, over 64 MiB, and up to"
        in unshown.out
    )
    spins = "i < N && [&] { volatile int k = 0; while (N == 260) k = k + 1; return true; }()"
    (bench.root / "scale.cu").write_text(kernel.replace("i < N", spins))
    slow = gate(template, "--workload", "N=260", "--workload", "N=1028")
    (bench.root / "scale.cu").write_text(kernel)
    assert slow.code == 0, slow.err
    assert "verified on N=1028\n" in slow.out
    assert "not verified on N=260: too slow on a CPU: the baseline does not run" in slow.out
    some = gate(template.replace("2.0f", "@{ 3.0 if items > 1 else 2.0 }@f"))
    assert some.code == 0 and some.out.endswith("passed\n"), some.err
    assert re.search(r"^a run would drop this: incorrect with .*items=\d", some.out, re.MULTILINE)
    wrong = gate(template.replace("2.0f", "3.0f"))
    assert wrong.code == 2
    assert "refused: incorrect with block=64 items=1 on N=" in wrong.err
    broken = gate(template.replace("2.0f *", "2.0g *"))
    assert (broken.code, "template.cu.j2:7" in broken.err) == (2, True)
    assert gate("... the rest unchanged\n").code == 2
    for name, factor in (("a", "2.0f"), ("b", "3.0f")):
        (folder / name).mkdir()
        (folder / name / "template.cu.j2").write_text(template.replace("2.0f", factor), "utf-8")
        (folder / name / "space.yaml").write_text(space, "utf-8")
    both = bench.run((*shlex.split(GATE), "--space", "scale.yaml"))
    assert both.code == 2
    assert re.search(r"^a:\n.*^passed\nb:\n", both.out, re.DOTALL | re.MULTILINE)
    assert both.err.count("refused: incorrect with block=64 items=1 on N=") == 1
    for name in ("a", "b"):
        shutil.rmtree(folder / name)
    (folder / "space.yaml").unlink()
    missing = bench.run((*shlex.split(GATE), "--space", "scale.yaml"))
    assert (missing.code, "space.yaml cannot be read" in missing.err) == (2, True)


def test_an_exchange_that_is_no_folder_is_told_before_anything_is_measured(bench: Bench) -> None:
    (bench.root / "exchange").write_text("mine", encoding="utf-8")
    ended = bench.run(bench.new("--agent", "files", "--exchange", "exchange"))
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
    assert kernel or resume
    if resume is None:
        settings["space"] = bench.root / "scale.yaml"
        config = new_plan(bench.root / "scale.cu", settings).config
        assert config.agent in ("openai", "files")
        prices = read_prices(config.prices or bench.root / "prices.yaml")
        assert prices.of(config.model or "my-model").output == 10


def test_every_metric_is_documented() -> None:
    listed = re.findall(r"^\| `(\w+)` \| ", DOCS.split("| metric | meaning |")[1], re.MULTILINE)
    assert tuple(listed) == KNOWN_METRICS
