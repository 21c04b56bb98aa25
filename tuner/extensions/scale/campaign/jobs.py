"""One job of a campaign: the commands that begin it, go on with it and finish it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tuner.app.plan import agent_settings, new_plan
from tuner.app.record import recording_plan
from tuner.app.session_plan import manifest_of
from tuner.device.recorded.recording import recordings_of
from tuner.device.select import AMD_DRIVER, recording_of, require_for
from tuner.model.errors import DeviceError, InputError
from tuner.model.languages import HIP
from tuner.model.settings import AUTO, GivenSettings, read_settings, words_of
from tuner.process.files import read_regular
from tuner.search.factory import require_searcher
from tuner.session.records import Manifest
from tuner.session.store import SCHEMA_VERSION
from tuner.space.plan import Plan

# What a run tries on a workload, by default.
_TRIALS = 100
TUNE = (sys.executable, "-m", "tuner")
RECORDED_FILE = "recorded:"
CERTIFICATES = ("tls_ca", "tls_cert", "tls_key")


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
    settings: GivenSettings,
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
    session = folder / name
    command = ("record",) if record else ()
    words, workloads = tuple(words_of(settings)), len(plan.config.workloads)
    # On another machine nobody has run the kernel's reference yet: its user names it here, too.
    space = ("--space", str(settings["space"])) if "space" in settings else ()
    return CampaignJob(
        name=name,
        kernel=str(kernel),
        key=_key(plan, record=record),
        start=(*TUNE, *command, str(kernel), "--session", str(session), *words, *how),
        session=session,
        resume=(*TUNE, *command, str(kernel), "--resume", str(session), *space, *how),
        finish=finish,
        needs_gpu=plan.config.device == "cuda" and not cluster,
        # How long it takes beside others, by its trials.
        cost=workloads * (plan.config.trials or _TRIALS) * (1 + plan.config.rounds),
        cluster=cluster,
    )


About = Callable[..., AbstractContextManager[None]]


def check_settings(
    given: GivenSettings, called: Mapping[str, Any], base: Path, about: About
) -> None:
    """Raise `TunerError` for what a run of any kernel would refuse, without asking a server.

    `given` are a job's settings, `called` those that no session keeps, all with paths from `base`;
    `about` is told the keys at fault.
    """
    asked = read_settings(given)
    store, device = called.get("store"), asked.device
    if store is not None or called.get("copy_session"):
        from tuner.extensions.scale.session_copies import require_server
        from tuner.session.database import find_store

        with about("store", "copy_session"):
            location = find_store(store, os.environ)
            if called.get("copy_session"):
                require_server(location)
    if "cluster" in called:
        from tuner.extensions.scale.cluster.network import (
            require_address,
            require_dask,
            require_scheme,
            security_of,
        )
        from tuner.extensions.scale.cluster_run import require_of_cluster
        from tuner.model.cluster import TlsFiles

        with about("device", "gpu_model", "cluster"):
            require_of_cluster(device, called.get("gpu_model", ""))
        with about("cluster"):
            require_dask()
            address = require_address(called["cluster"])
        authority, certificate, key = (
            base / called[name] if name in called else None for name in CERTIFICATES
        )
        tls = None
        with about(*CERTIFICATES):
            if authority is not None and certificate is not None:
                tls = TlsFiles(authority, certificate, key)
            elif authority or certificate or key:
                raise InputError("`tls_ca` and `tls_cert` are needed together")
            security = security_of(tls, "client")
        with about("cluster"):
            require_scheme(address, security, "client")
    if device.startswith(RECORDED_FILE):
        with about("device"):
            require_file(base / device.removeprefix(RECORDED_FILE))
    with about("objective", "device"):
        require_meter(device, asked.objective)
    with about("searcher"):
        require_searcher(asked.searcher)
    with about("agent", "model", "max_tokens", "max_cost", "prices"):
        agent_settings(given, drafted=False)


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
