"""A session's dispatch as a folder: header, variants, table, and how to build it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.compiler.includes import header_digest
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
from tuner.export.sources import Measured, Sources, described, template, times_of
from tuner.model import TUNER_VERSION
from tuner.model.errors import InputError, SessionError
from tuner.model.kernel import (
    KernelSpec,
)
from tuner.process.files import atomic_write_all, read_regular
from tuner.session.records import Manifest, file_sha
from tuner.session.session import Session
from tuner.space.load import load_definition

FORMAT = "tune dispatch"
VERSION = 1
TABLE = "dispatch.json"
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
        surroundings=times_of(spec, dispatch.table),
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
                "surroundings": described(spec, table),
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
