"""`tune init`: drafts of the files that a kernel needs before it can be tuned."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.app.environment import program_name

if TYPE_CHECKING:
    from tuner.draft.space import Drafted


@click.command("init")
@click.argument("kernel_file", metavar="KERNEL.cu", type=click.Path(path_type=Path))
@click.option(
    "--kernel",
    metavar="NAME[,NAME]",
    help="The kernel, or the kernels, where the file has several.",
)
@click.option(
    "--instantiate",
    metavar="KERNEL<...>",
    multiple=True,
    help="Which instantiation of a template to tune, such as 'scale<__nv_bfloat16, 8>'.",
)
@click.option(
    "--include",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Where the project's headers are; repeatable.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where search_spaces/ and templates/ are.  [default: here]",
)
@click.option("--force", is_flag=True, help="Overwrite drafts that exist; never a reference.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    kernel_file: Path,
    kernel: str | None,
    instantiate: tuple[str, ...],
    include: tuple[Path, ...],
    out: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Draft a search space, a template and a reference for KERNEL.cu.

    What the source says is filled in: the arguments, the launch, the constants that look tunable.
    What it does not say is marked FILL IN. KERNEL.cu itself is not changed.

    Where KERNEL.cu includes headers of its project or of a framework, the kernel and what it needs
    are extracted first, into kernels/KERNEL.cu.
    """
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.draft.drafting import Asked, draft_source

    names = tuple(name.strip() for name in (kernel or "").split(",") if name.strip())
    asked = Asked(names, instantiate, include)
    with NvrtcPool(1, cache=Cache()) as pool:
        made = draft_source(kernel_file, out, asked, compiler=lambda: pool, force=force)
    summary = Summary.of(made)
    click.echo(json.dumps(summary.as_object()) if as_json else summary.text())


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
    left_out: list[str]
    notes: list[str]
    next: str | None

    @classmethod
    def of(cls, drafted: Drafted) -> Summary:
        """Sum up what became of a draft."""
        return cls(
            kernel=drafted.kernel,
            written=[str(path) for path in drafted.written],
            kept=[str(path) for path in drafted.kept],
            parameters=list(drafted.parameters),
            blanks=[Blank(str(blank.file), blank.line, blank.what) for blank in drafted.blanks],
            left_out=list(drafted.left_out),
            notes=list(drafted.notes),
            next=_check(drafted.space),
        )

    def as_object(self) -> dict[str, object]:
        """Make the object that `--json` prints; what tells of an extraction only where one was."""
        extraction = ("left_out", "notes")
        return {k: v for k, v in asdict(self).items() if v or k not in extraction}

    def text(self) -> str:
        """Write it for a terminal."""
        lines = [f"wrote {path}" for path in self.written]
        lines += [f"kept {path}" for path in self.kept]
        lines += [f"left out ({len(self.left_out)}):"] if self.left_out else []
        lines += [f"  {text}" for text in self.left_out]
        lines += self.notes
        if self.next is None:
            return "\n".join(lines)
        lines.append(f"parameters: {', '.join(self.parameters) or 'none found'}")
        lines.append(f"to fill in ({len(self.blanks)}):" if self.blanks else "nothing to fill in")
        lines += [f"  {blank.file}:{blank.line}: {blank.what}" for blank in self.blanks]
        lines.append(f"then: {self.next}")
        return "\n".join(lines)


def _check(space: Path | None) -> str | None:
    return None if space is None else f"{program_name()} check {shlex.quote(str(space))}"
