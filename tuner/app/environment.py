"""Where a run's times come from: said in its first line and kept with its session."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.model import TUNER_VERSION
from tuner.model.errors import Interrupted, SessionError
from tuner.process.files import read_regular

if TYPE_CHECKING:
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.session.session import Session

GIT_TIMEOUT_S = 5.0
# The commit of the code, for a copy of it that has no .git; goes before what git says.
COMMIT = "TUNE_COMMIT"


def headline(device: Device) -> str:
    """Say what runs where; a recording is said to be one before anything else is said."""
    info = device.info
    several = info.members > 1
    if info.on_cpu:
        members = f" IN {info.members} MEMBERS" if several else ""
        return (
            f"ON THE CPU{members}: {info.name} runs the kernels; its times are its own and say "
            "nothing of a GPU's"
        )
    if info.evaluator:
        if info.verifies:
            return f"{info.name}: {info.evaluator} compiles, verifies and times, not tune"
        return f"{info.name}: {info.evaluator} compiles and times, not tune; NOTHING IS VERIFIED"
    if "recording" not in device.capabilities:
        count = f"{info.members} GPUs, each " if several else ""
        return f"{count}{info.name} ({info.architecture}): everything is measured here"
    here, path = Path.cwd(), device.recording.path
    path = path.relative_to(here) if path.is_relative_to(here) else path
    return (
        "RECORDED: no GPU is used; answers come from measurements made on "
        f"{article(info.name)} {info.name} on {_date(device.recording.created)} ({path})"
        + (f", for {info.members} members" if several else "")
    )


def article(noun: str) -> str:
    """Choose between `a` and `an`; initials such as NVIDIA's are spelt out when read."""
    spelt_out = noun[:2].isupper()
    return "an" if noun[:1] in ("AEFHILMNORSX" if spelt_out else "AEIOUaeiou") else "a"


def environment_of(device: Device, compiler: Compiler, folder: Path) -> Mapping[str, str]:
    """Describe the hardware and the software of a run; `folder` is in the kernel's checkout."""
    from tuner.model.statistics import PROTOCOL

    info = device.info
    described = {
        "device": info.name,
        "recorded": str(info.recorded).lower(),
        "on_cpu": str(info.on_cpu).lower(),
        "streaming_gbps": str(info.streaming_gbps),
        "architecture": info.architecture,
        "multiprocessors": str(info.multiprocessors),
        # Recordings did not say so at first.
        "protocol": "1" if info.recorded else str(PROTOCOL),
        **info.environment,
        "compiler": compiler.version,
        "tune": TUNER_VERSION,
        "python": platform.python_version(),
        "commit": _commit(folder),
    }
    if "recording" in device.capabilities:
        described["date"] = _date(device.recording.created)
        described["recording"] = _identity(device.recording.path)
    return {name: value for name, value in described.items() if value}


def require_same_device(session: Session, device: Device) -> None:
    """Raise `SessionError` unless the device answers as it did when the session began."""
    from tuner.model.statistics import PROTOCOL

    now = {"device": device.info.name}
    if "recording" in device.capabilities:
        now["recording"] = _identity(device.recording.path)
    else:
        now["protocol"] = str(PROTOCOL)
    for name, found in now.items():
        before = session.environment.get(name, "1" if name == "protocol" else "unknown")
        if before != found:
            raise SessionError(
                f"the {name} was {before} and is now {found}",
                path=session.directory,
                remedy="resume it where it began, or start a new session: times of two devices, or "
                "of two protocols, must not mix",
            )


def _date(created: str) -> str:
    return created.partition("T")[0]


def _identity(recording: Path) -> str:
    from tuner.device.recorded.recording import MAX_BYTES

    return f"{recording.name} {hashlib.sha256(read_regular(recording, MAX_BYTES)).hexdigest()[:12]}"


def _commit(folder: Path) -> str:
    if stated := os.environ.get(COMMIT):
        return stated
    git = shutil.which("git")
    if git is None:
        return ""
    try:
        described = subprocess.run(  # noqa: S603
            [git, "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return described.stdout.strip()


def program_name() -> str:
    """Return the name that the user can type again: `scripts/tune` says its own."""
    return os.environ.get("TUNE_PROGRAM", "tune")


def resume_line(interrupted: Interrupted) -> str:
    return f"interrupted; resume with: {program_name()} {shlex.join(interrupted.command)}"
