"""Draft a kernel's search space, template and reference from its source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.draft.axes import axes_of
from tuner.draft.host_values import Host, HostLaunch, paths_to
from tuner.draft.inference import infer
from tuner.draft.launches import plain_scope, template_launch
from tuner.draft.proposals import Proposals, propose
from tuner.draft.space import Paths, space_yaml
from tuner.model.errors import KernelError
from tuner.model.expressions import Value
from tuner.source import Edit, KernelFunction, SourceFile, apply_edits, host_edits
from tuner.source.facts import bare_name

# what a template would read as its own syntax
_DELIMITER = re.compile(r"@\{|\}@|^[ \t]*//%|/\*%|%\*/|/\*#|#\*/", re.MULTILINE)


def lift(source: SourceFile, proposals: Proposals) -> str:
    """Write the source as a template; lines keep their numbers where blank lines allow it."""
    lifted = (edit for choice in proposals.choices for edit in choice.edits)
    escapes = (_spaced(match) for match in _DELIMITER.finditer(source.own_text))
    # where host code is apart already, none of it is left to guard
    guards = host_edits(source) if source.host_from is None else ()
    return apply_edits(source.own_text, [*guards, *proposals.edits, *lifted, *escapes])


def _spaced(match: re.Match[str]) -> Edit:
    # they occur in comments only, where a space changes nothing
    at = match.end() - 1
    return Edit(at, at, " ")


# How the body of a stub begins: what tells a draft from a reference.
UNWRITTEN = 'raise ValueError("fill in reference()'

_STUB = '''"""The float64 reference of {kernel}: what its outputs must be."""


def reference(xp, inputs, axes, **operator):
    """Return every output by name, computed in float64.

    xp        numpy or cupy
    inputs    the input arrays by name{names}
    axes      the sizes of the workload by name
    operator  the operator's choices, where the search space declares any

    Where some inputs make no sense, a function inputs(xp, rng, axes, fill) beside this one draws
    others (docs/trust.md).
    """
    raise ValueError("fill in reference() in {stem}.py: return {{{outputs}}} in float64")
'''


def reference_stub(kernel: KernelFunction, stem: str) -> str:
    """Write the stub for one kernel."""
    arrays = [parameter for parameter in kernel.parameters if parameter.pointers]
    inputs = ", ".join(parameter.name for parameter in arrays if parameter.const)
    outputs = ", ".join(f"'{p.name}': ..." for p in arrays if not p.const) or "'name': ..."
    names = f": {inputs}" if inputs else ""
    return _STUB.format(kernel=kernel.name, stem=stem, names=names, outputs=outputs)


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
