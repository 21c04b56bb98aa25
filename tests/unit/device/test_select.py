"""Which device `--device` opens, and what is said where it cannot be opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import recording

from tuner.device import select
from tuner.device.group import DeviceGroup
from tuner.device.recorded.recording import RecordedDevice, save_recording
from tuner.device.select import CHOICES, gpu_count, members_of, open_device
from tuner.model.errors import DeviceError, InputError
from tuner.model.kernel import KernelSpec

without_gpu = pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")


@pytest.fixture
def spec(make_spec: Callable[..., KernelSpec]) -> KernelSpec:
    return make_spec(("y", "float32", ("T",), "output"), ("x", "float32", ("T",), "input"))


def record(spec: KernelSpec, gpu: str) -> Path:
    path = spec.source.parent / "recordings" / gpu / "example.json.xz"
    save_recording(recording(), path)
    return path


def refused(text: str, spec: KernelSpec) -> DeviceError:
    with pytest.raises(DeviceError) as caught:
        open_device(text, spec, {})
    return caught.value


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:first", "cuda:-1", "auto:1", "CUDA", "cpu", "record"]
)
def test_an_unknown_name_is_refused_with_those_that_are_known(text: str, spec: KernelSpec) -> None:
    error = refused(text, spec)
    assert repr(text) in error.message
    assert error.remedy == f"use {CHOICES}"


def test_recorded_opens_the_file_beside_the_kernel_or_the_named_one(
    spec: KernelSpec,
) -> None:
    path = record(spec, "nvidia-h200")
    elsewhere = spec.source.parent / "else: where.json.xz"
    shutil.copy(path, elsewhere)
    for text, opened in (("recorded", path), (f"recorded:{elsewhere}", elsewhere)):
        device = open_device(text, spec, {})
        assert isinstance(device, RecordedDevice)
        assert device.path == opened


def test_recorded_without_a_recording_says_how_to_make_one(spec: KernelSpec) -> None:
    error = refused("recorded", spec)
    assert error.path == spec.source
    assert "tune record" in str(error)


def test_several_recordings_leave_the_choice_to_the_user(spec: KernelSpec) -> None:
    paths = [record(spec, "nvidia-a100"), record(spec, "nvidia-h200")]
    error = refused("recorded", spec)
    assert "several GPUs" in error.message
    assert error.remedy is not None
    for path in paths:
        assert f"--device recorded:{path}" in error.remedy


@without_gpu
def test_auto_without_a_gpu_answers_from_the_recording(spec: KernelSpec) -> None:
    record(spec, "nvidia-h200")
    assert open_device("auto", spec, {}).info.recorded


@without_gpu
@pytest.mark.parametrize("text", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_without_a_gpu_says_what_recorded_would_do(text: str, spec: KernelSpec) -> None:
    path = record(spec, "nvidia-h200")
    error = refused(text, spec)
    assert error.message == "no NVIDIA GPU was found"
    assert error.remedy == f"--device recorded would answer from measurements in {path}"
    assert error.exit_code == 2


@without_gpu
def test_auto_without_a_gpu_or_a_recording_says_how_to_go_on(spec: KernelSpec) -> None:
    assert "no recording of this kernel either; --device host" in str(refused("cuda", spec))
    error = refused("auto", spec)
    assert "no GPU here and no recording" in error.message
    assert "recorded:FILE" in str(error)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "gpu_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "gpus", "opened"),
    [
        ("cuda", "all", {"GPU 0": "cuda:0", "GPU 1": "cuda:1"}),
        ("auto", "1, 0", {"GPU 1": "cuda:1", "GPU 0": "cuda:0"}),
        ("cuda", "1", {"GPU 1": "cuda:1"}),
        ("recorded", "2", {"member 0": "recorded", "member 1": "recorded"}),
        ("recorded:a,b", "0,1", {"member 0": "recorded:a,b", "member 1": "recorded:a,b"}),
        ("host", "1", {"member 0": "host"}),
    ],
)
def test_gpus_are_those_of_the_driver_or_so_many_members(
    device: str, gpus: str, opened: dict[str, str]
) -> None:
    assert members_of(device, gpus) == opened


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "gpus", "told"),
    [
        ("cuda", "7", "there is no GPU 7\n  there are 0 to 1"),
        ("cuda", "0,2", "there is no GPU 2\n  there are 0 to 1"),
        ("cuda", "some", "--gpus 'some' is no list of GPUs\n  write all, or their numbers"),
        ("auto", "0,0", "--gpus '0,0' is no list of GPUs\n  write all, or their numbers"),
        ("cuda", "0,", "--gpus '0,' is no list of GPUs"),
        ("cuda", "-1", "--gpus '-1' is no list of GPUs"),
        ("cuda:1", "0", "--device cuda:1 names one GPU, and --gpus 0 others\n  leave one of them"),
        ("host", "0", "--gpus 0 asks for 0 members of --device host"),
        ("recorded", "1000", "--gpus 1000 asks for 1000 members"),
        ("gpu", "0", "unknown device 'gpu'"),
    ],
)
def test_gpus_that_cannot_be_are_one_error_with_what_there_is(
    device: str, gpus: str, told: str
) -> None:
    with pytest.raises((DeviceError, InputError)) as caught:
        members_of(device, gpus)
    assert str(caught.value).startswith(told)
    assert caught.value.exit_code == 2
    assert caught.value.remedy


@without_gpu
@pytest.mark.parametrize("device", ["cuda", "auto"])
@pytest.mark.parametrize("gpus", ["all", "0,1"])
def test_gpus_without_a_gpu_are_refused_as_one_is(device: str, gpus: str, spec: KernelSpec) -> None:
    record(spec, "nvidia-h200")
    with pytest.raises(DeviceError) as caught:
        open_device(device, spec, {}, gpus=gpus)
    assert str(caught.value) == str(refused("cuda", spec))


def test_members_of_a_recording_are_one_device(spec: KernelSpec) -> None:
    path = record(spec, "nvidia-h200")
    device = open_device("recorded", spec, {}, gpus="3")
    assert isinstance(device, DeviceGroup)
    assert device.info.members == 3
    assert device.recording.path == path


def test_what_opened_is_closed_where_another_does_not(
    spec: KernelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Opened(RecordedDevice):
        def close(self) -> None:
            closed.append(self)

    path = record(spec, "nvidia-h200")

    def open_one(text: str, *_: object) -> RecordedDevice:
        if text == "cuda:1":
            raise DeviceError("GPU 1 is in use")
        return Opened(path, "example", {})

    monkeypatch.setattr(select, "_open_one", open_one)
    monkeypatch.setattr(select, "gpu_count", lambda: 3)
    with pytest.raises(DeviceError, match="GPU 1 is in use"):
        open_device("cuda", spec, {}, gpus="all")
    assert len(closed) == 2
