"""A session's dispatch as a folder: header, variants, table, and how to build it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.dispatch.of_session import SessionDispatch
from tuner.dispatch.table import Choice, Entry, HeldOut, Table
from tuner.export.dispatch_sources import Measured, Sources, template
from tuner.export.folder import TABLE, document, nvcc_options, variant_file, write_folder
from tuner.model.errors import SessionError
from tuner.model.kernel import KernelSpec
from tuner.model.version import TUNER_VERSION
from tuner.session.records import file_sha
from tuner.session.session import Session
from tuner.space.load import load_definition


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written where, and what of it a user should know."""

    folder: Path
    table: Table
    files: tuple[str, ...]
    incomplete: tuple[str, ...]


def export_dispatch(
    directory: Path, to: Path, choice: Choice | None, space: Path | None
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
        own = Choice(manifest.config.variants_within, manifest.config.max_variants)
        files, dispatch = _files(session, spec, choice or own)
        table = dispatch.table
    write_folder(to, files)
    incomplete = [str(one.workload) for one in table.entries if one.best is None]
    return Exported(to, table, tuple(files), tuple(incomplete))


def _files(
    session: Session, spec: KernelSpec, choice: Choice
) -> tuple[Mapping[str, str], SessionDispatch]:
    try:
        dispatch = SessionDispatch(session, choice)
    except SessionError as error:
        raise SessionError(error.message, path=session.directory, remedy=error.remedy) from error
    table, manifest = dispatch.table, session.manifest
    measured = _measured(session)
    sources = Sources(spec, dispatch, measured)
    files = {f"{spec.name}.h": sources.header()}
    for unit in sources.units:
        files[variant_file(spec.name, unit.number)] = sources.variant(unit)
    files["CMakeLists.txt"] = _cmake(spec, measured, table)
    files["README.md"] = _readme(
        spec, measured, table, manifest.config.device.startswith("recorded")
    )
    made = document(spec, manifest, measured, table, dispatch.wanted, files)
    files[TABLE] = json.dumps(made, indent=2) + "\n"
    return files, dispatch


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
    changed = [str(file) for file, before in files.items() if before and file_sha(file) != before]
    if changed:
        raise SessionError(
            f"changed since the session began: {', '.join(changed)}",
            path=session.directory,
            remedy="undo the change, or tune again: what was measured is not this kernel",
        )
    return spec


def _measured(session: Session) -> Measured:
    manifest, environment = session.manifest, session.environment
    recorded = manifest.config.device.startswith("recorded")
    created = manifest.created.partition("T")[0]
    return Measured(
        device=environment.get("device", manifest.config.device),
        architecture=environment["architecture"],
        date=environment.get("date", "") if recorded else created,
        operators=manifest.config.operators,
    )


def _cmake(spec: KernelSpec, measured: Measured, table: Table) -> str:
    numbers = range(len(table.kernels) + 1)
    return template("CMakeLists.txt.j2").render(
        kernel=spec.name,
        architecture=measured.architecture.removeprefix("sm_"),
        files=[variant_file(spec.name, number) for number in numbers],
        options=nvcc_options(spec),
    )


def _readme(spec: KernelSpec, measured: Measured, table: Table, recorded: bool) -> str:
    return template("dispatch_readme.md.j2").render(
        kernel=spec.name,
        version=TUNER_VERSION,
        device=measured.device,
        architecture=measured.architecture,
        measured=measured.date,
        recorded=recorded,
        axes=", ".join(spec.axes),
        variants=[
            {"file": variant_file(spec.name, number), "title": str(kernel.variant)}
            for number, kernel in enumerate(table.kernels, start=1)
        ],
        options="".join(f" {option}" for option in nvcc_options(spec)),
        operators=", ".join(f"`{n}` is `{v}`" for n, v in measured.operators.items()),
        choice=str(table.choice),
        rows=[_row(entry, table) for entry in table.entries],
        held_out=[_held_out_row(one, table) for one in table.held_out],
    )


def _row(entry: Entry, table: Table) -> Sequence[str]:
    shape = entry.workload.key.replace(",", ", ")
    slowdown = "" if entry.slowdown is None else f"{entry.slowdown:.3f}x"
    compared = entry.compared
    if compared is None:
        baseline = f"{entry.best.baseline_us:.3f}" if entry.best else ""
        return shape, f"baseline: {entry.reason}", baseline, baseline, "", "", slowdown
    low, high = compared.interval
    return (
        shape,
        f"v{table.number(entry.kernel)}",
        f"{compared.time_us:.3f}",
        f"{compared.baseline_us:.3f}",
        f"{compared.speedup:.2f}x",
        f"[{low:.3f}, {high:.3f}]" + ("" if compared.paired else " unpaired"),
        slowdown,
    )


def _held_out_row(one: HeldOut, table: Table) -> Sequence[str]:
    near = one.nearest.key.replace(",", ", ") if one.nearest else ""
    verdict = one.verdict + (": the baseline serves" if one.refuted else "")
    speedup = bounds = ""
    if one.compared is not None:
        low, high = one.compared.interval
        speedup, bounds = f"{one.compared.speedup:.2f}x", f"[{low:.3f}, {high:.3f}]"
    number = table.number(one.kernel)
    variant = f"v{number}" if number else "baseline"
    return one.workload.key.replace(",", ", "), near, variant, speedup, bounds, verdict
