import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import kept
import pytest
from cuda import pathfinder

from tuner.model.errors import DeviceError
from tuner.model.hardware import (
    COMPUTE_CAPABILITIES,
    architecture_for,
    limits_for,
    occupancy,
    refusal,
)
from tuner.model.kernel import Launch, Limits
from tuner.model.trial import Resources

HOPPER = limits_for((9, 0))
LIMITER_BITS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8, "barriers": 16}
CASES = 22_000
FINE = Launch("k", grid=(128, 1, 1), block=(256, 1, 1))


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler to build NVIDIA's occupancy calculator with")
    headers = pathfinder.find_nvidia_header_directory("cudart")
    if headers is None:
        pytest.skip("no cuda_occupancy.h: install nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("oracle")
    shutil.copy(Path(__file__).with_name("occupancy_oracle.cpp"), folder)
    kept.build([compiler, "-O1", f"-I{headers}", "occupancy_oracle.cpp", "-o", "oracle"], folder)
    return folder / "oracle"


def random_case(generator):
    limits = limits_for(generator.choice(COMPUTE_CAPABILITIES))
    shared_bytes = generator.choice([0, generator.randrange(4096), generator.randrange(240_000)])
    static_bytes = generator.choice([0, generator.randrange(48 * 1024 + 1)])
    threads = generator.choice([32 * generator.randint(1, 33), generator.randint(1, 1100)])
    resources = Resources(
        registers=generator.randint(0, 255),
        static_shared_bytes=static_bytes,
        barriers=generator.choice([0, 1, generator.randint(0, 16)]),
    )
    return limits, resources, Launch("k", (1, 1, 1), (threads, 1, 1), shared_bytes)


def as_line(limits, resources, launch):
    numbers = (
        *limits.compute_capability,
        limits.warps_per_multiprocessor,
        limits.shared_bytes_per_multiprocessor,
        limits.shared_bytes_per_block,
        limits.reserved_shared_bytes,
        resources.registers,
        resources.static_shared_bytes,
        launch.shared_bytes,
        launch.threads,
        resources.barriers,
    )
    return " ".join(map(str, numbers))


def test_agrees_with_nvidias_calculator_on_random_cases(oracle):
    generator = random.Random(20261120)  # noqa: S311
    cases = [random_case(generator) for _ in range(CASES)]
    lines = "\n".join(as_line(*case) for case in cases)
    run = subprocess.run([oracle], input=lines, capture_output=True, text=True, check=True)
    answers = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(answers) == CASES
    for case, (blocks, factors) in zip(cases, answers, strict=True):
        found = occupancy(*case)
        assert found.blocks == blocks, case
        assert LIMITER_BITS[found.limiter] & factors, case
    assert sum(blocks > 0 for blocks, _ in answers) > CASES / 3
    assert {occupancy(*case).limiter for case in cases} == set(LIMITER_BITS)


@pytest.mark.parametrize("compute_capability", COMPUTE_CAPABILITIES)
def test_what_is_not_refused_fits_at_least_once(compute_capability):
    generator = random.Random(7)  # noqa: S311
    limits = limits_for(compute_capability)
    for _ in range(500):
        _, resources, launch = random_case(generator)
        refused = refusal(limits, resources, launch, Limits())
        assert (refused is None) == (occupancy(limits, resources, launch).blocks > 0)


def test_share_counts_warps():
    found = occupancy(HOPPER, Resources(registers=64), replace(FINE, block=(96, 2, 1)))
    assert (found.blocks, found.limiter) == (5, "registers")
    assert found.share == pytest.approx(5 * 6 / 64)


def launch(**changes):
    return replace(FINE, **changes)


@pytest.mark.parametrize(
    ("resources", "launch", "words"),
    [
        (Resources(32), launch(block=(64, 32, 1)), "2048 threads, over the device's 1024"),
        (Resources(32), launch(block=(2048, 1, 1)), "block x of 2048 is over the device's 1024"),
        (Resources(32), launch(block=(1, 1, 65)), "block z of 65 is over the device's 64"),
        (Resources(32), launch(block=(0, 1, 1)), "block 0 x 1 x 1 is empty: x is 0"),
        (Resources(32), launch(grid=(1, 0, 1)), "grid 1 x 0 x 1 is empty: y is 0"),
        (Resources(32), launch(grid=(2**31, 1, 1)), "over the device's 2147483647"),
        (Resources(32), launch(grid=(1, 65536, 1)), "grid y of 65536"),
        (Resources(32), launch(grid=(1, 1, 65536)), "grid z of 65536"),
        (Resources(32), launch(shared_bytes=-1), "is negative"),
        (
            Resources(168),
            launch(block=(512, 1, 1)),
            "512 threads of 168 registers take 86016 registers, over the device's 65536",
        ),
        (
            Resources(32, static_shared_bytes=1024),
            launch(shared_bytes=232_000),
            "233024 bytes of shared memory (1024 static, 232000 dynamic), over the device's 232448",
        ),
        (Resources(32), launch(cluster=(16, 1, 1)), "16 blocks, over the portable 8"),
        (Resources(32), launch(cluster=(3, 1, 1)), "no multiple of the cluster 3 x 1 x 1"),
        (Resources(32), launch(cluster=(0, 1, 1)), "is empty"),
    ],
)
def test_refuses_what_the_device_cannot_launch(resources, launch, words):
    assert words in refusal(HOPPER, resources, launch, Limits())


def test_refuses_clusters_where_the_generation_has_none():
    reason = refusal(limits_for((8, 9)), Resources(32), launch(cluster=(2, 1, 1)), Limits())
    assert reason == "cluster 2 x 1 x 1: compute capability 8.9 has no clusters"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(spills="forbid"), "spills 16 bytes of stores and 24 of loads"),
        (Limits(serialized_wgmma="forbid"), "wgmma is serialized (too few registers) where"),
        (Limits(max_registers=64), "80 registers, over `max_registers: 64`"),
        (Limits(max_shared_bytes=1000), "over `max_shared_bytes: 1000`"),
        (
            Limits(min_occupancy=0.5),
            "occupancy 37.5%, limited by registers, under `min_occupancy: 0.5`",
        ),
    ],
)
def test_refuses_what_the_user_forbids(limits, words):
    resources = Resources(
        80, 16, 24, static_shared_bytes=2048, serialized_wgmma="too few registers"
    )
    assert refusal(HOPPER, resources, FINE, Limits()) is None
    assert words in refusal(HOPPER, resources, FINE, limits)


def test_accepts_a_kernel_at_the_limits():
    resources = Resources(64, static_shared_bytes=1024)
    at_the_limit = launch(block=(1024, 1, 1), shared_bytes=226 * 1024, cluster=(8, 1, 1))
    assert refusal(HOPPER, resources, at_the_limit, Limits(max_registers=64)) is None


def test_covers_every_generation_from_turing_to_blackwell():
    known = "7.5 8.0 8.6 8.7 8.9 9.0 10.0 10.3 11.0 12.0 12.1"
    assert " ".join(f"{major}.{minor}" for major, minor in COMPUTE_CAPABILITIES) == known


@pytest.mark.parametrize("compute_capability", COMPUTE_CAPABILITIES)
def test_one_block_may_take_all_of_a_multiprocessors_shared_memory(compute_capability):
    limits = limits_for(compute_capability)
    assert limits.compute_capability == compute_capability
    whole = limits.shared_bytes_per_block + limits.reserved_shared_bytes
    assert whole == limits.shared_bytes_per_multiprocessor


def test_an_unknown_compute_capability_is_an_error_that_names_the_known_ones():
    with pytest.raises(DeviceError, match=r"6\.1.*\n.*7\.5, 8\.0"):
        limits_for((6, 1))


def test_names_the_real_architecture():
    names = " ".join(map(architecture_for, COMPUTE_CAPABILITIES))
    assert names == ("sm_75 sm_80 sm_86 sm_87 sm_89 sm_90a sm_100a sm_103a sm_110a sm_120a sm_121a")
