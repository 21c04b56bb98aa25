"""Draft a kernel's search space, template and reference: from a source, or what is extracted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tuner.app.locate import is_for
from tuner.compiler.base import Compiler, CompileRequest
from tuner.extensions.draft.choices import propose
from tuner.extensions.draft.constraints import pin_blocks, without_unproved
from tuner.extensions.draft.extract.conditions import guard_of
from tuner.extensions.draft.extract.extraction import Extraction, Memo, Wanted, extract
from tuner.extensions.draft.extract.failures import NotCompiledError, failure
from tuner.extensions.draft.extract.macros import is_inline
from tuner.extensions.draft.extract.names import macros_in
from tuner.extensions.draft.extract.project import siblings
from tuner.extensions.draft.extract.reading import is_plain, parsed_include
from tuner.extensions.draft.extract.unit import relocate_lines
from tuner.extensions.draft.host_path import Host
from tuner.extensions.draft.host_values import HostLaunch, paths_to
from tuner.extensions.draft.inference import infer
from tuner.extensions.draft.launches import axes_of, template_launch
from tuner.extensions.draft.loops import WORK, with_loops
from tuner.extensions.draft.observed import Observed, observe
from tuner.extensions.draft.problems.kernel import axes_for, inference_for, kernel_name, skeleton
from tuner.extensions.draft.problems.statement import statement_of, states_problem
from tuner.extensions.draft.python.source import read_python
from tuner.extensions.draft.python.tuning_script import NO_SCRIPT, TuningScript, read_tuning_script
from tuner.extensions.draft.space import Drafted, reference_stub, space_yaml, write, write_new
from tuner.extensions.draft.strides import with_strides
from tuner.extensions.draft.tensor_maps import split_maps, with_maps
from tuner.extensions.draft.tunables import Proposals
from tuner.model.errors import KernelError, TunerError
from tuner.model.expressions import Expression, Value
from tuner.model.languages import HIP, language_of
from tuner.process.files import read_text
from tuner.source import hide_host_code, read_source
from tuner.source.facts import IDENTIFIER, KernelFunction, SourceFile, bare_name
from tuner.source.host import Edit, apply_edits, host_edits
from tuner.source.kernels import element_dtype
from tuner.source.reader import source_text
from tuner.source.syntax import mask
from tuner.source.unsupported import require_arguments, require_body, require_closed
from tuner.space.blanks import blanks_in, require_filled
from tuner.space.choices import check_names, search_space
from tuner.space.schema import validate_space
from tuner.space.yaml import read

# what a template would read as its own syntax
_DELIMITER = re.compile(r"@\{|\}@|^[ \t]*//%|/\*%|%\*/|/\*#|#\*/", re.MULTILINE)
# sm_90a has every instruction that a kernel may hold; a draft is for any architecture
_ARCHITECTURE = "sm_90a"
_MOST_LISTED = 6
_MOST_TRIED = 6
_HOLE = re.compile(r"@\{ (.*?) \}@")
_NEWER = "--std=c++20"
_ELSE = re.compile(r"^[ \t]*#[ \t]*(?:else|elif)\b", re.MULTILINE)
_WHOLE_NUMBER = re.compile(r"(?<![\w.])\d{1,18}(?![\w.])")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Draft:
    """Three drafted files with their places.

    `default` is the config that gives the source as it is, `widest` the one in which a thread does
    most at once; `launched` is how the template's launch names the kernel, None where a person has
    to say. `write_space` writes the search space with what a run has shown of it.
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
    widest: Mapping[str, Value]
    write_space: Callable[[Observed], str] = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.default)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a draft: kernels and instantiations by name, folders of headers, a problem.

    `problem` is the file that states what the kernel computes; it is its reference, too. `defined`
    are macros of the build, `NAME=VALUE`, and `script` what a script of Kernel Tuner says.
    The draft is `run` on the CPU unless that is False.
    """

    kernels: tuple[str, ...] = ()
    instantiate: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    problem: Path | None = None
    defined: tuple[str, ...] = ()
    run: bool = True
    script: TuningScript = NO_SCRIPT

    def with_script(self, path: Path) -> Asked:
        """Take what a script beside a source has values for, the first where it has none."""
        script, text = read_tuning_script(path), mask(source_text(path))
        given = {name.partition("=")[0] for name in self.defined}
        used = (name for name in script.values if re.search(rf"\b{name}\b", text))
        undeclared = [n for n in used if n not in given and not _declares(text, n)]
        config = script.first_allowed(undeclared)
        more = tuple(f"{name}={int(value)}" for name, value in config.items())
        return replace(self, defined=(*self.defined, *more), script=script)


def _declares(text: str, name: str) -> bool:
    """Tell whether a source has a macro, variable, constant or template parameter of a name."""
    word = r"(?!(?:return|else|if|elif|case|sizeof)\b)\w+"
    declared = rf"#[ \t]*define[ \t]+{name}\b|\b{word}[ \t]+{name}\s*[,;=>)\[]"
    return re.search(declared, text) is not None


def draft(
    source: SourceFile,
    kernel: str | None = None,
    folder: Path | None = None,
    options: tuple[str, ...] = (),
    *,
    stem: str | None = None,
    problem: Path | None = None,
    loops: bool = True,
    script: TuningScript = NO_SCRIPT,
) -> Draft:
    """Draft the files for one kernel of `source`, below `folder` (default: here).

    `stem` is how the files are called, as the source is by default. What `problem` states of
    arguments and sizes is not guessed from the source. `loops` says whether what a thread does at
    once may be changed.

    Raises `KernelError` with the list where `kernel` is not given and the file does not launch one.
    """
    launch, maps = split_maps(HostLaunch.of(source, _choose_kernel(source, kernel)))
    launch = launch.with_divisors(script.divisors, script.sizes)
    require_arguments(launch.kernel)
    hosts = [Host(source, path) for path in paths_to(launch)]
    stated = None if problem is None else statement_of(problem)
    if stated is None:
        axes = with_strides(launch, axes_of(launch, hosts))
    else:
        axes = axes_for(stated, launch)
    numbers = _WHOLE_NUMBER.findall("" if problem is None else read_text(problem))
    proposed = propose(launch, list(axes.names.values()), {*map(int, numbers)}, script)
    proposals = without_unproved(launch, axes, proposed)
    if loops:
        proposals = with_loops(launch, axes, proposals)
    proposals, blocks = pin_blocks(launch, axes, proposals)
    tuned = template_launch(launch, axes, proposals)
    if stated is None:
        counted = replace(tuned, grid=blocks) if blocks else tuned
        inference = infer(launch, axes, counted, proposals.choices, hosts)
    else:
        inference = inference_for(stated, launch, axes)
    handed = with_maps(launch, axes, inference.arguments, maps)
    stem, root = stem or source.path.stem, folder or Path()
    space_path = root / "search_spaces" / f"{stem}.yaml"
    paths = {
        "source": source.path,
        "reference": problem or _reference_beside(source.path, stem),
        "template": root / "templates" / f"{stem}.cu.j2",
    }
    start = space_path.resolve().parent
    files = {
        key: Path(os.path.relpath(path.resolve(), start)).as_posix() for key, path in paths.items()
    }

    def write_space(observed: Observed | None = None) -> str:
        seen = handed.arguments if observed is None else map(observed.see, handed.arguments)
        origin = launch.origin if observed is None else observed.see_launch(launch.origin)
        of_seen = replace(inference, arguments=tuple(seen))
        return space_yaml(launch, proposals, tuned, of_seen, files, options, handed, origin)

    return Draft(
        kernel=launch.kernel.name,
        default={choice.name: choice.default for choice in proposals.choices},
        launched=tuned.kernel,
        space_path=space_path,
        space_yaml=write_space(),
        template_path=paths["template"],
        template=_template(source, proposals),
        reference_path=paths["reference"],
        reference=reference_stub(handed.with_arrays(launch.kernel), paths["reference"].stem),
        widest={
            choice.name: choice.values[-1] if choice.is_work else choice.default
            for choice in proposals.choices
        },
        write_space=write_space,
        notes=() if stated is None else stated.notes,
    )


def _reference_beside(source: Path, stem: str) -> Path:
    # a file of the kernel's name may be what calls it, which is neither to be run nor to be changed
    beside = source.with_name(f"{stem}.py")
    try:
        is_other = beside.is_file() and "reference" not in read_python(beside).globals
    except KernelError:
        is_other = False  # who reads it as the reference says what is wrong
    return source.with_name(f"{stem}_reference.py") if is_other else beside


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
    `kernels/NAME.cu`. Raises `KernelError` where the kernel cannot be extracted, and what
    `write_draft` raises.
    """
    if language_of(path) is HIP:
        raise KernelError(
            "has no search space, and drafts are made of CUDA and Python alone",
            path=path,
            remedy=f"write search_spaces/{path.name}.yaml with a template beside it, as those of "
            "kernels/portable (docs/hardware.md)",
        )
    asked = (asked or Asked()).with_script(path)
    beside = path.with_suffix(".py")
    if asked.problem is None and beside.is_file() and states_problem(beside):
        asked = replace(asked, problem=beside)
    includes = (parsed_include(line) for line in _INCLUDE.findall(source_text(path)))
    is_production = any(parsed is not None and not is_plain(*parsed) for parsed in includes)
    stated = asked.instantiate or asked.folders or asked.defined
    if is_production or stated or len(asked.kernels) > 1:
        return _draft_extraction(path, folder, asked, compiler(), force)
    try:
        source = read_source(path)
    except KernelError:
        # another file of the project may define what this one launches
        if "<<<" in source_text(path):
            return _draft_extraction(path, folder, asked, compiler(), force)
        raise
    kernel = _choose_kernel(source, next(iter(asked.kernels), None))
    kinds = ("macro", "alias", "constant") if _ELSE.search(source.masked) else ()
    defined = [definition.name for definition in source.definitions if definition.kind in kinds]
    used = {*IDENTIFIER.findall(source.masked, *kernel.body)}
    inside = (macro for name, macro in macros_in(source.masked).items() if name in used)
    writes_out = any(map(is_inline, inside))
    # a space has a number a member of a `float4` or a struct that is passed by value
    plain = [p for p in kernel.parameters if not p.pointers and p.dtype is None]
    structs = {d.name for d in source.definitions if d.kind == "class"} | source.aliases.keys()
    members = [p for p in plain if p.c_type in structs or element_dtype(p.c_type, source.aliases)]
    if members or writes_out or len({*defined}) < len(defined):
        # which of the alternatives of an #if a build takes, and what macros do, extraction knows
        return _draft_extraction(path, folder, asked, compiler(), force)
    for start, end in source.reachable([kernel]):
        require_body(kernel.name, path, source.line_at(start), source.masked[start:end])
    stem = stem_of(path, asked.kernels, folder)
    drafted = _compiling(source, kernel.name, folder, asked, compiler(), stem=stem)
    names = (drafted.launched,) if drafted.launched is not None else ()
    request = CompileRequest(hide_host_code(source), names, _ARCHITECTURE)
    elsewhere = HostLaunch.of(source, kernel).is_guessed and siblings(path, (path,))
    # what a launch passes says what a template's arguments are
    is_open = bool(kernel.template) and drafted.launched is None
    is_whole = compiler().submit(request).result().ok
    if elsewhere or is_open or not is_whole:
        try:
            return _draft_extraction(path, folder, asked, compiler(), force)
        except NotCompiledError:
            if not is_open or not is_whole:
                raise
        except KernelError:
            # no better for it: what else is wrong with the file itself, `tune check` tells
            require_closed(path, source.text)
    return write_draft(drafted, force=force)


def stem_of(path: Path, kernels: Sequence[str], folder: Path = Path()) -> str:
    """Name the drafts of a source: as it, or with the kernel where another has that name."""
    name = bare_name(kernels[0]) if len(kernels) == 1 else None
    taken = folder / "search_spaces" / f"{path.stem}.yaml"
    return path.stem if name is None or is_for(taken, name) else f"{path.stem}_{name}"


def draft_problem(
    path: Path, folder: Path = Path(), *, compiler: Callable[[], Compiler], force: bool = False
) -> Drafted:
    """Draft from a problem for the kernel of its name beside it; write a skeleton where none is.

    Raises `InputError` while the skeleton is not filled in, and what `draft_source` raises.
    """
    kernel = path.with_suffix(".cu")
    if kernel.exists():
        require_filled(kernel)
        return draft_source(kernel, folder, Asked(problem=path), compiler=compiler, force=force)
    stated = statement_of(path)
    write(kernel, skeleton(stated))
    (blank,) = blanks_in(kernel)
    next_ = (
        f"write the kernel's body in {kernel}, line {blank.line}; then `tune init {path}` again "
        "drafts its search space"
    )
    return Drafted(kernel_name(stated), None, (kernel,), notes=(*stated.notes, next_))


def require_one(drafted: Drafted) -> Path:
    """Give the drafted search space; raise where a source gave none."""
    if drafted.space is None:
        raise TunerError("\n  ".join(drafted.notes))
    return drafted.space


def restore_template(space: Path) -> Path | None:
    """Lift a missing template again where that gives what the search space has; else give None.

    Raises `InputError` for a space or a source that cannot be read.
    """
    document = read(space)
    model = validate_space(document)
    check_names(document, model)
    declared = search_space(document, model)
    if model.template is None:
        return None  # a kernel in Python is its own
    template, path = space.parent / model.template, space.parent / model.source
    if template.exists() or not path.is_file() or len(model.launch) != 1:
        return None
    source, launched = read_source(path), model.launch[0].kernel
    if bare_name(launched) not in {kernel.name for kernel in source.kernels}:
        return None
    named = {choice.name for choice in declared.parameters}
    made = draft(source, launched, loops=bool(named & WORK))
    same = made.parameters == declared.names and made.default == dict(declared.default or {})
    if not same or made.launched not in (None, launched):
        return None
    write(template, made.template)
    return template


def _template(source: SourceFile, proposals: Proposals) -> str:
    # lines keep their numbers where blank lines allow it
    lifted = (edit for choice in proposals.choices for edit in choice.edits)
    # the template's syntax occurs in comments only, where a space changes nothing
    ends = (match.end() - 1 for match in _DELIMITER.finditer(source.own_text))
    escapes = (Edit(at, at, " ") for at in ends)
    # where host code is apart already, none of it is left to guard
    guards = host_edits(source) if source.host_from is None else ()
    return apply_edits(source.own_text, [*guards, *proposals.edits, *lifted, *escapes])


def _choose_kernel(source: SourceFile, name: str | None) -> KernelFunction:
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


def write_draft(
    draft: Draft, *, force: bool = False, unit: Mapping[Path, str] | None = None
) -> Drafted:
    """Write a draft, over no file unless `force`, over a reference never.

    Raises `SpaceError` for a file that exists, `InputError` for a place that cannot be written.
    """
    own = {draft.space_path: draft.space_yaml, draft.template_path: draft.template}
    files = {**(unit or {}), **own}
    kept = draft.reference_path.exists()
    reference = {} if kept else {draft.reference_path: draft.reference}
    write_new(files, force=force, more=reference)
    return Drafted(
        kernel=draft.kernel,
        space=draft.space_path,
        written=(*files, *reference),
        kept=(draft.reference_path,) if kept else (),
        parameters=draft.parameters,
        blanks=(*blanks_in(draft.space_path), *blanks_in(draft.reference_path)),
        notes=draft.notes,
    )


def _draft_extraction(
    path: Path, folder: Path, asked: Asked, compiler: Compiler, force: bool
) -> Drafted:
    stem = stem_of(path, asked.kernels, folder)
    target = folder / "kernels" / f"{stem}.cu"
    if target.resolve() == path.resolve():
        target = target.with_name(f"{stem}_extracted.cu")
    unit, options = _extract_compiling(path, target, asked, compiler, force)
    if len(unit.instances) > 1:
        write_new({target: unit.unit}, force=force)
        names = ", ".join(instance.kernel.name for instance in unit.instances)
        return Drafted(names, None, (target,), left_out=unit.left_out, notes=_by_hand(unit))
    kernel = unit.instances[0].kernel.name
    drafted = _compiling(unit.source, kernel, folder, asked, compiler, options)
    first = unit.unit.count("\n", 0, len(unit.unit) - 1) + 2
    drafted = replace(drafted, space_yaml=relocate_lines(drafted.space_yaml, unit.places, first))
    done = write_draft(drafted, force=force, unit={target: unit.unit})
    instance = unit.instances[0]
    notes = [f"instantiation: {instance.name}"] if instance.arguments else []
    if instance.guessed:
        notes[0] += f"; {', '.join(instance.guessed)}: a guess, for no launch says it"
    if instance.others:
        listed, more = instance.others[:_MOST_LISTED], len(instance.others) - _MOST_LISTED
        end = f" and {more} more" if more > 0 else ""
        what = "another" if instance.guessed else "another that is launched"
        notes.append(f"--instantiate takes {what}: {', '.join(listed)}{end}")
    notes += [f"{macro} is taken as defined: the kernel needs it" for macro in sorted(unit.defined)]
    notes += [f"{path}: found by its name in the project" for path in unit.searched]
    for one in unit.opened:
        note = f"{one.struct} {one.parameter} became one parameter for each member"
        but = f" but {', '.join(sorted(one.unused))}, which nothing here names"
        notes.append(note + (but if one.unused else ""))
    return replace(done, left_out=unit.left_out, notes=(*done.notes, *tuple(notes)))


def _extract_compiling(
    path: Path, target: Path, asked: Asked, compiler: Compiler, force: bool
) -> tuple[Extraction, tuple[str, ...]]:
    """Extract a unit that compiles, with another instantiation where the best one does not."""
    first: Extraction | None = None
    errors: list[NotCompiledError] = []
    macros = frozenset(asked.defined)
    wanted = Wanted(asked.kernels, asked.instantiate, asked.folders, defined=macros)
    memo = Memo()
    while True:
        unit = extract(path, target, wanted, memo)
        first = first or unit
        try:
            return unit, _options(unit, compiler)
        except NotCompiledError as error:
            repeated = any(str(error) == str(compiled_error) for compiled_error in errors)
            errors.append(error)
            guards = {guard_of(name, unit.dropped) for name in error.names} - {None, *unit.defined}
            if guards:
                # what is wrong without it is not what is wrong
                more = unit.defined.union(guard for guard in guards if guard is not None)
                wanted, first, errors = replace(wanted, defined=more), None, []
            elif error.names and not wanted.around:
                # who #includes the file may define it before
                wanted = replace(wanted, around=True)
            elif not wanted.mixed and error.is_mixed:
                wanted = replace(wanted, mixed=True)
            else:
                wanted = replace(wanted, place=wanted.place + 1)
                most = min(len(unit.instances[0].others), _MOST_TRIED)
                if repeated or wanted.place > most or len(unit.instances) > 1:
                    break
    if force or not target.exists():
        write_new({target: first.unit}, force=force)
    raise errors[0]


def _compiling(
    source: SourceFile,
    kernel: str,
    folder: Path,
    asked: Asked,
    compiler: Compiler,
    options: tuple[str, ...] = (),
    *,
    stem: str | None = None,
) -> Draft:
    """Draft with all that a thread could do at once, or without where that does not compile.

    What the source says of it is sure where a run on the CPU shows it, too.
    """
    again = partial(
        draft,
        source,
        kernel,
        folder,
        options,
        stem=stem,
        problem=asked.problem,
        script=asked.script,
    )
    drafted = again()
    if not _compiles(drafted, compiler, options):
        drafted = again(loops=False)
    if asked.problem is not None:
        return drafted
    observed = observe(drafted.space_yaml, source.own_text) if asked.run else Observed()
    return replace(drafted, space_yaml=drafted.write_space(observed))


def _compiles(draft: Draft, compiler: Compiler, options: tuple[str, ...] = ()) -> bool:
    # with all that a thread could do at once; other things wrong with it `tune check` tells
    if draft.launched is None or draft.widest == draft.default:
        return True
    code = re.sub(r"^[ \t]*//%.*\n", "", draft.template, flags=re.MULTILINE)
    code = _HOLE.sub(lambda m: str(Expression.parse(m[1]).evaluate(draft.widest)).lower(), code)
    request = CompileRequest(code, (draft.launched,), _ARCHITECTURE, options)
    return compiler.submit(request).result().ok


def _options(unit: Extraction, compiler: Compiler) -> tuple[str, ...]:
    # the newer language only where the older one does not do
    for options in ((), (_NEWER,)):
        request = CompileRequest(unit.unit, unit.names, _ARCHITECTURE, options)
        result = compiler.submit(request).result()
        if result.ok:
            return options
    raise failure(unit, result.error)


def _by_hand(unit: Extraction) -> tuple[str, ...]:
    notes = [
        f"{len(unit.instances)} kernels make this operator, and a draft is of one: the search "
        "space, the template and the reference are to be written by hand"
    ]
    sites = {bare_name(site.kernel): site for site in reversed(unit.source.launches)}
    for number, (instance, name) in enumerate(zip(unit.instances, unit.names, strict=True), 1):
        note, site = f"launch {number}: {name}", sites.get(instance.kernel.name)
        if site is not None and (place := unit.places[site.line - 1]) is not None:
            grid, block = ", ".join(site.grid), ", ".join(site.block)
            note += f"; grid {grid}; block {block}; shared memory {site.shared}"
            note += f" ({place[0]}:{place[1]})"
        notes.append(note)
    return (
        *notes,
        "a search space hands every launch the same arguments: give all kernels one parameter list",
    )
