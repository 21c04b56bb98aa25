"""Open the device that `--device` names."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.device.base import Device
from tuner.device.recorded.recording import recordings_of
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec, Workload

CHOICES = "auto, cuda, cuda:N, recorded, recorded:FILE or host"
HOST = "host"


def open_device(
    text: str,
    spec: KernelSpec,
    operators: Mapping[str, str],
    workloads: Sequence[Workload] | None = None,
) -> Device:
    """Open what `CHOICES` lists; raise `DeviceError` with what to do instead.

    `workloads` are those that will be asked for, where that is known: a file of Kernel Tuner
    holds one problem size and does not always say which workload that is.
    """
    if text == HOST:
        from tuner.device.cpu.device import HostDevice

        return HostDevice(spec, operators)
    kind, _, detail = text.partition(":")
    if kind == "recorded":
        return _recorded(spec, operators, detail, workloads)
    if kind == "cuda" and (detail.isdecimal() or not detail):
        return _cuda(spec, operators, int(detail or 0))
    if text == "auto":
        count = gpu_count()
        return _cuda(spec, operators, 0) if count else _recorded(spec, operators)
    raise DeviceError(f"unknown device {text!r}", remedy=f"use {CHOICES}")


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
        else "there is no recording of this kernel to answer instead"
    )
    if count == 0:
        raise DeviceError("no NVIDIA GPU was found", remedy=instead)
    if ordinal >= count:
        known = "the only one is 0" if count == 1 else f"there are 0 to {count - 1}"
        raise DeviceError(f"there is no GPU {ordinal}", remedy=known)
    if importlib.util.find_spec("cupy") is None:
        raise DeviceError(
            "CuPy is not installed, which measuring on a GPU needs",
            remedy=f"pip install '.[cuda13]' in the checkout (or cuda12); {instead}",
        )
    from tuner.device.cuda.device import CudaDevice

    return CudaDevice(ordinal, spec, operators)


def _recorded(
    spec: KernelSpec,
    operators: Mapping[str, str],
    file: str = "",
    workloads: Sequence[Workload] | None = None,
) -> Device:
    from tuner.device.recorded.recording import RecordedDevice

    if file:
        from tuner.device.recorded.foreign import is_foreign

        if not is_foreign(Path(file)):
            return RecordedDevice(Path(file), spec.name, operators, None, spec.surroundings_of)
        from tuner.device.recorded.foreign_recordings import recording_from
        from tuner.space.load import load_definition

        space = load_definition(spec.path, operators).space
        recording = recording_from(Path(file), spec, space, operators, workloads)
        return RecordedDevice(Path(file), spec.name, operators, recording, spec.surroundings_of)
    found = recordings_of(spec.source)
    if not found:
        raise DeviceError(
            "there is no GPU here and no recording of this kernel",
            path=spec.source,
            remedy="run it where there is a GPU (`tune record` makes a recording there), or name "
            "a recording with --device recorded:FILE; --device host verifies it on the CPU",
        )
    if len(found) > 1:
        raise DeviceError(
            "there are recordings of several GPUs",
            path=spec.source,
            remedy="choose one: " + " ".join(f"--device recorded:{path}" for path in found),
        )
    return RecordedDevice(found[0], spec.name, operators, None, spec.surroundings_of)
