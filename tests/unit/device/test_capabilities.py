"""What a device can do is asked of its capabilities, nowhere of its class."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.model.errors import DeviceError

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from house import modules


def names_in(node: ast.AST) -> set[str]:
    """List the names and attributes of an expression: `base.Device` has both of its words."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def test_nobody_asks_for_the_class_of_a_device() -> None:
    trees = modules()
    classes = [
        one for tree in trees.values() for one in ast.walk(tree) if type(one) is ast.ClassDef
    ]
    devices = {"Device"}
    while (
        more := {one.name for one in classes if any(names_in(base) & devices for base in one.bases)}
        - devices
    ):
        devices |= more
    assert devices > {"DeviceGroup", "RecordedDevice", "CudaDevice", "RemoteGpu"}
    asked = [
        f"{module}:{call.lineno}"
        for module, tree in trees.items()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and names_in(call.func) & {"isinstance", "issubclass"}
        and names_in(call.args[1]) & devices
    ]
    assert asked == []


def test_what_a_device_cannot_do_is_said_with_its_name() -> None:
    device = SimulatedDevice(lambda program: 1.0)
    with pytest.raises(DeviceError, match="simulated H200 has no counters"):
        device.counters()
    assert "counters" not in device.capabilities
