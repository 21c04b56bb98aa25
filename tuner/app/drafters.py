"""Who drafts a search space for a kernel that has none: an extension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tuner import plugins


@dataclass(frozen=True, slots=True)
class ProblemTask:
    """What a problem asks of a kernel: the skeleton to fill in, and all sizes it is to run on."""

    skeleton: str
    sizes: tuple[Mapping[str, int], ...]


@runtime_checkable
class Drafter(Protocol):
    """What a run asks of the extension that drafts."""

    def holds_kernel(self, path: Path) -> bool:
        """Tell whether a file in Python holds a kernel, and is no problem to write one for."""

    def restore_template(self, space: Path) -> Path | None:
        """Lift a missing template again where that gives what the search space has."""

    def draft(
        self,
        kernel: Path,
        names: Sequence[str],
        instantiate: Sequence[str],
        include: Sequence[Path],
        say: Callable[[str], None],
    ) -> Path:
        """Draft a kernel's search space and say what was written.

        Raises `TunerError` where nothing can be drafted or something is left to fill in.
        """

    def read_problem(self, problem: Path) -> ProblemTask:
        """Read what a problem asks of a kernel; raise `KernelError` for what states no problem."""

    def draft_for_problem(self, kernel: Path, problem: Path) -> Path:
        """Draft a kernel's search space beside it, with a problem as its reference.

        Raises `TunerError` as `draft` does.
        """

    def write(self, path: Path, text: str) -> None:
        """Write one file with its folder; raise `InputError` where that is not possible."""


def drafter() -> Drafter:
    """Import the extension that drafts."""
    found: Drafter = plugins.load(plugins.DRAFTERS, "source", Drafter)
    return found
