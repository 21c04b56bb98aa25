"""`tune init`: drafts of the files that a kernel needs before it can be tuned."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli.exits import program_name
from tuner.errors import InputError, SpaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuner.draft import Draft


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
    from tuner.draft import draft
    from tuner.source import read_source

    drafted = draft(read_source(kernel_file), kernel, out)
    summary = Summary.of(drafted, _write(drafted, force=force))
    click.echo(json.dumps(asdict(summary)) if as_json else summary.text())


def _write(drafted: Draft, *, force: bool) -> list[Path]:
    files = {drafted.space_path: drafted.space_yaml, drafted.template_path: drafted.template}
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise SpaceError(
            "exists already; nothing was written",
            path=existing[0],
            remedy="--force overwrites it, --out DIR writes elsewhere",
        )
    if not drafted.reference_path.exists():
        files[drafted.reference_path] = drafted.reference
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"cannot be written: {reason.lower()}",
                path=path,
                remedy="--out DIR writes search space and template elsewhere; the reference "
                "belongs beside the kernel",
            ) from error
    return list(files)


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
    def of(cls, drafted: Draft, written: list[Path]) -> Summary:
        """Sum up a draft of which `written` was written."""
        reference = drafted.reference_path
        return cls(
            kernel=drafted.kernel,
            written=[str(path) for path in written],
            kept=[] if reference in written else [str(reference)],
            parameters=list(drafted.parameters),
            blanks=list(_blanks(drafted, with_reference=reference in written)),
            next=f"{program_name()} check {shlex.quote(str(drafted.space_path))}",
        )

    def text(self) -> str:
        """Write it for a terminal."""
        lines = [f"wrote {path}" for path in self.written]
        lines += [f"kept {path}" for path in self.kept]
        lines.append(f"parameters: {', '.join(self.parameters) or 'none found'}")
        lines.append(f"to fill in ({len(self.blanks)}):")
        lines += [f"  {blank.file}:{blank.line}: {blank.what}" for blank in self.blanks]
        lines.append(f"then: {self.next}")
        return "\n".join(lines)


def _blanks(drafted: Draft, *, with_reference: bool) -> Iterator[Blank]:
    from tuner.draft import blanks, reference_blanks

    for line, what in blanks(drafted.space_yaml):
        yield Blank(str(drafted.space_path), line, what)
    if with_reference:
        for line, what in reference_blanks(drafted.reference):
            yield Blank(str(drafted.reference_path), line, what)
