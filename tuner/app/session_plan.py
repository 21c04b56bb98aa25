"""What a session keeps of its plan, and that plan made again to go on or to verify."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.app.locate import reads_space, require_kernel, space_of
from tuner.app.plan import plan_of, read_space, require_same, values_of
from tuner.app.trust import MayRun, require_trusted, require_trusted_command, say_no, trust
from tuner.model import TUNER_VERSION
from tuner.model.errors import SessionError
from tuner.model.settings import COMMAND, GivenSettings, option_of
from tuner.session.records import Manifest, file_sha, headers_sha

if TYPE_CHECKING:
    from tuner.model.kernel import KernelSpec
    from tuner.model.settings import RunConfig
    from tuner.session.session import Session
    from tuner.space.plan import Plan

_UNDO = "undo the change to resume, or start a new session: the times of two versions must not mix"
# What a resumed run may be given anew; the session keeps what it began with.
RENEWABLE = frozenset(
    {"mutants", "rounds", "max_tokens", "max_cost", "prices", "exchange", "sources", "gpus"}
    | {"trials", "peers"}
)


def resumed_plan(
    directory: Path,
    manifest: Manifest,
    kernel: Path | None,
    settings: GivenSettings,
    *,
    may_run: MayRun = say_no,
) -> Plan:
    """Rebuild a session's plan; raise `SessionError` where files or settings have changed.

    Files that were carried to another place are found by the `kernel` there. `may_run` is asked
    before the Python of a reference that this user has not run may run, unless a new run of the
    kernel that is named with the session would run it too.
    """
    config = manifest.config
    if kernel is not None and not config.space.exists():
        space, template = space_of(kernel, settings.get("space")), settings.get("template")
        definition = read_space(space, None if template is None else Path(template))
        config = replace(config, space=definition.spec.path, template=definition.spec.template)
    else:
        _require_there(directory, config.space, "put it back, or name the kernel where it lies now")
        definition = read_space(config.space, config.template)
    _require_unchanged(directory, manifest, definition.spec, _UNDO)
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
    directory: Path, manifest: Manifest, space: Path | None, *, may_run: MayRun = say_no
) -> Plan:
    """Rebuild a session's plan to verify its winners, with files moved to another place.

    `may_run` is asked as in `resumed_plan`.
    """
    config = manifest.config
    path = space or config.space
    _require_there(directory, path, "name a copy of it with --space")
    moved = space is not None or not config.template.exists()
    definition = read_space(path, None if moved else config.template)
    _require_unchanged(directory, manifest, definition.spec, _UNDO)
    require_trusted(definition.spec.reference, directory, may_run)
    return plan_of(definition, config)


def manifest_of(plan: Plan, command: tuple[str, ...]) -> Manifest:
    """Write down all that a resumed run must find unchanged; `command` started the run."""
    spec = plan.spec
    if any("://" in word for word in command):
        # Most have none, and SQLAlchemy takes long to import.
        from tuner.session.database import without_password

        command = tuple(map(without_password, command))
    return Manifest(
        kernel=spec.name,
        config=plan.config,
        space_sha=file_sha(spec.path),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        reference_sha=file_sha(spec.reference),
        tuner_version=TUNER_VERSION,
        command=command,
        # Sessions that begin in one second on machines alike are not the same.
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        headers_sha=headers_sha(spec),
    )


def unchanged_spec(session: Session, space: Path | None) -> KernelSpec:
    """Read a session's search space; raise `SessionError` where it or the kernel has changed."""
    from tuner.space.load import load_definition

    manifest, path = session.manifest, space or session.manifest.config.space
    _require_there(session.directory, path, "name a copy of it with --space")
    config = manifest.config
    spec = load_definition(path, config.operators, invariant=config.invariant).spec
    remedy = "undo the change, or tune again: what was measured is not this kernel"
    _require_unchanged(session.directory, manifest, spec, remedy, kernel_only=True)
    return spec


def _require_there(directory: Path, space: Path, remedy: str) -> None:
    if not space.exists():
        raise SessionError(f"its search space is gone: {space}", path=directory, remedy=remedy)


def _require_unchanged(
    directory: Path, manifest: Manifest, spec: KernelSpec, remedy: str, *, kernel_only: bool = False
) -> None:
    """Raise `SessionError` for changed files; `kernel_only` is as in `Manifest.list_changes`."""
    if not manifest.config.workloads:
        raise SessionError("is of no workload", path=directory)
    try:
        changed = manifest.list_changes(spec, kernel_only=kernel_only)
    except OSError as error:
        message = f"a file of it cannot be read: {error.filename}: {error.strerror}"
        raise SessionError(message, path=directory) from error
    if changed:
        message = f"changed since the session began: {', '.join(changed)}"
        raise SessionError(message, path=directory, remedy=remedy)
