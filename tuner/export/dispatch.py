"""A session's dispatch as a folder: header, variants, table, and how to build it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tuner.compiler.includes import header_digest
from tuner.dispatch.kernels import Applicability, VariantKernel
from tuner.dispatch.table import (
    Compared,
    DispatchTable,
    Entry,
    HeldOut,
    SessionDispatch,
    SetSelection,
    productions,
    wanted_for,
)
from tuner.export.cpp import (
    ARRAY_TYPES,
    FORWARD_DECLARED,
    cpp_name,
    hidden_by,
    in_namespace,
    integer,
    truth,
    unusable_name,
    value,
)
from tuner.export.scalars import caller_scalars, fixed_scalars, scalar_type
from tuner.model import TUNER_VERSION
from tuner.model.errors import ExpressionError, InputError, SessionError
from tuner.model.expressions import Expression
from tuner.model.kernel import (
    DEVICE_NAMES,
    DTYPE_BYTES,
    Argument,
    KernelSpec,
    LaunchSpec,
    Workload,
)
from tuner.model.trial import INITIAL
from tuner.process.files import atomic_write_all, read_regular
from tuner.session.records import Manifest, file_sha
from tuner.session.session import Session
from tuner.source import hide_host_code, read_source
from tuner.space.load import load_definition

_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
DEVICE = {name: f"device.{name}" for name in sorted(DEVICE_NAMES)}


@dataclass(frozen=True, slots=True)
class Measured:
    device: str
    architecture: str
    date: str
    recorded: bool
    operators: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LaunchCode:
    """A launch in C++: `when` is empty where it is always made."""

    kernel: str
    geometry: str
    when: str


@dataclass(frozen=True, slots=True)
class VariantSource:
    """One variant as its template needs it; number 0 is the baseline.

    `conditions` are on the shape, the device and the scalars that are `fixed` in the source.
    """

    number: int
    title: str
    source: str
    launches: tuple[LaunchCode, ...]
    conditions: tuple[str, ...] = ()
    static_bytes: int = 0
    fixed: tuple[str, ...] = ()

    def any_launch(self, before: str) -> str:
        """Write a condition that holds where a launch is made; `before` begins their names."""
        used = [f"{before}{i}" for i, one in enumerate(self.launches, start=1) if one.when]
        return f"({' || '.join(used)})" if len(used) == len(self.launches) else "true"


class Sources:
    """Write the C++ of one kernel's dispatch; raises `InputError` for what C++ cannot say."""

    def __init__(self, spec: KernelSpec, dispatch: SessionDispatch, measured: Measured) -> None:
        self.spec, self._dispatch, self._measured = spec, dispatch, measured
        self._names = {axis: cpp_name(axis) for axis in spec.axes}
        self._arrays = [one for one in spec.arguments if not one.is_scalar]
        self.scalars = caller_scalars(spec)
        parameters = [
            *(cpp_name(one.name) for one in self._arrays),
            *self._names.values(),
            *(one.name for one in self.scalars),
        ]
        if wrong := unusable_name(spec.name, parameters):
            raise InputError(wrong[0], path=spec.path, remedy=wrong[1])
        table = dispatch.table
        kernels = enumerate(table.kernels, start=1)
        self.variants = (self._baseline(), *(self._unit(i, kernel) for i, kernel in kernels))

    def header(self) -> str:
        table = self._dispatch.table
        points = [
            {
                "logs": ", ".join(repr(log(size)) for _, size in workload.axes),
                "number": table.number(kernel),
                "shape": str(workload),
                "served": productions(_best_on(table, workload)) if kernel is None else "",
            }
            for workload, kernel in table.points
        ]
        axes = list(self._names.values())
        return template("dispatch.h.j2").render(
            **self._common(),
            choice=str(table.choice),
            surroundings=_times_of(self.spec, table),
            measured=self._measured.date,
            variants=self.variants,
            points=points,
            axes=axes,
            axes_parameters=", ".join(f"std::int64_t {axis}" for axis in axes),
            scalars=self.scalars,
            scalar_parameters="".join(f", {one.kind} {one.name}" for one in self.scalars),
            scalar_defaults="".join(
                f", {one.kind} {one.name} = {one.default}" for one in self.scalars
            ),
            asked=", ".join([*axes, *(one.name for one in self.scalars)]),
            axes_logs=", ".join(f"std::log(static_cast<double>({axis}))" for axis in axes),
            forward=sorted(
                {FORWARD_DECLARED[a.dtype] for a in self._arrays if a.dtype in FORWARD_DECLARED}
            ),
            pointers=self._arrays,
            scratches=[self._scratch(one) for one in self._arrays if one.role == "scratch"],
        )

    def variant(self, one: VariantSource) -> str:
        space = f"{self.spec.name}_v{one.number}_code"
        passed = {scalar.position for scalar in self.scalars}
        own = list(enumerate(self.spec.arguments))
        computed = [self._scalar(one) for at, one in own if one.is_scalar and at not in passed]
        arguments = (
            f"&tune_{one.name}" if one.is_scalar and at not in passed else f"&{cpp_name(one.name)}"
            for at, one in own
        )
        return template("variant.cu.j2").render(
            **self._common(),
            variant=one,
            macros=[f"{name} {text}" for name, text in self._measured.operators.items()],
            body=in_namespace(one.source, space),
            hidden=hidden_by(
                _DEFINED.findall(one.source),
                [*self._names.values(), *(cpp_name(one.name) for one in self.spec.arguments)],
            ),
            space=space,
            definition_parameters=self._parameters("[[maybe_unused]] "),
            scalar_parameters="".join(f", {one.kind} {one.name}" for one in self.scalars),
            computed=computed,
            arguments=", ".join(arguments),
        )

    def _common(self) -> Mapping[str, str]:
        arrays = (cpp_name(one.name) for one in self._arrays)
        return {
            "parameters": self._parameters(""),
            "passed": ", ".join(
                [*arrays, *self._names.values(), "stream", *(one.name for one in self.scalars)]
            ),
            "kernel": self.spec.name,
            "version": TUNER_VERSION,
            "device": self._measured.device,
            "architecture": self._measured.architecture,
        }

    def _parameters(self, before_axes: str) -> str:
        arrays = (
            f"{'const ' * (a.role == 'input')}{ARRAY_TYPES[a.dtype]}* {cpp_name(a.name)}"
            for a in self._arrays
        )
        axes = (f"{before_axes}std::int64_t {axis}" for axis in self._names.values())
        return ", ".join([*arrays, *axes, "cudaStream_t stream"])

    def _scratch(self, argument: Argument) -> Mapping[str, str]:
        text = str(DTYPE_BYTES[argument.dtype])
        for dimension in argument.shape:
            text = f"product({text}, {integer(dimension, self._names)})"
        return {"name": argument.name, "bytes": text}

    def _scalar(self, argument: Argument) -> Mapping[str, str]:
        assert argument.value is not None
        kind = scalar_type(self.spec, argument)
        if argument.dtype == "bool":
            text = truth(argument.value, self._names)
        elif argument.dtype.startswith("float"):
            text = f"static_cast<{kind}>({value(argument.value, self._names).text})"
        else:
            text = f"narrow<{kind}>({integer(argument.value, self._names)})"
        return {"type": kind, "local": f"tune_{argument.name}", "text": text}

    def _baseline(self) -> VariantSource:
        source = hide_host_code(read_source(self.spec.source))
        launches = tuple(map(self._launch, self.spec.baseline))
        return self._for_defaults(
            VariantSource(0, "the baseline", source, launches), self.spec.baseline, ()
        )

    def _for_defaults(
        self, one: VariantSource, launches: Sequence[LaunchSpec], choices: Sequence[str]
    ) -> VariantSource:
        """Add conditions on the scalars of which a source holds the default."""
        kernels = [launch.kernel for launch in launches]
        fixed = fixed_scalars(self.scalars, one.source, kernels, choices)
        conditions = (*one.conditions, *(scalar.is_default for scalar in fixed))
        return replace(one, conditions=conditions, fixed=tuple(scalar.name for scalar in fixed))

    def _unit(self, number: int, kernel: VariantKernel) -> VariantSource:
        reach = self._dispatch.applicability(kernel)
        try:
            return self._translated(number, kernel, reach)
        except ExpressionError as error:
            # A candidate's search space stands in the session; the first one's is the user's.
            first = kernel.variant.candidate == INITIAL
            path = self.spec.path if first else Path(kernel.variant.candidate)
            raise ExpressionError(
                error.message, path=path, line=error.line, remedy=error.remedy
            ) from error

    def _translated(
        self, number: int, kernel: VariantKernel, reach: Applicability
    ) -> VariantSource:
        unit = VariantSource(
            number,
            str(kernel.variant),
            kernel.source,
            tuple(map(self._launch, reach.launches)),
            self._conditions(reach),
            reach.static_bytes,
        )
        return self._for_defaults(unit, reach.launches, reach.choices)

    def _conditions(self, reach: Applicability) -> tuple[str, ...]:
        known = {**self._names, **DEVICE}
        found = [truth(condition, known) for condition in reach.conditions]
        shapes = (
            " && ".join(
                f"{self._names[a]} == {size}" for a, size in zip(reach.written, one, strict=True)
            )
            for one in reach.shapes
        )
        written = [f"({' || '.join(f'({shape})' for shape in shapes)})"] if reach.written else []
        return tuple(dict.fromkeys(text for text in (*written, *found) if text != "true"))

    def _launch(self, spec: LaunchSpec) -> LaunchCode:
        known = {**self._names, **DEVICE}

        def dimensions(sizes: Sequence[Expression], otherwise: str) -> str:
            texts = [integer(one, known) for one in sizes]
            return "{" + ", ".join([*texts, otherwise, otherwise, otherwise][:3]) + "}"

        shared = integer(spec.shared_memory, known) if spec.shared_memory else "0"
        programmatic = truth(spec.pdl, known) if spec.pdl else "false"
        cluster = dimensions(spec.cluster, "1") if spec.cluster else "{0, 0, 0}"
        parts = (dimensions(spec.grid, "1"), dimensions(spec.block, "1"), cluster)
        when = truth(spec.when, known) if spec.when else "true"
        geometry = f"Launch{{{', '.join(parts)}, {shared}, {programmatic}}}"
        return LaunchCode(spec.kernel, geometry, "" if when == "true" else when)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("tuner", "export"),
        autoescape=False,
        undefined=StrictUndefined,
        variable_start_string="@{",
        variable_end_string="}@",
        line_statement_prefix="//%",
        keep_trailing_newline=True,
    )


def template(name: str) -> Template:
    return _environment().get_template(name)


FORMAT = "tune dispatch"
VERSION = 1
TABLE = "dispatch.json"
_SUFFIX = ".new"
# Options of NVRTC that nvcc has no word for.
_ONLY_NVRTC = ("--builtin-", "--device-int128", "--device-float128", "-default-device")


@dataclass(frozen=True, slots=True)
class Exported:
    folder: Path
    table: DispatchTable
    files: tuple[str, ...]
    incomplete: tuple[str, ...]


def export_dispatch(
    directory: Path, to: Path, choice: SetSelection | None, space: Path | None
) -> Exported:
    """Write the dispatch of the session in `directory` to the folder `to`.

    Without a `choice` of the variants it is the one that the session was run with.
    `space` is the session's search space where it is no longer where it was. Raises
    `SessionError` where there is no session, nothing was compared in it, or its files have
    changed, and `InputError` where the folder cannot be written or holds what is not ours.
    """
    with Session.open(directory, read_only=True) as session:
        spec = _unchanged_spec(session, space)
        if not session.comparisons():
            raise SessionError(
                "nothing was compared with the baseline, so that nothing can be exported",
                path=directory,
                remedy=f"finish it with `tune --resume {directory}`",
            )
        manifest = session.manifest
        own = SetSelection(manifest.config.variants_within, manifest.config.max_variants)
        dispatch, files = _files(session, spec, choice or own)
    write_folder(to, files)
    incomplete = [str(one.workload) for one in dispatch.table.entries if one.best is None]
    return Exported(to, dispatch.table, tuple(files), tuple(incomplete))


def _files(
    session: Session, spec: KernelSpec, choice: SetSelection
) -> tuple[SessionDispatch, Mapping[str, str]]:
    """Write all texts, by their names in the folder; another format adds its files here."""
    try:
        dispatch = SessionDispatch(session, choice)
    except SessionError as error:
        raise SessionError(error.message, path=session.directory, remedy=error.remedy) from error
    manifest, environment = session.manifest, session.environment
    recorded = manifest.config.device.startswith("recorded")
    created = manifest.created.partition("T")[0]
    measured = Measured(
        device=environment.get("device", manifest.config.device),
        architecture=environment["architecture"],
        date=environment.get("date", "") if recorded else created,
        recorded=recorded,
        operators=manifest.config.operators,
    )
    sources = Sources(spec, dispatch, measured)
    units = {variant_file(spec.name, one.number): one for one in sources.variants}
    files = {f"{spec.name}.h": sources.header()}
    files |= {name: sources.variant(one) for name, one in units.items()}
    # The compiler options and include folders that the kernel was tuned with.
    options = [one for one in spec.compile_options if not one.startswith(_ONLY_NVRTC)]
    texts = files.values()
    used = (one for one in spec.include_dirs if any(header_digest(text, (one,)) for text in texts))
    options += [f"-I{folder}" for folder in used]
    files["CMakeLists.txt"] = template("CMakeLists.txt.j2").render(
        kernel=spec.name,
        architecture=measured.architecture.removeprefix("sm_"),
        files=list(units),
        options=[_cmake_text(shlex.quote(option)) for option in options],
    )
    files["README.md"] = template("dispatch_readme.md.j2").render(
        kernel=spec.name,
        version=TUNER_VERSION,
        measured=measured,
        recorded=recorded,
        axes=", ".join(spec.axes),
        table=dispatch.table,
        productions=productions,
        surroundings=_times_of(spec, dispatch.table),
        options="".join(f" {shlex.quote(option)}" for option in options),
        scalars=sources.scalars,
        variants=sources.variants,
        operators=", ".join(f"`{n}` is `{v}`" for n, v in measured.operators.items()),
    )
    made = _document(sources, manifest, measured, dispatch, files)
    files[TABLE] = json.dumps(made, indent=2) + "\n"
    return dispatch, files


def _cmake_text(text: str) -> str:
    """Write a text between quotation marks of CMake's."""
    return re.sub(r'(["\\$;])', r"\\\1", text)


def _unchanged_spec(session: Session, space: Path | None) -> KernelSpec:
    manifest = session.manifest
    path = space or manifest.config.space
    if not path.exists():
        raise SessionError(
            f"its search space is gone: {path}",
            path=session.directory,
            remedy="name a copy of it with --space",
        )
    spec = load_definition(path, manifest.config.operators).spec
    files = {spec.path: manifest.space_sha, spec.source: manifest.source_sha}
    try:
        changed = [str(one) for one, before in files.items() if before and file_sha(one) != before]
    except OSError as error:
        message = f"a file of it cannot be read: {error.filename}: {error.strerror}"
        raise SessionError(message, path=session.directory) from error
    if changed:
        raise SessionError(
            f"changed since the session began: {', '.join(changed)}",
            path=session.directory,
            remedy="undo the change, or tune again: what was measured is not this kernel",
        )
    return spec


def _document(
    sources: Sources,
    manifest: Manifest,
    measured: Measured,
    dispatch: SessionDispatch,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """Make the object of `dispatch.json`; `files` are the texts of the others by their names.

    Times are in microseconds. Shapes are written as `--workload` takes them.
    """
    spec, table = sources.spec, dispatch.table
    own = [None, *(kernel.variant for kernel in table.kernels)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "kernel": spec.name,
        "operators": dict(measured.operators),
        "axes": list(spec.axes),
        "scalars": {one.name: one.value for one in sources.scalars},
        "tune": TUNER_VERSION,
        "choice": {"within": table.choice.within, "max_variants": table.choice.most},
        "variants": [
            {
                "variant": number,
                "file": variant_file(spec.name, number),
                "candidate": variant.candidate if variant else None,
                "config": dict(variant.config) if variant else None,
                "fixed": list(sources.variants[number].fixed),
            }
            for number, variant in enumerate(own)
        ],
        "devices": {
            measured.device: {
                "architecture": measured.architecture,
                "measured": measured.date,
                "recorded": measured.recorded,
                "surroundings": _described(spec, table),
                "shapes": {one.workload.key: _entry(one, table) for one in table.entries},
                "held_out": {one.workload.key: _held_out(one, table) for one in table.held_out},
                "wanted": [
                    {"shape": workload.key, "candidate": one.candidate, "config": dict(one.config)}
                    for workload, one in wanted_for(dispatch)
                ],
            }
        },
        "made_from": {
            "source": manifest.source_sha,
            "space": manifest.space_sha,
            "template": manifest.template_sha,
        },
        "files": {name: _sha(text) for name, text in files.items()},
    }


def _entry(entry: Entry, table: DispatchTable) -> dict[str, Any]:
    return {
        "variant": table.number(entry.kernel),
        **_times(entry.compared, entry.best),
        "slowdown": entry.slowdown,
        "reason": entry.reason,
    }


def _held_out(one: HeldOut, table: DispatchTable) -> dict[str, Any]:
    return {
        "variant": 0 if one.refuted else table.number(one.kernel),
        "nearest": one.nearest.key if one.nearest else None,
        "rule": table.number(one.kernel),
        "verdict": one.verdict,
        **_times(one.compared, one.best),
    }


def _times(compared: Compared | None, best: Compared | None) -> dict[str, Any]:
    """Without a comparison the baseline serves, whose time the best was compared with."""
    baseline_us = best.baseline_us if best else None
    alone_baseline_us = best.alone_baseline_us if best else None
    return {
        "time_us": compared.time_us if compared else baseline_us,
        "baseline_us": compared.baseline_us if compared else baseline_us,
        "speedup": compared.speedup if compared else None,
        "interval": list(compared.interval) if compared else None,
        "paired": compared.paired if compared else None,
        "best_us": best.time_us if best else None,
        "surroundings": best.surroundings if best else None,
        "alone_us": compared.alone_us if compared else alone_baseline_us,
        "alone_baseline_us": alone_baseline_us,
        "production": productions(best),
        "production_us": best.production.time_us if best and best.production else baseline_us,
    }


def _best_on(table: DispatchTable, workload: Workload) -> Compared | None:
    found = table.serving(workload)
    return found[1] if found else None


def _described(spec: KernelSpec, table: DispatchTable) -> dict[str, str]:
    """Say what each of the surroundings is that times were measured in, by name."""
    named = {one.name: str(one) for one in spec.surroundings}
    best = [one.best for one in table.entries] + [one.best for one in table.held_out]
    used = [one.surroundings for one in best if one is not None]
    return {name: named.get(name, name) for name in used if name}


def _times_of(spec: KernelSpec, table: DispatchTable) -> list[str]:
    """Say what the times are, in lines."""
    around = list(_described(spec, table).values())
    if not around:
        return [
            "Times are those of the operator alone, one call after the other, with cold caches."
        ]
    return [
        "Times are costs between the neighbours that run before and after:",
        *(f"- {one}" for one in around),
    ]


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def variant_file(kernel: str, number: int) -> str:
    """Name a variant's source in the folder; 0 is the baseline."""
    return f"variants/{kernel}_v{number}.cu"


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write files by their names in a folder, and remove those of an earlier export.

    Only what an earlier export wrote, and nobody has changed since, is replaced or removed; other
    files stay as they are. Raises `InputError` where one of them is in the way, and where
    something cannot be written: then all that was there is still there.
    """
    try:
        before = _earlier(folder)
        _require_ours(folder, files, before)
        # The table last: with it the folder is ours.
        ordered = sorted(files, key=lambda name: name == TABLE)
        for name in ordered:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        atomic_write_all({folder / name: files[name] for name in ordered})
        for name, digest in before.items():
            if name not in files and _is_ours(folder / name, digest):
                (folder / name).unlink()
    except OSError as error:
        raise InputError(
            f"the export cannot be written: {error.strerror or error}",
            path=folder,
            remedy="choose another folder with --to",
        ) from error


def _earlier(folder: Path) -> Mapping[str, str]:
    path = folder / TABLE
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_regular(path).decode())
    except (ValueError, RecursionError):
        return {}
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict) or content.get("format") != FORMAT:
        return {}
    names = {str(n): str(h) for n, h in files.items() if not Path(str(n)).is_absolute()}
    return {name: digest for name, digest in names.items() if ".." not in Path(name).parts}


def _require_ours(folder: Path, files: Mapping[str, str], before: Mapping[str, str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("is not a folder", path=folder, remedy="name a folder with --to")
    foreign = [
        name
        for name in files
        if (folder / name).exists() or (folder / name).is_symlink()
        if not _is_ours(folder / name, before.get(name, ""))
        if not (name == TABLE and before)
    ]
    if foreign:
        raise InputError(
            f"{', '.join(foreign)}: not written by tune, or changed since",
            path=folder,
            remedy="nothing was written; move it away, or choose another folder with --to",
        )


def _is_ours(path: Path, digest: str) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        return _sha(read_regular(path).decode()) == digest
    except UnicodeDecodeError:
        return False
