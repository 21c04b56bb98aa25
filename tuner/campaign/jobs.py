"""One job of a campaign: the commands that begin it, go on with it and finish it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from tuner.app.plan import manifest_of, new_plan, option_of
from tuner.app.record import recording_plan
from tuner.device.recorded.recording import recordings_of
from tuner.device.select import AMD_DRIVER, recording_of, require_for
from tuner.model.errors import DeviceError
from tuner.model.languages import HIP
from tuner.model.settings import AUTO, RunSettings
from tuner.process.files import read_regular
from tuner.session.records import Manifest
from tuner.session.store import SCHEMA_VERSION
from tuner.space.plan import Plan

# What a run tries on a workload, by default.
_TRIALS = 100
TUNE = (sys.executable, "-m", "tuner")


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignJob:
    """A process to run, and to run again until it has ended well.

    `key` changes with everything that the outcome depends on. Where `session` holds a session that
    was begun with this key, `resume` goes on with it in the place of `start`. `finish` are commands
    that need no GPU and follow it; an `alone` job is run when no other one is. What costs most
    begins first, so that no GPU waits long for one at the end; `cost` has no unit. `cluster` is the
    address of the scheduler without which it cannot run; "" for none.
    """

    name: str
    kernel: str
    key: str
    start: tuple[str, ...]
    session: Path | None = None
    resume: tuple[str, ...] = ()
    finish: tuple[tuple[str, ...], ...] = ()
    needs_gpu: bool = False
    alone: bool = False
    cost: float = 0.0
    cluster: str = ""


def tuning_job(
    name: str,
    kernel: Path,
    settings: RunSettings,
    folder: Path,
    *,
    record: bool = False,
    cluster: str = "",
    how: tuple[str, ...] = (),
    finish: tuple[tuple[str, ...], ...] = (),
) -> CampaignJob:
    """Make the job that tunes a kernel, or records it; its session is `folder`/`name`.

    One with the address of a `cluster` is measured there, so it needs no GPU here.
    `how` are options that no session keeps, such as `--jobs 2`: they are said again where it goes
    on, and another choice of them is no other job. Raises `InputError` for all that a run would
    refuse of its files and settings, and `DeviceError` for peers and energy without a GPU, for a
    device that does not run the kernel's language, an AMD GPU or a recording that is not there, and
    for what cannot be recorded.
    """
    plan = new_plan(kernel, settings)
    plan = recording_plan(plan) if record else plan
    _require_device(plan)
    session = folder / name
    command = ("record",) if record else ()
    words = tuple(_words(settings))
    return CampaignJob(
        name=name,
        kernel=str(kernel),
        key=_key(plan, record=record),
        start=(*TUNE, *command, str(kernel), "--session", str(session), *words, *how),
        session=session,
        resume=(*TUNE, *command, "--resume", str(session), *how),
        finish=finish,
        needs_gpu=plan.config.device == "cuda" and not cluster,
        cost=_cost(plan),
        cluster=cluster,
    )


def _require_device(plan: Plan) -> None:
    device, objective = plan.config.device, plan.config.objective
    kind, _, file = device.partition(":")
    require_for(plan.spec, kind)
    no_amd = not AMD_DRIVER.exists()
    if kind == "hip" and no_amd:
        raise DeviceError("no AMD GPU was found", remedy="--device host verifies it on the CPU")
    # A kernel in HIP is answered for by its recording where there is no GPU.
    by_default = device == AUTO and plan.spec.language is HIP and no_amd
    if by_default or (kind == "recorded" and not file):
        recording_of(plan.spec.source)
    elif kind == "recorded":
        require_file(Path(file))
    require_meter(device, objective)


def require_file(recording: Path) -> None:
    """Raise `DeviceError` for a recording that is not there."""
    if not recording.is_file():
        raise DeviceError("there is no such recording", path=recording)


def require_meter(device: str, objective: str) -> None:
    """Raise `DeviceError` where energy is asked for of a device that measures none."""
    kind = device.partition(":")[0]
    if kind in ("recorded", "host") and objective != "time":
        raise DeviceError(
            f"--device {kind} has no energy meter",
            remedy="use a GPU (--device cuda), or --objective time",
        )


def _cost(plan: Plan) -> float:
    """Guess how long a run takes beside others, from its trials."""
    config = plan.config
    return len(config.workloads) * (config.trials or _TRIALS) * (1 + config.rounds)


def _words(settings: RunSettings) -> Iterator[str]:
    for name, value in settings.items():
        option = option_of(name)
        if name == "workloads":
            for workload in settings["workloads"]:
                yield from (option, workload)
        elif name == "operators":
            for macro, choice in settings["operators"].items():
                yield from (option, f"{macro}={choice}")
        elif name == "peers" and not isinstance(peers := settings["peers"], bool):
            for peer in peers:
                yield from ("--peer", peer)
        elif name == "time_s":
            yield from (option, f"{value}s")
        elif isinstance(value, bool):
            # `--peers` where it is true, `--no-prune` where it is not
            if value == (name != "prune"):
                yield option
        else:
            yield from (option, str(value))


def _key(plan: Plan, *, record: bool) -> str:
    """Hash what a run depends on: its config, the content of its files, and this program."""
    stated = replace(manifest_of(plan, ()), created="")
    content = hashlib.sha256(TypeAdapter(Manifest).dump_json(stated))
    kind, _, file = plan.config.device.partition(":")
    if kind == "recorded":
        for path in (Path(file),) if file else recordings_of(plan.spec.source):
            if path.is_file():
                content.update(read_regular(path))
    # A session that another version wrote cannot be gone on with.
    content.update(f"{'record' if record else 'tune'} {SCHEMA_VERSION}".encode())
    return content.hexdigest()[:16]
