"""Waves as clang's remark counts them, and those of a launch."""

from __future__ import annotations

from hip_configs import waves_on_simd

from tuner.model.hardware import amd_limits, occupancy
from tuner.model.kernel import Launch
from tuner.model.trial import Resources

MI300 = amd_limits("gfx942")


def test_clang_counts_waves_and_not_whole_blocks() -> None:
    used = Resources(96, max_threads=1024)
    assert waves_on_simd(MI300, used, 1024) == 5
    found = occupancy(MI300, used, Launch("run", (1, 1, 1), (1024, 1, 1)))
    assert found is not None
    assert found.share == 0.5  # 16 of 32


def test_clang_counts_lds_to_the_byte_and_the_hardware_gives_units() -> None:
    used = Resources(4, static_shared_bytes=13100, max_threads=256)  # of 65536, in 512s
    assert waves_on_simd(MI300, used, 256) == 5
    found = occupancy(MI300, used, Launch("run", (1, 1, 1), (256, 1, 1)))
    assert found is not None
    assert (found.blocks, found.limiter) == (4, "shared memory")
