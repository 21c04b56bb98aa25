"""What `tune mutate` found of a session's check, as its file in the session says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.model.errors import SessionError
from tuner.process.files import read_text

FILE = "mutation.json"
MOST_SCORE_BYTES = 1 << 20


class MutationScore(BaseModel):
    """What became of the mutants of one source.

    `subject` is `baseline` or the config; `mutants` counts all that the source has, of which a
    sample may have been examined. `survivors` are the mutants' identities as text. A run's own
    score says in how many `ways` it would have broken the kernel if there had been time, in how
    many `seconds` it was made, and the survivors' `places`: line, change and text.
    """

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
    device: str = "host"
    ways: int | None = Field(default=None, ge=0)
    seconds: float = Field(default=0.0, ge=0.0)
    places: tuple[str, ...] = ()

    @property
    def examined(self) -> int:
        return self.killed + self.survived + self.equivalent + self.stillborn

    @property
    def share(self) -> float | None:
        """The share caught of those that compile and are not equivalent; None where none is."""
        counted = self.killed + self.survived
        return self.killed / counted if counted else None

    @property
    def caught_text(self) -> str:
        """Say how many of the broken versions are caught, and where the time ended before all."""
        broken = self.killed + self.survived
        text = f"catches {self.killed} of {broken} broken versions"
        if self.ways is not None and broken < self.ways:
            text += f" (there was no time for {self.ways - broken} more)"
        return text


def load_score(folder: Path) -> MutationScore | None:
    """Read a session's score, None where it has none; raise `SessionError` for a damaged one."""
    path = folder / FILE
    try:
        text = read_text(path, MOST_SCORE_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror}", path=path) from error
    try:
        return MutationScore.model_validate_json(text)
    except ValidationError as error:
        remedy = "delete it, and run `tune mutate --session` again"
        raise SessionError("is not the score of `tune mutate`", path=path, remedy=remedy) from error


def share_text(score: MutationScore) -> str:
    """Write the share: `97.1 %`; never 100 % where a mutant survived."""
    if score.share is None:
        return "no share"
    return f"{min(100 * score.share, 99.9) if score.survived else 100:.1f} %"
