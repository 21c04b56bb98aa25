"""The `hip` device against a stand-in of AMD's runtime, whose kernels run on the CPU."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_hip import install_fake_hip
from host_programs import cached_compiler

from tuner.cli import cli
from tuner.device.base import CompileTarget, Device, Program
from tuner.device.select import open_device
from tuner.extensions.backends.hip.device import UNTRIED, HipDevice
from tuner.extensions.backends.hip.driver import gpu_at, list_gpus
from tuner.model.errors import DeviceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.trial import Status
from tuner.space.load import load_definition
from tuner.testing.devices import DeviceContract

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("gcc") is None, reason="needs gcc and g++"
)

ROOT = Path(__file__).resolve().parents[5]
Programs = dict[str, Program]
Broken = Callable[[str], closing[HipDevice]]
WORKLOAD = Workload.of({"T": 3, "K": 516})
POINTER, INT = 8, 4
SUM = """
#include <hip/hip_runtime.h>
extern "C" __global__ void row_sum(float* out, const float* x, int T, int K) {
  float sum = 0;
  for (int i = threadIdx.x; i < K; i += 64) sum += x[blockIdx.x * K + i];
  for (int lanes = 32; lanes > 0; lanes /= 2) sum += __shfl_xor(sum, lanes);
  if (threadIdx.x == 0) out[blockIdx.x] = sum%s;
}
"""


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def nodes(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hip")
    return install_fake_hip(folder, patched, (POINTER, POINTER, INT, INT))


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_definition(ROOT / "search_spaces/portable/row_sum.hip.yaml").spec


@pytest.fixture(scope="module")
def device(spec: KernelSpec, nodes: Path) -> Iterator[HipDevice]:
    with closing(HipDevice(0, spec, {}, nodes=nodes)) as device:
        yield device


@pytest.fixture(scope="module")
def programs(spec: KernelSpec, device: HipDevice) -> Programs:
    made = {}
    target = CompileTarget(spec, {}, device.info)
    (launch,) = spec.baseline_launches(target.names(WORKLOAD))
    launches = (replace(launch, block=(64, 1, 1)),)
    with cached_compiler() as compiler:
        for name, text in (
            ("right", ""),
            ("other", " * 1"),
            ("wrong", " + 1"),
            ("outside", "; if (threadIdx.x == 0 && blockIdx.x == 0) out[T] = 1"),
        ):
            source = SUM % text
            result = compiler.submit(target.request(source, launches)).result()
            assert result.ok, result.error
            made[name] = target.program(source, WORKLOAD, launches, result)
    return made


class TestContract(DeviceContract):
    @pytest.fixture
    def working(self, programs: Programs) -> list[Program]:
        return [programs["right"], programs["other"]]

    @pytest.fixture
    def failing(self, programs: Programs) -> Program:
        return replace(programs["right"], cubin=b"no code object", source_key="damaged")

    def test_it_names_hardware_that_is_known(self, device: Device) -> None:
        info = device.info
        assert info.name == f"AMD stand-in (through HIP, {UNTRIED})"
        assert info.architecture == "gfx942"
        assert (info.multiprocessors, info.limits.threads_per_warp) == (304, 64)
        assert min(info.l2_bytes, info.streaming_gbps) > 0


class TestVerdicts:
    def test_a_wrong_result_is_found(self, device: HipDevice, programs: Programs) -> None:
        outcome = device.run(programs["wrong"])
        assert outcome.status is Status.INCORRECT
        assert outcome.measurement is None

    def test_what_is_written_around_the_arrays_is_found(
        self, device: HipDevice, programs: Programs
    ) -> None:
        outcome = device.verify(programs["outside"])
        assert outcome.status is Status.INCORRECT
        assert "out" in outcome.reason


class TestFailures:
    @pytest.fixture
    def broken(
        self, spec: KernelSpec, nodes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> Broken:
        """Open a device whose runtime fails in this way, with a cache of its own."""

        def opened(how: str) -> closing[HipDevice]:
            monkeypatch.setenv("FAKE_HIP_FAILS", how)
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
            return closing(HipDevice(0, spec, {}, nodes=nodes))

        return opened

    @pytest.mark.parametrize(
        ("failing", "reason"),
        [
            ("hipModuleLaunchKernel", "hipModuleLaunchKernel: error 719"),
            ("hipDeviceSynchronize", "hipDeviceSynchronize: error 719"),
            ("crash", "the worker process died"),
        ],
    )
    def test_a_launch_that_fails_costs_one_outcome(
        self,
        broken: Broken,
        programs: Programs,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        failing: str,
        reason: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with broken(failing) as device:
            outcome = device.run(programs["right"])
            assert outcome.status is Status.LAUNCH
            assert reason in outcome.reason
            assert not [*tmp_path.glob("*core*")]
            monkeypatch.delenv("FAKE_HIP_FAILS")
            if failing == "crash":  # another worker has taken its place
                assert device.run(programs["right"]).status is Status.CORRECT

    def test_a_kernel_without_an_end_is_a_timeout(
        self, broken: Broken, programs: Programs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tuner.extensions.backends.hip.device.RUN_TIMEOUT_S", 2.0)
        with broken("hang") as device:
            assert device.run(programs["right"]).status is Status.TIMEOUT

    def test_what_is_printed_goes_nowhere_and_a_crash_leaves_no_core(
        self, broken: Broken, programs: Programs, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with broken("prints") as device:
            assert device.run(programs["right"]).status is Status.CORRECT
            worker = device._runner._live_worker()
            limits = Path(f"/proc/{worker.pid}/limits").read_text()
        assert re.search(r"Max core file size +0 ", limits)
        assert capfd.readouterr() == ("", "")

    def test_two_of_them_do_not_share_a_gpu(
        self, spec: KernelSpec, device: HipDevice, nodes: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The second one must not load the GPU of the first, whose times it would spoil.
        monkeypatch.setattr("tuner.extensions.backends.copying.CopyingRunner.describe", pytest.fail)
        with pytest.raises(DeviceError, match="in use by another"):
            HipDevice(0, spec, {}, nodes=nodes)

    def test_a_gpu_that_is_not_there_is_told(self, spec: KernelSpec, nodes: Path) -> None:
        with pytest.raises(DeviceError, match="there is no AMD GPU 3") as told:
            HipDevice(3, spec, {}, nodes=nodes)
        assert told.value.remedy

    def test_a_runtime_without_any_gpu_says_what_it_may_be(self, broken: Broken) -> None:
        with pytest.raises(DeviceError, match="the HIP runtime shows none") as told:
            broken("hipInit")
        assert "/dev/kfd" in (told.value.remedy or "")

    def test_a_runtime_in_rocms_folder_is_found(
        self, spec: KernelSpec, nodes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "lib").mkdir()
        shutil.copy(nodes.parent / "libamdhip64.so", tmp_path / "lib/libamdhip64.so.7")
        monkeypatch.delenv("LD_LIBRARY_PATH")
        monkeypatch.setenv("ROCM_PATH", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with closing(HipDevice(0, spec, {}, nodes=nodes)) as device:
            assert device.info.architecture == "gfx942"


def test_without_a_runtime_there_is_one_error(
    spec: KernelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    if Path("/opt/rocm").exists():
        pytest.skip("ROCm is installed")
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    kept = [one for one in libraries if not (Path(one) / "libamdhip64.so").exists()]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(kept))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    with pytest.raises(DeviceError, match=r"libamdhip64\.so\) is not installed") as told:
        open_device("hip", spec, {})
    assert told.value.exit_code == 2
    assert "--device host" in (told.value.remedy or "")


def test_a_kernel_in_hip_is_not_for_an_nvidia_gpu(spec: KernelSpec) -> None:
    with pytest.raises(DeviceError, match="does not run on NVIDIA") as told:
        open_device("cuda:0", spec, {})
    assert told.value.path == spec.source


@pytest.mark.parametrize(
    ("version", "architecture"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")]
)
def test_the_drivers_numbers_name_an_architecture(
    tmp_path: Path, version: int, architecture: str
) -> None:
    (tmp_path / "3").mkdir()
    text = f"simd_count 16\nlocation_id 768\ndomain 1\ngfx_target_version {version}\n"
    (tmp_path / "3/properties").write_text(text)
    found = gpu_at("0001:03:00.0", tmp_path)
    assert (found.architecture, found.simds) == (architecture, 16)
    with pytest.raises(DeviceError, match=r"no GPU at 0000:03:00\.0"):
        gpu_at("0000:03:00.0", tmp_path)


def test_devices_are_listed_in_the_drivers_order(
    nodes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, version in ((10, 90402), (2, 100300)):
        (tmp_path / str(number)).mkdir()
        text = f"simd_count 16\ngfx_target_version {version}\nlocation_id {number << 8}\n"
        (tmp_path / f"{number}/properties").write_text(text)
    assert [one.architecture for one in list_gpus(tmp_path)] == ["gfx1030", "gfx942"]
    monkeypatch.setattr("tuner.extensions.backends.hip.device.NODES", tmp_path)
    listed = CliRunner().invoke(cli, ["devices"]).stdout.splitlines()
    assert "hip:0  AMD gfx1030, 16 SIMDs; not supported: known are gfx90a" in "\n".join(listed)
    assert "hip:1  AMD gfx942, 16 SIMDs; not run on AMD hardware yet" in listed


@pytest.mark.parametrize("bus_id", ["0000:c1:00.0", "0000:c1:00.3"])
def test_a_partition_of_a_gpu_is_found_by_its_place(tmp_path: Path, bus_id: str) -> None:
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        place = number << 28 | 0xC1 << 8
        text = f"simd_count 152\nlocation_id {place}\ndomain 0\ngfx_target_version 90402\n"
        (tmp_path / f"{number}/properties").write_text(text)
    found = gpu_at(bus_id, tmp_path)
    assert (found.architecture, found.simds) == ("gfx942", 152)
