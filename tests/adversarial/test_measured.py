"""A measured tolerance catches kernels with wrong numbers by the baseline's own rounding."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace

import pytest
from adversaries import WRONG_NUMBERS
from on_trial import Build, build_config, check_passes, honest
from operators import Operator

from tuner.extensions.cpu.device import HostDevice
from tuner.model.kernel import MEASURED_DTYPES, Tolerance
from tuner.model.trial import Status

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


# Denormal numbers alone, which `--use_fast_math` flushes too.
ALLOWED = "takes small numbers for zeros"


def is_measurable(operator: Operator) -> bool:
    spec = operator.spec
    return all(spec.argument(name).dtype in MEASURED_DTYPES for name in spec.tolerances)


OPERATORS = {
    one.operator.name: one.operator for one in WRONG_NUMBERS if is_measurable(one.operator)
}


@pytest.mark.parametrize("name", OPERATORS)
def test_wrong_numbers_are_caught(build: Build, name: str) -> None:
    operator = OPERATORS[name]
    measured = dict.fromkeys(operator.spec.tolerances, Tolerance(measured=True))
    spec = replace(operator.spec, tolerances=measured)
    wrong = [one for one in WRONG_NUMBERS if one.operator.name == name and not one.sanitizers]
    caught = [one for one in wrong if one.name != ALLOWED]
    assert caught
    with closing(HostDevice(spec, {})) as device:
        check_passes(device, honest(build, operator))
        for adversary in caught:
            outcome = device.verify(build_config(build, adversary, adversary.where))
            assert outcome.status is Status.INCORRECT, adversary.name
