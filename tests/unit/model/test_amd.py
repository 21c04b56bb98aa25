"""What limits the waves of AMD's GPUs, by the figures of LLVM's user guide and clang's remarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.errors import DeviceError
from tuner.model.hardware import AMD_TARGETS, amd_limits, is_amd, occupancy, refusal
from tuner.model.kernel import Launch, Limits
from tuner.model.trial import Resources

MI300 = amd_limits("gfx942")


def launch(threads: int, shared_bytes: int = 0) -> Launch:
    return Launch("run", (1, 1, 1), (threads, 1, 1), shared_bytes)


@pytest.mark.parametrize(
    ("registers", "waves"),
    [
        *((1, 8), (64, 8), (65, 7), (72, 7), (80, 6), (96, 5), (97, 4), (128, 4), (129, 3)),
        *((168, 3), (169, 2), (256, 2), (257, 1), (512, 1)),
    ],
)
def test_vector_registers_are_given_in_eights_of_512(registers: int, waves: int) -> None:
    assert MI300.waves_by_registers(Resources(registers)) == waves


@pytest.mark.parametrize(("registers", "waves"), [(80, 8), (100, 8), (101, 7), (106, 7)])
def test_scalar_registers_limit_a_little(registers: int, waves: int) -> None:
    assert MI300.waves_by_registers(Resources(8, scalar_registers=registers)) == waves


def test_rdna_has_more_registers_for_narrower_waves() -> None:
    limits = amd_limits("gfx1100")
    assert limits.threads_per_warp == 32
    found = [limits.waves_by_registers(Resources(n, scalar_registers=106)) for n in (96, 97, 192)]
    assert found == [16, 12, 8]


@pytest.mark.parametrize(
    ("resources", "threads", "shared_bytes", "blocks", "limiter"),
    [
        (Resources(32), 256, 0, 8, "warps"),
        (Resources(32), 64, 0, 32, "warps"),
        (Resources(96), 256, 0, 5, "registers"),
        (Resources(96), 1024, 0, 1, "registers"),
        (Resources(32, static_shared_bytes=20000), 256, 0, 3, "shared memory"),
        (Resources(32, static_shared_bytes=20000), 256, 13000, 1, "shared memory"),
        (Resources(32), 128, 0, 16, "warps"),
    ],
)
def test_the_scarcest_resource_limits_the_blocks(
    resources: Resources, threads: int, shared_bytes: int, blocks: int, limiter: str
) -> None:
    found = occupancy(MI300, resources, launch(threads, shared_bytes))
    assert found is not None
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.share == blocks * -(-threads // 64) / 32


@pytest.mark.parametrize(
    ("resources", "threads", "shared_bytes", "told"),
    [
        (Resources(32, max_threads=256), 512, 0, "over the 256 that the compiled kernel can have"),
        (Resources(256), 1024, 0, "16 waves of 256 vector registers a lane"),
        (Resources(32, static_shared_bytes=60000), 256, 6000, "66000 bytes of shared memory"),
    ],
)
def test_what_cannot_launch_is_refused_with_the_reason(
    resources: Resources, threads: int, shared_bytes: int, told: str
) -> None:
    reason = refusal(MI300, resources, launch(threads, shared_bytes), Limits())
    assert reason is not None
    assert told in reason


@pytest.mark.parametrize("target", AMD_TARGETS)
def test_blocks_and_grids_have_limits_of_their_own(target: str) -> None:
    limits = amd_limits(target)
    largest = Launch("run", (2**31 - 1, 65536, 65536), (1, 1, 1024))
    assert refusal(limits, Resources(32), largest, Limits()) is None
    told = refusal(limits, Resources(32), replace(largest, grid=(1, 1, 65537)), Limits())
    assert told == "grid z of 65537 is over the device's 65536"


def test_the_next_generation_has_more_lds() -> None:
    used = Resources(32, static_shared_bytes=60000)
    assert refusal(amd_limits("gfx950"), used, launch(256, 60000), Limits()) is None


def test_architectures_are_told_apart() -> None:
    assert all(map(is_amd, AMD_TARGETS))
    assert not is_amd("sm_90a")
    assert amd_limits("gfx942:sramecc+:xnack-") is MI300
    with pytest.raises(DeviceError, match="gfx942:fast"):
        amd_limits("gfx942:fast")
    with pytest.raises(DeviceError, match="gfx803") as told:
        amd_limits("gfx803")
    assert "gfx942" in (told.value.remedy or "")
