"""The files of a draft, written where they belong; what exists is not written over unasked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.draft.blanks import blanks, reference_blanks
from tuner.draft.drafting import Draft, draft
from tuner.model.errors import InputError, SpaceError
from tuner.source import read_source
from tuner.source.facts import bare_name
from tuner.space.choices import check_names, search_space
from tuner.space.schema import validated
from tuner.space.yaml import read


@dataclass(frozen=True, slots=True)
class Blank:
    """One thing that a person has to fill in."""

    file: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Drafted:
    """What became of a draft: the files written, those kept as they were, and what is left.

    `space` is the search space among them, None where a person has to write it; `parameters` are
    what it proposes to tune. Of a source whose kernel was extracted, `left_out` says what the unit
    does not hold and why, and `notes` what else there is to know.
    """

    kernel: str
    space: Path | None
    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    parameters: tuple[str, ...]
    blanks: tuple[Blank, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def require_filled(self, check: str) -> None:
        """Raise `InputError` that lists every blank; `check` is the command that comes next."""
        if not self.blanks:
            return
        listed = "".join(f"{blank}\n  " for blank in self.blanks)
        count = "1 blank is" if len(self.blanks) == 1 else f"{len(self.blanks)} blanks are"
        raise InputError(
            f"{count} left in the draft for {self.kernel}, where the source does not say enough",
            remedy=f"{listed}fill in what they ask for, then: {check}",
        )


def draft_files(
    kernel_path: Path, folder: Path = Path(), *, kernel: str | None = None, force: bool = False
) -> Drafted:
    """Draft a search space, a template and a reference for a source, and write them.

    The first two go below `folder`; where either exists nothing is written and `SpaceError` is
    raised, unless `force` says to write over them. A reference that exists beside the source is
    kept always. `kernel` chooses among several. Raises `KernelError` for a source without the
    kernel, `InputError` for a place that cannot be written.
    """
    return drafted(draft(read_source(kernel_path), kernel, folder), force=force)


def drafted(made: Draft, *, force: bool, also: Mapping[Path, str] | None = None) -> Drafted:
    """Write a draft, and the files `also` that belong to it, as `draft_files` does."""
    files = {**(also or {}), made.space_path: made.space_yaml, made.template_path: made.template}
    kept = made.reference_path.exists()
    reference = {} if kept else {made.reference_path: made.reference}
    write_new(files, force=force, more=reference)
    files |= reference
    return Drafted(
        kernel=made.kernel,
        space=made.space_path,
        written=tuple(files),
        kept=(made.reference_path,) if kept else (),
        parameters=made.parameters,
        blanks=tuple(_left(made)),
    )


def write_new(
    files: Mapping[Path, str], *, force: bool, more: Mapping[Path, str] | None = None
) -> None:
    """Write files that must not be there yet unless `force`, then `more`, or nothing at all."""
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise SpaceError(
            "exists already; nothing was written",
            path=existing[0],
            remedy="with `tune init`, --force overwrites it and --out DIR writes elsewhere",
        )
    for path, text in {**files, **(more or {})}.items():
        _write(path, text)


def restore_template(space: Path) -> Path | None:
    """Lift the template of a search space again where its file is missing; return where it is.

    That is done only where lifting the source gives the parameters, the default and the kernel's
    launch that the space has; else, and where the template is there, nothing is and None returned.
    Raises `InputError` for a space or a source that cannot be read.
    """
    document = read(space)
    model = validated(document)
    check_names(document, model)
    declared = search_space(document, model)
    template, path = space.parent / model.template, space.parent / model.source
    if template.exists() or not path.is_file() or len(model.launch) != 1:
        return None
    source, launched = read_source(path), model.launch[0].kernel
    if bare_name(launched) not in {kernel.name for kernel in source.kernels}:
        return None
    made = draft(source, launched)
    same = made.parameters == declared.names and made.default == dict(declared.default or {})
    if not same or made.launched not in (None, launched):
        return None
    _write(template, made.template)
    return template


def _left(made: Draft) -> Iterator[Blank]:
    for line, what in blanks(made.space_yaml):
        yield Blank(made.space_path, line, what)
    text = made.reference
    if made.reference_path.is_file():
        text = made.reference_path.read_text(encoding="utf-8", errors="replace")
    for line, what in reference_blanks(text):
        yield Blank(made.reference_path, line, what)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be written: {reason.lower()}",
            path=path,
            remedy="`tune init --out DIR` writes search space and template elsewhere; the "
            "reference belongs beside the kernel",
        ) from error
