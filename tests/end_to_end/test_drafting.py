"""From a source and a reference alone: drafted, tuned on the CPU, and widened without a model."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copy

import pytest
from click.testing import CliRunner, Result
from slow import mostly_slow

from tuner.cli import cli
from tuner.extensions.agents.base import BriefedCandidate, Briefing
from tuner.extensions.agents.widen_ranges import WideningAgent
from tuner.extensions.draft.drafting import draft, write_draft
from tuner.model.trial import Finding
from tuner.source import read_source
from tuner.space.load import load_definition
from tuner.space.template import Template

DATA = Path(__file__).parents[1] / "unit" / "data"
REFERENCES = {
    "axpby": """\
def reference(xp, inputs, axes):
    return {"z": 2.5 * inputs["x"] - 0.5 * inputs["y"]}
""",
    "transpose": """\
def reference(xp, inputs, axes):
    return {"out": inputs["in"].T}
""",
    "blur": """\
def reference(xp, inputs, axes):
    x = inputs["src"].astype("int64")
    left = xp.concatenate([x[:, :1], x[:, :-1]], axis=1)
    right = xp.concatenate([x[:, 1:], x[:, -1:]], axis=1)
    return {"dst": (left + x + right) // 3}
""",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")


def source(folder: Path, name: str) -> Path:
    copy(DATA / f"{name}.cu", folder)
    (folder / f"{name}.py").write_text(REFERENCES[name])
    return Path(f"{name}.cu")


@pytest.mark.parametrize("name", mostly_slow(REFERENCES, ["transpose"], []))
def test_a_source_with_a_reference_is_tuned_without_any_edit(here: Path, name: str) -> None:
    kernel = source(here, name)
    before = kernel.read_bytes()
    made = write_draft(draft(read_source(kernel)))
    assert made.blanks == ()
    done = run(
        kernel,
        *("--device", "host", "--no-mutants", "--trials", "2"),
        *("--seed", "1", "--json", "--quiet"),
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["trials"]["correct"] >= 2
    assert set(found["workloads"][0]["config"]) == set(made.parameters)
    assert kernel.read_bytes() == before


def test_the_literal_agent_widens_a_drafted_space_that_still_loads(here: Path) -> None:
    made = write_draft(draft(read_source(source(here, "transpose"))))
    spec = load_definition(made.space).spec
    member = BriefedCandidate("a", None, spec.template.read_text(), made.space.read_text())
    edge = Finding("edge", "16 wins.", "Add 32.", 16, parameter="block_rows")
    briefing = Briefing(1, "", "", "a", (member,), (edge,))
    conversation = WideningAgent().converse(briefing, None, None)  # type: ignore[arg-type]
    assert conversation.plan() is not None
    answer = conversation.refactor()
    made.space.write_text(answer.space)
    spec.template.write_text(answer.template)
    wider = load_definition(made.space)
    assert {p.name: p.values for p in wider.space.parameters}["block_rows"] == (4, 8, 16, 32)
    Template.load(spec.template, spec.include_dirs).check(wider.space, wider.spec)
    checked = run("check", made.space, "--sample", "2")
    assert checked.exit_code == 0, checked.output
