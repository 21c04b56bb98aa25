"""Drafts from production sources: the kernel is extracted into a unit of its own first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.compiler.base import Compiler, CompileRequest
from tuner.draft.drafting import Draft, draft
from tuner.draft.extract import Extraction, extract, failure, is_plain, parsed_include, relocated
from tuner.draft.files import Drafted, drafted, write_new
from tuner.draft.translate import Scope, translate
from tuner.model.errors import KernelError, TunerError
from tuner.source import hide_host_code, read_source
from tuner.source.facts import LineIndex, bare_name

# sm_90a has every instruction that a kernel may hold; a draft is for any architecture
_ARCHITECTURE = "sm_90a"
_NEWER = "--std=c++20"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a draft: kernels and instantiations by name, folders of headers."""

    kernels: tuple[str, ...] = ()
    instantiate: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    @property
    def needs_extraction(self) -> bool:
        """Whether only an extraction can give what is asked."""
        return bool(self.instantiate or self.folders) or len(self.kernels) > 1


def draft_source(
    path: Path,
    folder: Path = Path(),
    asked: Asked | None = None,
    *,
    compiler: Callable[[], Compiler],
    force: bool = False,
) -> Drafted:
    """Draft from a source as it is: from the file itself, or from what is extracted of it.

    Extracted is where a file includes headers of its project or of a framework, and where NVRTC
    does not compile it without its host code. The unit is written below `folder` as
    `kernels/NAME.cu`. `compiler` is called where one is needed. Raises `KernelError` where the
    kernel cannot be extracted, and what `draft_files` raises.
    """
    asked = asked or Asked()
    if asked.needs_extraction or is_production(path):
        return _extracted(path, folder, asked, compiler(), force)
    kernel = next(iter(asked.kernels), None)
    made = draft(read_source(path), kernel, folder)
    if _compiles(path, made, compiler()):
        return drafted(made, force=force)
    try:
        return _extracted(path, folder, asked, compiler(), force)
    except KernelError:
        # no better for it: what is wrong with the file itself, `tune check` tells
        return drafted(made, force=force)


def is_production(path: Path) -> bool:
    """Whether a file includes more than the toolkit's headers and the host compiler's."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return False
    found = (parsed_include(line) for line in _INCLUDE.findall(text))
    return any(parsed is not None and not is_plain(*parsed) for parsed in found)


def compute(text: str, definitions: Mapping[str, str], types: Mapping[str, str]) -> str | None:
    """Compute a whole number of the source, None where that cannot be told."""
    value = translate(text, Scope(definitions=definitions, types=types))
    return value if value is not None and re.fullmatch(r"-?\d+", value) else None


def _compiles(path: Path, made: Draft, compiler: Compiler) -> bool:
    source = hide_host_code(read_source(path))
    names = (made.launched,) if made.launched is not None else ()
    request = CompileRequest(source, names, _ARCHITECTURE)
    return compiler.submit(request).result().ok


def _extracted(path: Path, folder: Path, asked: Asked, compiler: Compiler, force: bool) -> Drafted:
    target = _target(path, folder)
    unit = extract(
        path, target, compute,
        kernels=asked.kernels, instantiate=asked.instantiate, folders=asked.folders,
    )  # fmt: skip
    options = _options(unit, compiler)
    told = tuple(map(str, unit.left_out))
    if len(unit.instances) > 1:
        write_new({target: unit.unit}, force=force)
        names = ", ".join(instance.kernel.name for instance in unit.instances)
        return Drafted(names, None, (target,), (), (), (), told, _by_hand(unit))
    made = draft(unit.source, unit.instances[0].kernel.name, folder, options)
    first = LineIndex(unit.unit).at(len(unit.unit) - 1) + 1
    made = replace(made, space_yaml=relocated(made.space_yaml, unit.places, first))
    done = drafted(made, force=force, also={target: unit.unit})
    return replace(done, left_out=told, notes=_notes(unit))


def _target(path: Path, folder: Path) -> Path:
    target = folder / "kernels" / f"{path.stem}.cu"
    if target.resolve() == path.resolve():
        return target.with_name(f"{path.stem}_extracted.cu")
    return target


def _options(unit: Extraction, compiler: Compiler) -> tuple[str, ...]:
    # the newer language only where the older one does not do
    error = ""
    for options in ((), (_NEWER,)):
        request = CompileRequest(unit.unit, unit.names, _ARCHITECTURE, options)
        result = compiler.submit(request).result()
        if result.ok:
            return options
        error = result.error
    raise failure(unit, error)


def _notes(unit: Extraction) -> tuple[str, ...]:
    instance = unit.instances[0]
    notes = [f"instantiation: {instance.name}"] if instance.arguments else []
    if instance.others:
        notes.append(f"--instantiate takes another that is launched: {', '.join(instance.others)}")
    notes += [f"{o.struct} {o.parameter} became one parameter for each member" for o in unit.opened]
    return tuple(notes)


def _by_hand(unit: Extraction) -> tuple[str, ...]:
    launches: list[str] = []
    for instance, name in zip(unit.instances, unit.names, strict=True):
        site = next(
            (s for s in unit.source.launches if bare_name(s.kernel) == instance.kernel.name), None
        )
        place = unit.places[site.line - 1] if site is not None else None
        said = ""
        if site is not None and place is not None:
            grid, block = ", ".join(site.grid), ", ".join(site.block)
            said = f"; grid {grid}; block {block}; shared memory {site.shared}"
            said += f" ({place[0]}:{place[1]})"
        launches.append(f"launch {len(launches) + 1}: {name}{said}")
    return (
        f"{len(unit.instances)} kernels make this operator, and a draft is of one: the search "
        "space, the template and the reference are to be written by hand",
        *launches,
        "a search space hands every launch the same arguments: give all kernels one parameter list",
    )


def require_one(made: Drafted) -> Path:
    """Give the drafted search space; raise where a source gave none."""
    if made.space is None:
        raise TunerError("\n  ".join(made.notes))
    return made.space
