"""TRL trains on the rounds of a session, with the measured speedup as its reward."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from tuner.extensions.agents.training import REFUSED_REWARD
from tuner.model.trial import INITIAL
from tuner.session.events import Idea, Planned, RoundEnded, RoundOutcome, Said, Tool, ToolsDeclared
from tuner.session.session import Session

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "kernels/sglang/silu_and_mul.cu"
TEMPLATE = ROOT / "templates/sglang/silu_and_mul.cu.j2"
SPACE = ROOT / "search_spaces/sglang/silu_and_mul.yaml"
WORKLOAD = "T=128,D=11008"
DEVICE = "cuda"
MISSING = [
    name for name in ("trl", "torch", "transformers") if importlib.util.find_spec(name) is None
]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(540),
]


def run(*words: object) -> str:
    """Run Python here and return what it printed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    made = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-6000:]
    return made.stdout


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session with a round that was answered in files, and one of a model that called a tool."""
    folder = tmp_path_factory.mktemp("training")
    answer = folder / "exchange" / "round-01"
    answer.mkdir(parents=True)
    (answer / "template.cu.j2").write_text(TEMPLATE.read_text("utf-8"), "utf-8")
    (answer / "space.yaml").write_text(SPACE.read_text("utf-8"), "utf-8")
    made = folder / "session"
    options = {
        "--agent": "files",
        "--exchange": folder / "exchange",
        "--wait": "30s",
        "--rounds": 1,
        "--trials": 2,
        "--workload": WORKLOAD,
        "--device": DEVICE,
        "--session": made,
    }
    run("-m", "tuner", KERNEL, "--quiet", *(word for pair in options.items() for word in pair))
    with Session.open(made) as opened:
        note_a_model(opened, 2)
    return made


def note_a_model(session: Session, number: int) -> None:
    """Record a round of a model, as its agent does."""

    def says(role: str, content: str, **more: str) -> None:
        message = {"role": role, "content": content, **more}
        session.record_event(Said(number, {"type": "message", "message": message}))

    def replies(content: str, *calls: Mapping[str, Any]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = list(calls)
        request = {"model": "m", "tools": ["render"]}
        entry = {"type": "reply", "message": message, "model": "m", "request": request}
        session.record_event(Said(number, entry))

    tool = Tool("render", "Show a config.", {"type": "object"})
    call = {"name": "render", "arguments": '{"config": {"block": 64}}'}
    session.record_event(ToolsDeclared(number, (tool,)))
    says("system", "You make kernels faster.")
    says("user", "the task")
    replies("", {"id": "c0", "type": "function", "function": call})
    says("tool", "the rendered source", tool_call_id="c0")
    replies('{"change": "wider loads"}')
    idea = Idea(INITIAL, "loads are narrow", "wider loads")
    session.record_event(Planned(number, idea))
    says("user", "Now write the template.")
    replies("I cannot.")
    session.record_event(RoundEnded(number, RoundOutcome(None, None)))


def test_trl_takes_the_rounds_and_calls_the_reward_with_kernels_that_are_measured(
    session: Path, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    options = ("--device", DEVICE, "--workload", WORKLOAD, "--out", out)
    run("benchmarks/train_smoke.py", session, "--kernel", KERNEL, *options)
    found = json.loads(out.read_text())
    print(out.read_text())
    assert found["rows"] == {"sft": 2, "grpo": 2}

    sft, grpo = found["sft"], found["grpo"]
    assert len(sft["losses"]) == len(grpo["losses"]) == 2
    assert sft["moved"]
    assert grpo["moved"]
    assert "Now write the template" not in sft["learnt"][1], "the model's own words alone"
    assert "the rendered source" not in sft["learnt"][1]
    assert '"block": 64' in sft["learnt"][1]
    measured = [one for batch in grpo["rewards"] for one in batch if one != REFUSED_REWARD]
    assert len(measured) == 1, "only what the session recorded is a template"
    assert isfinite(measured[0])
