"""Find what tells the energy of a device's programs."""

from __future__ import annotations

from tuner.device.base import Device, EnergyMeter
from tuner.errors import DeviceError

_INSTEAD = "use a GPU (--device cuda), or --objective time"


def open_meter(device: Device) -> EnergyMeter:
    """Return the device's energy meter; raise `DeviceError` where it has none or cannot read it."""
    if device.info.recorded:
        raise DeviceError("a recording holds times, but no energy", remedy=_INSTEAD)
    if device.info.on_cpu:
        raise DeviceError("a CPU says nothing of a GPU's energy", remedy=_INSTEAD)
    if not isinstance(device, EnergyMeter):
        raise DeviceError(f"{device.info.name} has no energy meter", remedy=_INSTEAD)
    device.require_energy()
    return device
