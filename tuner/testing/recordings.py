"""What every reader of another tuner's files does, for who writes one: derive from the class below.

    class TestMine(ForeignFilesContract):
        @pytest.fixture
        def files(self): ...       # the object that the entry point names
        @pytest.fixture
        def path(self): ...        # a file of that tuner
        @pytest.fixture
        def spec(self): ...        # of the kernel that it measured
        @pytest.fixture
        def workload(self): ...    # the one that it measured

It is a `tuner.device.recorded.recording.ForeignFiles`. A file that it takes for one of that tuner
and cannot use is a `DeviceError` with path and remedy, whatever is in it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.device.base import Program
from tuner.device.recorded.recording import (
    ForeignFiles,
    RecordedDevice,
    Recording,
    save_recording,
)
from tuner.model.config import Config
from tuner.model.errors import DeviceError
from tuner.model.hardware import limits_for
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.model.trial import Status


class ForeignFilesContract:
    """Subclasses give the fixtures `files`, `path`, `spec` and `workload`."""

    @pytest.fixture
    def recording(
        self, files: ForeignFiles, path: Path, spec: KernelSpec, workload: Workload
    ) -> Recording:
        return files.read(path, spec, {}, [workload])

    def test_it_is_known_by_what_it_holds(
        self, files: ForeignFiles, path: Path, recording: Recording, tmp_path: Path
    ) -> None:
        assert isinstance(files, ForeignFiles)
        renamed = tmp_path / "renamed"
        renamed.write_bytes(path.read_bytes())
        assert files.is_foreign(renamed)
        save_recording(recording, tmp_path / "ours.json.xz")
        (tmp_path / "empty").touch()
        for other in ("ours.json.xz", "empty"):
            assert not files.is_foreign(tmp_path / other)

    def test_it_names_a_gpu_that_is_known(self, recording: Recording) -> None:
        assert recording.device.name
        assert limits_for(recording.device.compute_capability)

    def test_a_device_answers_for_each_config_and_for_the_baseline(
        self, path: Path, spec: KernelSpec, workload: Workload, recording: Recording
    ) -> None:
        assert recording.keyed_by == "config"
        device = RecordedDevice(path, spec.name, {}, recording)
        keys = recording.workloads[workload.key].programs
        configs = [Config.of(json.loads(key)) for key in keys if key.startswith("{")]
        assert configs
        launches = (Launch(spec.name, (1, 1, 1), (32, 1, 1)),)
        programs = [
            Program("any source", workload, launches, config=config) for config in (None, *configs)
        ]
        outcomes = [device.run(program) for program in programs]
        assert outcomes[0].status is Status.CORRECT
        for outcome in outcomes:
            assert outcome.status is not Status.NOT_RECORDED
            assert (outcome.status is Status.CORRECT) == (outcome.measurement is not None)
            assert outcome.status is Status.CORRECT or outcome.reason

    def test_it_reads_the_same_twice(
        self,
        files: ForeignFiles,
        path: Path,
        spec: KernelSpec,
        workload: Workload,
        recording: Recording,
    ) -> None:
        assert files.read(path, spec, {}, [workload]) == recording

    def test_a_workload_that_was_not_measured_is_one_error(
        self, files: ForeignFiles, path: Path, spec: KernelSpec, workload: Workload
    ) -> None:
        other = replace(workload, axes=tuple((name, size + 1) for name, size in workload.axes))
        with pytest.raises(DeviceError) as caught:
            files.read(path, spec, {}, [workload, other])
        assert caught.value.path == path
        assert caught.value.remedy

    @pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
    def test_a_part_of_a_file_is_read_or_is_one_error(
        self,
        files: ForeignFiles,
        path: Path,
        spec: KernelSpec,
        workload: Workload,
        tmp_path: Path,
        share: float,
    ) -> None:
        whole = path.read_bytes()
        part = tmp_path / path.name
        part.write_bytes(whole[: int(share * len(whole))])
        if files.is_foreign(part):
            try:
                files.read(part, spec, {}, [workload])
            except DeviceError as error:
                assert error.path == part
                assert error.remedy
