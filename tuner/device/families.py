"""Devices that extensions bring: each family is what `--device NAME` or `NAME:DETAIL` opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tuner import plugins
from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.model.kernel import KernelSpec


@dataclass(frozen=True, slots=True)
class Listed:
    """One device that is here: what `--device` calls it, in words and as an object."""

    device: str
    text: str
    facts: Mapping[str, object]


@runtime_checkable
class DeviceFamily(Protocol):
    """Devices of one kind, and the compiler for what runs on them."""

    listed_as: str  # the key of `tune devices --json`, "" for what is never listed

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        """Open the one that DETAIL names, the first for ""; raise `DeviceError` otherwise."""

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        """Start what compiles for a target of the family's without opening a device."""

    def list_here(self) -> Sequence[Listed]:
        """List those of this machine; none where what they need isn't installed."""


def family_names() -> list[str]:
    """Name what may stand before the colon of `--device`."""
    return plugins.names_of(plugins.DEVICES)


def family(name: str) -> DeviceFamily:
    loaded: DeviceFamily = plugins.load(plugins.DEVICES, name, DeviceFamily)
    return loaded
