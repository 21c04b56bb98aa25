"""Draft a kernel's search space, template and reference from its source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.draft.axes import axes_of
from tuner.draft.callers import Host, paths_to
from tuner.draft.host_launch import HostLaunch
from tuner.draft.inference import infer
from tuner.draft.launches import plain_scope, template_launch
from tuner.draft.lifted import lift
from tuner.draft.proposals import propose
from tuner.draft.reference import reference_stub
from tuner.draft.space import Paths, space_yaml
from tuner.errors import KernelError
from tuner.expressions import Value
from tuner.source import KernelFunction, SourceFile
from tuner.source.facts import bare_name


@dataclass(frozen=True, slots=True)
class Draft:
    """Three drafted files with the places where they belong.

    `default` is the config that gives the source as it is, in the order of the parameters, and
    `launched` how the template's launch names the kernel, None where a person has to say.
    """

    kernel: str
    default: Mapping[str, Value]
    launched: str | None
    space_path: Path
    space_yaml: str
    template_path: Path
    template: str
    reference_path: Path
    reference: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the proposed parameters."""
        return tuple(self.default)


def draft(
    source: SourceFile,
    kernel: str | None = None,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
) -> Draft:
    """Draft the files for one kernel of `source`, below `folder` (default: here).

    `options` are those that the compiler needs for it.

    `kernel` may be left out where the file has one kernel, or launches only one of them; raises
    `KernelError` with the list otherwise.
    """
    launch = HostLaunch.of(source, _chosen(source, kernel))
    stem = source.path.stem
    root = folder or Path()
    space_path = root / "search_spaces" / f"{stem}.yaml"
    template_path = root / "templates" / f"{stem}.cu.j2"
    reference_path = source.path.with_suffix(".py")
    hosts = tuple(Host(source, path) for path in paths_to(launch))
    axes = axes_of(launch, hosts, plain_scope(launch))
    proposals = propose(launch, tuple(axes.names.values()))
    inference = infer(launch, axes, proposals.choices, hosts)
    paths = Paths(*(_relative(p, space_path) for p in (source.path, reference_path, template_path)))
    return Draft(
        kernel=launch.kernel.name,
        default={choice.name: choice.default for choice in proposals.choices},
        launched=template_launch(launch, axes, proposals).kernel,
        space_path=space_path,
        space_yaml=space_yaml(launch, proposals, inference, paths, options),
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
