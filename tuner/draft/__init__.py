"""Drafts for a kernel that has no search space yet: its YAML, its template, its reference."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tuner.draft.blanks import blanks, reference_blanks, require_filled
from tuner.draft.host_launch import HostLaunch
from tuner.draft.launches import sizes
from tuner.draft.lifted import lift
from tuner.draft.proposals import propose
from tuner.draft.reference import reference_stub
from tuner.draft.space import BLANK, MARK, Paths, space_yaml
from tuner.errors import KernelError
from tuner.source import KernelFunction, SourceFile
from tuner.source.facts import bare_name


@dataclass(frozen=True, slots=True)
class Draft:
    """Three drafted files with the places where they belong."""

    kernel: str
    parameters: tuple[str, ...]
    space_path: Path
    space_yaml: str
    template_path: Path
    template: str
    reference_path: Path
    reference: str


def draft(source: SourceFile, kernel: str | None = None, folder: Path | None = None) -> Draft:
    """Draft the files for one kernel of `source`, below `folder` (default: here).

    `kernel` may be left out where the file has one kernel, or launches only one of them; raises
    `KernelError` with the list otherwise.
    """
    launch = HostLaunch.of(source, _chosen(source, kernel))
    stem = source.path.stem
    root = folder or Path()
    space_path = root / "search_spaces" / f"{stem}.yaml"
    template_path = root / "templates" / f"{stem}.cu.j2"
    reference_path = source.path.with_suffix(".py")
    axes = sizes(launch)
    proposals = propose(launch, tuple(axes.values()))
    paths = Paths(*(_relative(p, space_path) for p in (source.path, reference_path, template_path)))
    return Draft(
        kernel=launch.kernel.name,
        parameters=tuple(choice.name for choice in proposals.choices),
        space_path=space_path,
        space_yaml=space_yaml(launch, proposals, axes, paths),
        template_path=template_path,
        template=lift(source, proposals),
        reference_path=reference_path,
        reference=reference_stub(launch.kernel, stem),
    )


def _chosen(source: SourceFile, name: str | None) -> KernelFunction:
    if name is not None:
        return source.kernel(name)
    names = list(dict.fromkeys(kernel.name for kernel in source.kernels))
    launched = {bare_name(site.kernel) for site in source.launches} & set(names)
    if len(names) == 1 or len(launched) == 1:
        return source.kernel(names[0] if len(names) == 1 else launched.pop())
    raise KernelError(
        f"has {len(names)} kernels: {', '.join(names)}",
        path=source.path,
        remedy=f"choose one, such as --kernel {names[0]}",
    )


def _relative(path: Path, space_path: Path) -> str:
    start = space_path.resolve().parent
    return Path(os.path.relpath(path.resolve(), start)).as_posix()


__all__ = ["BLANK", "MARK", "Draft", "blanks", "draft", "reference_blanks", "require_filled"]
