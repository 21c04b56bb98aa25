"""`tune devices`: the GPUs and the recordings that `--device` can name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import click

from tuner.app.locate import find_recordings
from tuner.cli import options
from tuner.device.families import family, family_names
from tuner.model.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that the driver shows."""

    device: str
    name: str
    architecture: str
    multiprocessors: int
    memory_gib: float


@dataclass(frozen=True, slots=True)
class RecordingRow:
    """One recording in the tree, or why it cannot be read."""

    device: str
    kernel: str
    name: str
    date: str
    problem: str = ""


@click.command("devices")
@options.as_json
def command(as_json: bool) -> None:
    """List the GPUs and OpenCL devices here and the recordings under kernels/."""
    gpus, recordings = tuple(list_gpus()), tuple(list_recordings(Path.cwd()))
    families = [d for d in map(family, family_names()) if d.listed_as]
    others = {device_family.listed_as: device_family.list_here() for device_family in families}
    if as_json:
        listed = {"gpus": [*map(asdict, gpus)]}
        for name, devices in others.items():
            listed[name] = [{"device": device.device, **device.facts} for device in devices]
        click.echo(json.dumps({**listed, "recordings": [*map(asdict, recordings)]}))
        return
    for gpu in gpus:
        click.echo(
            f"{gpu.device}  {gpu.name}, {gpu.architecture}, {gpu.multiprocessors} "
            f"multiprocessors, {gpu.memory_gib:.0f} GiB"
        )
    if not gpus:
        click.echo("no NVIDIA GPU found")
    for one in chain.from_iterable(others.values()):
        click.echo(f"{one.device}  {one.text}")
    for recording in recordings:
        what = recording.problem or f"{recording.kernel} on {recording.name}, {recording.date}"
        click.echo(f"{recording.device}  {what}")
    if not recordings:
        click.echo("no recordings under kernels/ here")
    click.echo("command:PROGRAM  a program of yours compiles and times (docs/evaluators.md)")


def list_gpus() -> Iterator[Gpu]:
    """Ask the driver for its GPUs; there are none without a driver."""
    from tuner.device.select import gpu_count

    count = gpu_count()
    if not count:
        return
    from cuda.bindings import driver

    from tuner.device.cuda.driver import call, gpu_name

    attributes = driver.CUdevice_attribute
    for ordinal in range(count):
        handle = call(driver.cuDeviceGet, ordinal)
        major, minor, multiprocessors = (
            call(driver.cuDeviceGetAttribute, attribute, handle)
            for attribute in (
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        yield Gpu(
            device=f"cuda:{ordinal}",
            name=gpu_name(ordinal),
            architecture=f"sm_{major}{minor}",
            multiprocessors=multiprocessors,
            memory_gib=call(driver.cuDeviceTotalMem, handle) / 2**30,
        )


def list_recordings(start: Path) -> Iterator[RecordingRow]:
    """Read the recordings of a tree; a damaged one is listed with what is wrong with it."""
    from tuner.device.recorded.recording import SUFFIX, load_recording

    for path in find_recordings(start, SUFFIX):
        device = f"recorded:{path.relative_to(start)}"
        try:
            recording = load_recording(path)
        except DeviceError as error:
            yield RecordingRow(device, "", "", "", error.message)
            continue
        date = recording.created.partition("T")[0]
        yield RecordingRow(device, recording.kernel, recording.device.name, date)
