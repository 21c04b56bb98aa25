"""Kernel Tuner's files as the `recorded` device: which config, workload, baseline and GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.caches import BLOCKS, cache, written
from tuner.device.base import Program
from tuner.device.recorded.known_gpus import GPUS
from tuner.device.recorded.recording import RecordedDevice
from tuner.device.select import open_device
from tuner.extensions.study.kernel_tuner_recordings import FOREIGN, device_info, recording_from
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.hardware import limits_for
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.space.load import load_definition
from tuner.testing.recordings import ForeignFilesContract

LAUNCH = (Launch("scale", (8, 1, 1), (256, 1, 1)),)
SMALL, LARGE, OTHER = (Workload.of({"N": n}) for n in (1000, 100000, 3000))
BASELINE = None


@pytest.fixture
def spec(project: Path):
    return load_definition(project / "scale.yaml").spec


@pytest.fixture
def opened(spec, tmp_path: Path):
    """Open a cache with these changes for some workloads."""

    def make(*workloads: Workload, **changes: object) -> RecordedDevice:
        path = written(tmp_path / "cache.json.gz", cache(**changes))
        device = open_device(f"recorded:{path}", spec, {}, workloads or (SMALL,))
        assert isinstance(device, RecordedDevice)
        return device

    return make


class TestKernelTunerFiles(ForeignFilesContract):
    @pytest.fixture
    def files(self):
        return FOREIGN

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return written(tmp_path / "cache.json", cache())

    @pytest.fixture
    def workload(self) -> Workload:
        return SMALL


def program(config: Config | None, workload: Workload = SMALL) -> Program:
    return Program("any source", workload, LAUNCH, config=config)


def config(block: int, items: int) -> Config:
    return Config.of({"block": block, "items": items})


def test_it_answers_by_config_and_not_by_source(opened) -> None:
    outcome = opened().run(program(config(256, 4)))
    assert outcome.status is Status.CORRECT
    assert outcome.measurement.times_us == pytest.approx((1e3,) * 7)


def test_failed_and_missing_configs_are_told_apart(opened) -> None:
    device = opened(cache={k: v for k, v in cache()["cache"].items() if k != "32,1"})
    assert device.run(program(config(512, 8))).status is Status.LAUNCH
    missing = device.run(program(config(32, 1)))
    assert (missing.status, "this config" in missing.reason) == (Status.NOT_RECORDED, True)


def test_the_default_config_stands_in_for_the_baseline_and_the_report_says_so(opened) -> None:
    device = opened()
    baseline = device.run(program(BASELINE)).measurement
    assert baseline == device.run(program(config(128, 1))).measurement
    info, told = device.info, device.info.environment
    assert (info.name, info.architecture) == ("NVIDIA A100-PCIE-40GB", "sm_80")
    assert (info.compute_capability, info.multiprocessors, info.recorded) == ((8, 0), 108, True)
    assert "default config stands in" in told["baseline"]
    assert "another program" in told["timed_by"]
    assert told["recorded_problem_size"] == "1000, taken for N=1000"


def test_values_that_are_equal_in_python_are_one(opened, project: Path, spec, tmp_path) -> None:
    path = project / "scale.yaml"
    path.write_text(path.read_text().replace("items: [1, 2, 4, 8]", "items: [false, true]"))
    path.write_text(path.read_text().replace("items: 1}", "items: true}"))
    space = load_definition(path).space
    content = cache(tune_params={"block": list(BLOCKS), "items": [0, 1]})
    content["cache"] = {"a": {"block": 128.0, "items": 1, "time": 2.0}}
    file = written(tmp_path / "c.json", content)
    recording = recording_from(file, spec, space, {}, (SMALL,))
    device = RecordedDevice(file, "scale", {}, recording)
    found = device.run(program(Config.of({"block": 128, "items": True})))
    assert found.status is Status.CORRECT


def test_other_parameters_are_one_error_that_lists_both(opened) -> None:
    entries = {"1": {"x": 1, "time": 1.0}}
    with pytest.raises(DeviceError) as caught:
        opened(tune_params_keys=["x"], tune_params={"x": [1]}, cache=entries)
    assert caught.value.message == (
        "its parameters are x; those of the search space are block, items"
    )


@pytest.mark.parametrize(
    ("size", "asked", "words"),
    [
        ([5], (SMALL, LARGE), "one problem size, 5; which of 2 workloads that is, is not clear"),
        ("callable", (SMALL, LARGE), "problem size, it does not tell;"),
        ([1000], (SMALL, LARGE), "one workload, N=1000; this run asks for 1 more"),
    ],
)
def test_a_workload_that_is_not_clear_is_an_error_that_names_the_option(
    opened, size, asked, words
) -> None:
    with pytest.raises(DeviceError) as caught:
        opened(*asked, problem_size=size)
    assert words in caught.value.message
    assert "--workload N=1000" in caught.value.remedy


def test_the_only_workload_asked_for_is_the_one_that_was_measured(opened) -> None:
    device = opened(OTHER, problem_size=["a", "b"])
    assert device.run(program(config(256, 4), OTHER)).status is Status.CORRECT
    with pytest.raises(DeviceError, match="no measurements for workload N=1000"):
        device.run(program(config(256, 4)))


def test_without_words_on_the_workloads_the_size_decides(spec, tmp_path: Path) -> None:
    path = written(tmp_path / "cache.json", cache(problem_size=[1, 100000, 1]))
    device = open_device(f"recorded:{path}", spec, {})
    assert device.run(program(config(256, 4), LARGE)).status is Status.CORRECT


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device_name": ""}, "does not say on which GPU"),
        ({"device_name": "NVIDIA GeForce 9999"}, "whose numbers are not known"),
        ({"cache": {"a": {"block": 32, "items": 1, "time": 1}}}, "has no answer for the default"),
        (
            {"cache": {"a": {"block": 128, "items": 1, "time": "InvalidConfig"}}},
            "says `constraint` of the default config",
        ),
    ],
)
def test_a_file_that_lacks_its_gpu_or_a_baseline_says_what_to_do(opened, changes, words) -> None:
    with pytest.raises(DeviceError) as caught:
        opened(**changes)
    assert words in caught.value.message
    assert caught.value.path is not None
    assert caught.value.remedy


def test_a_space_without_a_default_has_nothing_to_stand_in(project: Path, opened) -> None:
    path = project / "scale.yaml"
    path.write_text(path.read_text().replace("default: {block: 128, items: 1}\n", ""))
    with pytest.raises(DeviceError, match="names no default config"):
        opened()


def test_the_finals_are_compared_by_the_files_own_samples(opened) -> None:
    rounds = opened().compare([program(BASELINE), program(config(256, 4))], rounds=40)
    assert (rounds.paired, len(rounds.times_us)) == (False, 7)


@pytest.mark.parametrize("name", GPUS)
def test_every_known_gpu_has_limits(name: str) -> None:
    info = device_info(f"NVIDIA {name.upper()}")
    assert limits_for(info.compute_capability).compute_capability == info.compute_capability
    assert info.l2_bytes > 1 << 20
