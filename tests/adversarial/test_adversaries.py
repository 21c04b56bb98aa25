"""Kernels that cheat or are broken: the `host` device catches each, and works on afterwards."""

from __future__ import annotations

import pytest
from adversaries import ADVERSARIES, ON_HOST, PHASES, WHILE_TIMED, Adversary
from on_trial import Build, OneDevice, check_caught
from operators import KERNELS
from slow import mostly_slow
from unusual_kernels import UNUSUAL

# Four of the keys will do for most runs.
QUICK = [one for one in ON_HOST if one not in PHASES[4:]]


@pytest.mark.parametrize(
    "adversary", mostly_slow(ON_HOST, QUICK), ids=[one.name for one in ON_HOST]
)
def test_it_is_caught(devices: OneDevice, build: Build, adversary: Adversary) -> None:
    device = devices.of(adversary.operator, adversary.sanitizers)
    check_caught(device, build, adversary, adversary.reason)


def test_every_kind_of_check_has_something_to_catch() -> None:
    assert len({adversary.check for adversary in ON_HOST}) >= 14
    assert len({adversary.name for adversary in ADVERSARIES}) == len(ADVERSARIES)


def test_every_kernel_of_the_folder_is_named_by_one() -> None:
    named = {one.operator.kernel(one.name) for one in (*ADVERSARIES, *UNUSUAL, *WHILE_TIMED)}
    shared = {*KERNELS.glob("*/plain.cu"), *KERNELS.glob("*/phase_machine.cu")}
    assert set(KERNELS.glob("*/*.cu")) - shared <= named
