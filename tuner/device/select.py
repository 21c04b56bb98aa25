"""Open the device that `--device` names."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.device.families import family, family_names
from tuner.device.recorded.recording import recordings_of
from tuner.model.errors import DeviceError, InputError
from tuner.model.hardware import is_amd
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.languages import HIP, OPENCL, PYTHON
from tuner.model.settings import COMMAND

CHOICES = (
    "auto, cuda, cuda:N, hip, hip:N, opencl, opencl:N, recorded, recorded:FILE, host or "
    "command:PROGRAM"
)
HOST = "host"
# Linux's driver of AMD's GPUs.
AMD_DRIVER = Path("/dev/kfd")
ALL = "all"
# Of the CPU or a recording, side by side.
MOST_MEMBERS = 64
_NUMBER = re.compile(r"[0-9]{1,9}")


def open_device(
    text: str,
    spec: KernelSpec,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None = None,
    *,
    gpus: str = "",
) -> Device:
    """Open what `CHOICES` lists; raise `DeviceError` with what to do instead.

    `workloads` are those that will be asked for, where that is known: a file of Kernel Tuner
    holds one problem size and does not always say which workload that is. `gpus` asks for several
    devices that share the workloads, as `members_of` reads it.
    """
    if not gpus:
        return _open_one(text, spec, operators, workloads)
    from tuner.device.group import group_of

    members = members_of(text, gpus)
    with ThreadPoolExecutor(len(members)) as pool:
        # At once: each GPU takes seconds.
        opening = {
            name: pool.submit(_open_one, device, spec, operators, workloads)
            for name, device in members.items()
        }
        try:
            return group_of({name: future.result() for name, future in opening.items()})
        except BaseException:
            for future in opening.values():
                if future.exception() is None:
                    future.result().close()
            raise


def members_of(text: str, gpus: str) -> dict[str, str]:
    """Name the devices that `gpus` asks for, each with what `--device` calls it.

    Of GPUs it is `all` or a list of their numbers. A recording and the CPU have no numbers: there
    `4` is four of them side by side, `0,1` two, and `all` one for each core. Raises `DeviceError`
    for what is not there, and `InputError` for what is no list.
    """
    listed = [] if gpus.strip() == ALL else _numbers(gpus)
    kind, _, detail = text.partition(":")
    if kind in (HOST, "recorded"):
        count = len(os.sched_getaffinity(0))
        if listed:
            count = listed[0] if len(listed) == 1 else len(listed)
        if not 0 < count <= MOST_MEMBERS:
            raise InputError(
                f"--gpus {gpus} asks for {count} members of --device {text}",
                remedy=f"there may be 1 to {MOST_MEMBERS}: the number is how many, as in --gpus 2",
            )
        return {f"member {number}": text for number in range(count)}
    if text.startswith(COMMAND):
        raise InputError(
            f"--gpus {gpus} shares work among devices of tune's own, and {text} is a program",
            remedy="leave it out: the program says how many requests it takes at once (`parallel`)",
        )
    if kind == "cuda" and detail:
        raise InputError(
            f"--device {text} names one GPU, and --gpus {gpus} others",
            remedy=f"leave one of them out: --gpus {detail} is that GPU",
        )
    if kind in ("hip", "opencl"):
        raise InputError(
            f"--gpus {gpus} is not for --device {text}",
            remedy=f"leave --gpus out: --device {kind}:1 is the second one",
        )
    if text not in ("auto", "cuda"):
        raise unknown_device(text)
    count = gpu_count()
    if missing := [number for number in listed if number >= count] if count else []:
        raise _no_such_gpu(missing[0], count)
    # Without any, the first is refused with what to do instead.
    return {f"GPU {number}": f"cuda:{number}" for number in listed or range(max(count, 1))}


def _numbers(gpus: str) -> list[int]:
    words = [word.strip() for word in gpus.split(",")]
    all_numbers = all(_NUMBER.fullmatch(word) for word in words)
    if not all_numbers or len({*map(int, words)}) < len(words):
        raise InputError(
            f"--gpus {gpus!r} is no list of GPUs",
            remedy="write all, or their numbers, each once: --gpus 0,1",
        )
    return [int(word) for word in words]


def _open_one(
    text: str,
    spec: KernelSpec,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None,
) -> Device:
    kind, _, detail = text.partition(":")
    require_for(spec, kind)
    if text in (f"{HOST}:", COMMAND.rstrip(":")):
        raise unknown_device(text)
    if kind in family_names():
        return family(kind).open(detail, spec, operators)
    if kind == "recorded":
        return _open_recording(spec, operators, detail, workloads)
    if kind == "cuda" and (detail.isdecimal() or not detail):
        return _cuda(spec, operators, int(detail or 0))
    if text == "auto" and spec.language is HIP and AMD_DRIVER.exists():
        return family("hip").open("", spec, operators)
    if text == "auto" and spec.language is HIP:
        return _open_recording(spec, operators)
    if text == "auto" and spec.language is OPENCL:
        return family("opencl").open("", spec, operators)
    if text == "auto":
        count = gpu_count()
        return _cuda(spec, operators, 0) if count else _open_recording(spec, operators)
    raise unknown_device(text)


def unknown_device(text: str) -> DeviceError:
    """Say which devices there are."""
    return DeviceError(f"unknown device {text!r}", remedy=f"use {CHOICES}")


def open_compiler(jobs: int | None, *, on_cpu: bool = False, architecture: str = "") -> Compiler:
    """Start what compiles for the CPU, or for a GPU: clang for one of AMD's architectures.

    `jobs` is one per core where not given. Raises `DeviceError` where there is no g++ for the CPU,
    and no clang that knows the architecture.
    """
    if on_cpu:
        return family(HOST).compiler(jobs, "")
    if is_amd(architecture):
        return family("hip").compiler(jobs, architecture)
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool

    return NvrtcPool(workers=jobs, cache=Cache())


def gpu_count() -> int:
    """Count the NVIDIA GPUs that the driver shows; 0 without a driver."""
    from cuda.bindings import driver

    try:
        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return 0
        status, count = driver.cuDeviceGetCount()
    except RuntimeError:  # raised by the bindings where libcuda is not installed
        return 0
    return int(count) if status == driver.CUresult.CUDA_SUCCESS else 0


def _cuda(spec: KernelSpec, operators: Mapping[str, str], ordinal: int) -> Device:
    count = gpu_count()
    recorded = recordings_of(spec.source)
    instead = (
        f"--device recorded would answer from measurements in {recorded[0]}"
        if recorded
        else "there is no recording of this kernel either; --device host verifies it on the CPU"
    )
    if count == 0:
        raise DeviceError("no NVIDIA GPU was found", remedy=instead)
    if ordinal >= count:
        raise _no_such_gpu(ordinal, count)
    if importlib.util.find_spec("cupy") is None:
        raise DeviceError(
            "CuPy is not installed, which measuring on a GPU needs",
            remedy=f"pip install -e '.[cuda13]' in the checkout (or cuda12); {instead}",
        )
    from tuner.device.cuda.device import CudaDevice

    return CudaDevice(ordinal, spec, operators)


def _no_such_gpu(number: int, count: int) -> DeviceError:
    choice = "the only one is 0" if count == 1 else f"there are 0 to {count - 1}"
    return DeviceError(f"there is no GPU {number}", remedy=choice)


def require_for(spec: KernelSpec, kind: str) -> None:
    """Raise `DeviceError` where a device of a kind cannot run a kernel of this language."""
    if spec.language is OPENCL and kind in ("cuda", HOST):
        raise DeviceError(
            f"--device {kind} does not run OpenCL", path=spec.source, remedy="use --device opencl"
        )
    if spec.language is HIP and kind == "cuda":
        raise DeviceError(
            "a kernel in HIP does not run on NVIDIA's GPUs",
            path=spec.source,
            remedy="--device hip measures it on AMD's, --device host verifies it on the CPU",
        )
    not_hip = kind == "hip" and spec.language in (PYTHON, OPENCL)
    if not_hip or (kind == "opencl" and spec.language is not OPENCL):
        runs = "HIP" if not_hip else "OpenCL"
        raise DeviceError(
            f"--device {kind} runs {runs}, and this is {spec.language.name}",
            path=spec.source,
            remedy="use another device: `tune devices` lists them",
        )


def _open_recording(
    spec: KernelSpec,
    operators: Mapping[str, str],
    file: str = "",
    workloads: Sequence[Workload] | None = None,
) -> Device:
    from tuner.device.recorded.recording import RecordedDevice, read_foreign

    if file:
        recording = read_foreign(Path(file), spec, operators, workloads)
        return RecordedDevice(Path(file), spec.name, operators, recording, spec.surroundings_of)
    path = recording_of(spec.source)
    return RecordedDevice(path, spec.name, operators, None, spec.surroundings_of)


def recording_of(source: Path) -> Path:
    """Find the one recording that lies beside a kernel; raise `DeviceError` for none or several."""
    paths = recordings_of(source)
    if not paths:
        raise DeviceError(
            "there is no GPU here and no recording of this kernel",
            path=source,
            remedy="run it where there is a GPU (`tune record` makes a recording there), or name "
            "a recording with --device recorded:FILE; --device host verifies it on the CPU",
        )
    if len(paths) > 1:
        raise DeviceError(
            "there are recordings of several GPUs",
            path=source,
            remedy="choose one: " + " ".join(f"--device recorded:{path}" for path in paths),
        )
    return paths[0]
