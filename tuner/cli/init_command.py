"""`tune init`: drafts of the files that a kernel needs before it can be tuned."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.exits import program_name

if TYPE_CHECKING:
    from tuner.draft import Drafted


@click.command("init")
@click.argument("kernel_file", metavar="KERNEL.cu", type=click.Path(path_type=Path))
@click.option("--kernel", metavar="NAME", help="The kernel, where the file has several.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where search_spaces/ and templates/ are.  [default: here]",
)
@click.option("--force", is_flag=True, help="Overwrite drafts that exist; never a reference.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(kernel_file: Path, kernel: str | None, out: Path, force: bool, as_json: bool) -> None:
    """Draft a search space, a template and a reference for KERNEL.cu.

    What the source says is filled in: the arguments, the launch, the constants that look tunable.
    What it does not say is marked FILL IN. KERNEL.cu itself is not changed.
    """
    from tuner.draft import draft_files

    summary = Summary.of(draft_files(kernel_file, out, kernel=kernel, force=force))
    click.echo(json.dumps(asdict(summary)) if as_json else summary.text())


@dataclass(frozen=True, slots=True)
class Blank:
    """One thing that a person has to fill in."""

    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What was drafted, in the shape of the JSON object."""

    kernel: str
    written: list[str]
    kept: list[str]
    parameters: list[str]
    blanks: list[Blank]
    next: str

    @classmethod
    def of(cls, drafted: Drafted) -> Summary:
        """Sum up what became of a draft."""
        return cls(
            kernel=drafted.kernel,
            written=[str(path) for path in drafted.written],
            kept=[str(path) for path in drafted.kept],
            parameters=list(drafted.parameters),
            blanks=[Blank(str(blank.file), blank.line, blank.what) for blank in drafted.blanks],
            next=f"{program_name()} check {shlex.quote(str(drafted.space))}",
        )

    def text(self) -> str:
        """Write it for a terminal."""
        lines = [f"wrote {path}" for path in self.written]
        lines += [f"kept {path}" for path in self.kept]
        lines.append(f"parameters: {', '.join(self.parameters) or 'none found'}")
        lines.append(f"to fill in ({len(self.blanks)}):" if self.blanks else "nothing to fill in")
        lines += [f"  {blank.file}:{blank.line}: {blank.what}" for blank in self.blanks]
        lines.append(f"then: {self.next}")
        return "\n".join(lines)
