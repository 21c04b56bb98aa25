"""Kernels that cheat or are broken: the `host` device catches each, and works on afterwards."""

from __future__ import annotations

import pytest
from adversaries import ADVERSARIES, ON_HOST, Adversary
from on_trial import Build, OneDevice, check_caught


@pytest.mark.parametrize("adversary", ON_HOST, ids=[adversary.name for adversary in ON_HOST])
def test_it_is_caught(devices: OneDevice, build: Build, adversary: Adversary) -> None:
    assert adversary.host is not None
    device = devices.of(adversary.operator, adversary.sanitizers)
    check_caught(device, build, adversary, adversary.host)


def test_every_kind_of_check_has_something_to_catch() -> None:
    assert len({adversary.check for adversary in ON_HOST}) >= 14
    assert len({adversary.name for adversary in ADVERSARIES}) == len(ADVERSARIES)
