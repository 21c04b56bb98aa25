"""Honest kernels of unusual form: none of them is taken for a cheat."""

from __future__ import annotations

import pytest
from on_trial import Build, OneDevice, check_unusual_passes
from unusual_kernels import UNUSUAL, Unusual


@pytest.mark.parametrize("unusual", UNUSUAL, ids=[unusual.name for unusual in UNUSUAL])
def test_it_passes(devices: OneDevice, build: Build, unusual: Unusual) -> None:
    check_unusual_passes(devices.of(unusual.operator), build, unusual)
