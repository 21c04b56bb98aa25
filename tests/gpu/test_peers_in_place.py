"""A peer that writes in place: apart from the others, for two devices on one GPU are refused."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from pathlib import Path

import pytest

from tuner.device.cuda.device import CudaDevice
from tuner.device.reference import peer_program
from tuner.model.trial import Status
from tuner.space.load import load_definition

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)


def test_what_is_written_in_place_starts_anew_in_every_call() -> None:
    spec = load_definition(Path(__file__).parent / "data/adding/accumulate.yaml").spec
    with closing(CudaDevice(0, spec, {})) as device:
        program = peer_program("adding", spec.reference, spec.tuned[0])
        outcome = device.run(program, full_verification=True)
        assert outcome.status is Status.CORRECT, outcome.reason
