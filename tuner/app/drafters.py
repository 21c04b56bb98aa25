"""Who drafts a search space for a kernel that has none: an extension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from tuner import plugins


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


def drafter() -> Drafter:
    """Import the extension that drafts."""
    found: Drafter = plugins.load(plugins.DRAFTERS, "source", Drafter)
    return found
