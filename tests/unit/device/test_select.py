"""Which device `--device` opens, and what is said where it cannot be opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from recordings import recording

from tuner.device.recorded.recording import RecordedDevice, save_recording
from tuner.device.select import gpu_count, open_device
from tuner.model.errors import DeviceError
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
    assert error.remedy == "use auto, cuda, cuda:N, recorded, recorded:FILE or host"


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
    assert "no recording of this kernel" in str(refused("cuda", spec))
    error = refused("auto", spec)
    assert "no GPU here and no recording" in error.message
    assert "recorded:FILE" in str(error)
