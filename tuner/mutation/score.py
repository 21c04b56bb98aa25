"""The share of mutants caught, and its file in a session's folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.errors import SessionError
from tuner.mutation.examining import Fate, Verdict
from tuner.mutation.subject import Subject
from tuner.session import Session
from tuner.session_records import file_sha

FILE = "mutation.json"


@dataclass(frozen=True, slots=True)
class Score:
    """What became of the mutants of one source.

    `subject` is `baseline` or the config; `mutants` counts all that the source has, of which a
    sample may have been examined. `survivors` are the mutants' identities as text.
    """

    kernel: str
    subject: str
    mutants: int
    killed: int
    survived: int
    equivalent: int
    stillborn: int
    survivors: tuple[str, ...]
    source_sha: str
    date: str
    device: str = "host"

    @property
    def examined(self) -> int:
        """How many mutants were tried."""
        return self.killed + self.survived + self.equivalent + self.stillborn

    @property
    def share(self) -> float | None:
        """The share caught of those that compile and are not equivalent; None where none is."""
        counted = self.killed + self.survived
        return self.killed / counted if counted else None


class _ScoreModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    kernel: str
    subject: str
    mutants: int = Field(ge=0)
    killed: int = Field(ge=0)
    survived: int = Field(ge=0)
    equivalent: int = Field(ge=0)
    stillborn: int = Field(ge=0)
    survivors: tuple[str, ...]
    source_sha: str
    date: str
    device: str


def score_of(subject: Subject, verdicts: Sequence[Verdict], date: str) -> Score:
    """Count the verdicts."""
    counts = Counter(verdict.fate for verdict in verdicts)
    survivors = (v.mutant.identity for v in verdicts if v.fate is Fate.SURVIVED)
    return Score(
        kernel=subject.spec.name,
        subject=subject.name,
        mutants=len(subject.reached),
        killed=counts[Fate.KILLED],
        survived=counts[Fate.SURVIVED],
        equivalent=counts[Fate.EQUIVALENT],
        stillborn=counts[Fate.STILLBORN],
        survivors=tuple(map(str, survivors)),
        source_sha=file_sha(subject.path),
        date=date,
    )


def require_same_sources(folder: Path, subject: Subject) -> None:
    """Raise `SessionError` unless the session was made from the files that are mutated."""
    with Session.open(folder, read_only=True) as session:
        manifest = session.manifest
    files = {subject.spec.source: manifest.source_sha}
    if subject.config is not None:
        files[subject.spec.template] = manifest.template_sha
    changed = [str(path) for path, sha in files.items() if file_sha(path) != sha]
    if changed or dict(manifest.operators) != dict(subject.operators):
        different = ", ".join(changed) or "the operator's choices"
        raise SessionError(
            f"the session is of another kernel than the one to mutate: {different} differ",
            path=folder,
            remedy="leave out --session, or name a session of these files",
        )


def save_score(folder: Path, score: Score) -> None:
    """Write the score into a session's folder, in place of an earlier one."""
    text = _ScoreModel(**asdict(score)).model_dump_json(indent=1) + "\n"
    unfinished = folder / f"{FILE}.{os.getpid()}"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / FILE)


def load_score(folder: Path) -> Score | None:
    """Read a session's score, None where it has none; raise `SessionError` for a damaged one."""
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SessionError(f"cannot be read: {error}", path=path) from error
    try:
        model = _ScoreModel.model_validate_json(text)
    except ValidationError as error:
        raise SessionError(
            "is not the score of `tune mutate`",
            path=path,
            remedy="delete it, and run `tune mutate --session` again",
        ) from error
    return Score(**model.model_dump(exclude={"version"}))
