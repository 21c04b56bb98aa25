"""A kernel that an agent can make faster on the CPU, scripted models for it, and `tune` there.

The kernel adds up many small pieces of what it could compute at once: fewer pieces are faster, so
that each refactoring moves a time that is really measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from agent_doubles import answer, plan
from click.testing import CliRunner
from fake_openai import MODEL, FakeOpenAI, Request
from faults import ON_HOST, started

from tuner.cli import cli
from tuner.session.events import Event, Said
from tuner.session.rounds import RoundRecord, history
from tuner.session.session import Session

_Event = TypeVar("_Event", bound=Event)

FILES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (Path(__file__).parent / "pieces").iterdir()
}
FILES["scale.py"] = 'def reference(xp, inputs, axes):\n    return {"out": 2.0 * inputs["in"]}\n'
TEMPLATE, SPACE = FILES["scale.cu.j2"], FILES["scale.yaml"]
# The sections that are an agent's.
OWN = SPACE[SPACE.index("parameters:") :]


def template_of(pieces: int) -> str:
    return TEMPLATE.replace("kPieces = 512", f"kPieces = {pieces}")


def good(pieces: int = 8) -> str:
    return answer(template_of(pieces), OWN)


def planned(factor: float = 0.3, **changes: Any) -> str:
    fields: dict[str, Any] = {
        "hypothesis": "each of the pieces waits for the one before",
        "change": "add fewer pieces",
        "expectations": [{"metric": "time_us", "factor": factor, "workload": None}],
    }
    return plan(**fields | changes)


def fewer_pieces(request: Request) -> str:
    """Take the base's template out of what was said and divide its pieces by eight."""
    shown = re.search(r"^# Candidate .*?```cuda\n(.*?)```.*?```yaml", request.said, re.S | re.M)
    assert shown is not None, request.said
    pieces = re.search(r"kPieces = (\d+)", shown[1])
    assert pieces is not None
    return answer(shown[1].replace(pieces[0], f"kPieces = {int(pieces[1]) // 8}"), OWN)


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> int:
        return self.err.count("Error: ")


@dataclass
class Bench:
    """The project in a folder of its own, and the program as a process there."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        for name, text in FILES.items():
            (self.root / name).write_text(text, encoding="utf-8")

    @property
    def folder(self) -> Path:
        return self.root / "mine"

    def new(self, *words: object) -> tuple[str, ...]:
        """Write the command of a new session with few trials."""
        first = ("scale.cu", *ON_HOST, "--session", "mine")
        return tuple(map(str, (*first, "--searcher", "random", "--trials", 2, *words)))

    def asking(self, *words: object) -> tuple[str, ...]:
        """Write the command of a new session with the fake server's model."""
        return self.new("--agent", "openai", "--model", MODEL, "--policy", "greedy", *words)

    def environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")}
        return {**own, "CUDA_VISIBLE_DEVICES": "", **(more or {})}

    def start(
        self, words: tuple[str, ...], environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = started(*words, folder=self.root, environment=self.environment(environ))
        self.started.append(process)
        return process

    def run(self, words: tuple[str, ...], environ: Mapping[str, str] | None = None) -> Ended:
        """Run `tune` to its end in this process, which has loaded already what it needs."""
        own = patch.dict(os.environ, self.environment(environ), clear=True)
        with contextlib.chdir(self.root), own:
            done = CliRunner().invoke(cli, words, prog_name="tune")
        assert isinstance(done.exception, SystemExit | None), done.exc_info
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(done.exit_code, done.stdout, done.stderr)

    def ended(self, process: subprocess.Popen[str], timeout_s: float = 120.0) -> Ended:
        out, err = process.communicate(timeout=timeout_s)
        assert "Traceback" not in err, err
        return Ended(process.returncode, out, err)

    def ask(self, server: FakeOpenAI, *words: object) -> Ended:
        return self.run(self.asking(*words), server.environ)

    def resume(self, environ: Mapping[str, str] | None = None, *words: object) -> Ended:
        return self.run(("--resume", "mine", *map(str, words)), environ)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def candidates(self) -> dict[str, str | None]:
        with Session.open(self.folder, read_only=True) as session:
            return {one.name: one.parent for one in session.candidates()}

    def templates(self) -> dict[str, str]:
        with Session.open(self.folder, read_only=True) as session:
            return {one.name: one.template_text for one in session.candidates()}

    def tried(self) -> set[str]:
        with Session.open(self.folder, read_only=True) as session:
            return {trial.candidate for trial in session.trials(stage=None)}

    def events(self, kind: type[_Event], number: int | None = None) -> list[_Event]:
        with Session.open(self.folder, read_only=True) as session:
            return session.events(kind, number)

    def records(self) -> tuple[RoundRecord, ...]:
        with Session.open(self.folder, read_only=True) as session:
            return history(session)

    def said(self, number: int | None = None) -> list[dict[str, Any]]:
        return [dict(event.entry) for event in self.events(Said, number)]

    def results(self) -> dict[str, str]:
        with Session.open(self.folder, read_only=True) as session:
            return {one.workload.key: one.candidate for one in session.results()}

    def bytes_of_all_files(self) -> bytes:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return b"".join(path.read_bytes() for path in files)
