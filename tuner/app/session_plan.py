"""What a session keeps of its plan, and that plan made again to go on or to verify."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.app.locate import reads_space, require_kernel
from tuner.app.plan import option_of, plan_of, read_space, require_same, values_of
from tuner.app.trust import MayRun, nobody_asked, require_trusted, require_trusted_command, trust
from tuner.model import TUNER_VERSION
from tuner.model.errors import SessionError
from tuner.model.settings import COMMAND, RunSettings
from tuner.process.files import read_regular
from tuner.session.records import Manifest, file_sha

if TYPE_CHECKING:
    from tuner.model.kernel import KernelSpec
    from tuner.model.run_config import RunConfig
    from tuner.session.session import Session
    from tuner.space.plan import Plan

# What a resumed run may be given anew; the session keeps what it began with.
RENEWABLE = frozenset({"rounds", "max_tokens", "max_cost", "prices", "exchange", "sources", "gpus"})


def resumed_plan(
    directory: Path,
    manifest: Manifest,
    kernel: Path | None,
    settings: RunSettings,
    *,
    may_run: MayRun = nobody_asked,
) -> Plan:
    """Rebuild a session's plan; raise `SessionError` where files or settings have changed.

    `may_run` is asked before the Python of a reference that this user has not run may run, unless
    a new run of the kernel that is named with the session would run it too.
    """
    config = manifest.config
    if not config.space.exists():
        raise SessionError(
            f"its search space is gone: {config.space}",
            path=directory,
            remedy="put it back there, with the files that it names",
        )
    definition = read_space(config.space, config.template)
    _require_unchanged(directory, manifest, definition.spec)
    if kernel is not None:
        require_kernel(kernel)
        require_same(kernel, definition.spec)
    if kernel is not None and reads_space(kernel, settings.get("space"), config.space):
        trust(definition.spec.reference)  # this user has named it
    else:
        require_trusted(definition.spec.reference, directory, may_run)
    if config.device.startswith(COMMAND) and settings.get("device") != config.device:
        require_trusted_command(config.device.removeprefix(COMMAND), directory, may_run)
    given = values_of(settings, definition.spec)
    differing = [
        name
        for name, value in given.items()
        if value != getattr(config, name) and not is_renewable(config, name)
    ]
    if differing:
        options = ", ".join(map(option_of, differing))
        raise SessionError(
            f"{options}: not what the session was started with",
            path=directory,
            remedy="leave it out to resume, or start a new session: "
            f"`{shlex.join(manifest.command)}` started this one",
        )
    renewed = {name: value for name, value in given.items() if name in RENEWABLE}
    return plan_of(definition, replace(config, **renewed))


def is_renewable(config: RunConfig, name: str) -> bool:
    """Tell whether a resumed run may be given a setting anew."""
    # A session that began on one device does not say which of several that was.
    return name in RENEWABLE and (name != "gpus" or bool(config.gpus))


def verified_plan(
    directory: Path, manifest: Manifest, space: Path | None, *, may_run: MayRun = nobody_asked
) -> Plan:
    """Rebuild a session's plan to verify its winners, with files moved to another place.

    `may_run` is asked as in `resumed_plan`.
    """
    config = manifest.config
    path = space or config.space
    if not path.exists():
        raise SessionError(
            f"its search space is gone: {path}",
            path=directory,
            remedy="name a copy of it with --space",
        )
    moved = space is not None or not config.template.exists()
    definition = read_space(path, None if moved else config.template)
    _require_unchanged(directory, manifest, definition.spec)
    require_trusted(definition.spec.reference, directory, may_run)
    return plan_of(definition, config)


def manifest_of(plan: Plan, command: tuple[str, ...]) -> Manifest:
    """Write down all that a resumed run must find unchanged; `command` started the run."""
    spec = plan.spec
    return Manifest(
        kernel=spec.name,
        config=plan.config,
        space_sha=file_sha(spec.path),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        reference_sha=file_sha(spec.reference),
        tuner_version=TUNER_VERSION,
        command=_without_passwords(command),
        # Sessions that begin in one second on machines alike are not the same.
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        headers_sha=headers_sha(spec),
    )


def _without_passwords(command: tuple[str, ...]) -> tuple[str, ...]:
    if not any("://" in word for word in command):
        return command  # most have none, and SQLAlchemy takes long to import
    from tuner.session.database import without_password

    return tuple(map(without_password, command))


def headers_sha(spec: KernelSpec) -> str:
    """Hash all that template and source include from the folders of the kernel."""
    from tuner.compiler.includes import header_digest

    texts = (read_regular(path).decode(errors="replace") for path in (spec.template, spec.source))
    return header_digest("\n".join(texts), spec.include_dirs)


def _require_unchanged(directory: Path, manifest: Manifest, spec: KernelSpec) -> None:
    files = {
        spec.path: manifest.space_sha,
        spec.template: manifest.template_sha,
        spec.source: manifest.source_sha,
        spec.reference: manifest.reference_sha,
    }
    if not manifest.config.workloads:
        raise SessionError("is of no workload", path=directory)
    try:
        changed = [str(path) for path, sha in files.items() if file_sha(path) != sha]
        # Sessions of earlier versions don't say.
        if manifest.headers_sha not in ("", headers_sha(spec)):
            folders = ", ".join(map(str, spec.include_dirs)) or "<tune/...>"
            changed.append(f"what they include from {folders}")
    except OSError as error:
        message = f"a file of it cannot be read: {error.filename}: {error.strerror}"
        raise SessionError(message, path=directory) from error
    if changed:
        raise SessionError(
            f"changed since the session began: {', '.join(changed)}",
            path=directory,
            remedy="undo the change to resume, or start a new session: the times of two versions "
            "must not mix",
        )


def unchanged_spec(session: Session, space: Path | None) -> KernelSpec:
    """Read a session's search space; raise `SessionError` where it or the kernel has changed."""
    from tuner.space.load import load_definition

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
