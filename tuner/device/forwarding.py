"""A device whose work others do: each call goes to them by its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from tuner.device.base import Device

_P = ParamSpec("_P")
_T = TypeVar("_T")


def make_forwarder(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a method of the same signature that calls `forward` of its device with its name."""
    name = method.__name__

    def call(*arguments: _P.args, **options: _P.kwargs) -> _T:
        device, *others = arguments
        return cast("_T", cast("ForwardingDevice", device).forward(name, tuple(others), options))

    return call


class ForwardingDevice(Device):
    """Forward what devices do; subclasses say to whom, and forward more by `forwarded`."""

    @abstractmethod
    def forward(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call the method of that name on the device that does the work."""

    run = make_forwarder(Device.run)
    verify = make_forwarder(Device.verify)
    compare = make_forwarder(Device.compare)
    rank = make_forwarder(Device.rank)
    same_bits = make_forwarder(Device.same_bits)
    require_energy = make_forwarder(Device.require_energy)
    idle_energy = make_forwarder(Device.idle_energy)
    energy = make_forwarder(Device.energy)
