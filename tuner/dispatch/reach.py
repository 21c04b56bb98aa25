"""For which shapes a compiled kernel is right, and which of several serves one never seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, log
from typing import TypeVar

from tuner.errors import ExpressionError
from tuner.expressions import Expression, Value
from tuner.kernel import Launch, LaunchSpec, Workload

# The same for every compute capability (CUDA C++ Programming Guide, technical specifications).
GRID_LIMITS = (2**31 - 1, 65535, 65535)
# A shape halfway between two has the first of them whatever the last bit of a logarithm says.
TIE = 1e-9

Served = TypeVar("Served")


@dataclass(frozen=True, slots=True)
class Reach:
    """Where one source of a variant holds.

    `written` are the axes that the source depends on, and `shapes` the values of these for which
    it is the right one. `conditions` and `launches` have no parameters left in them.
    `static_bytes` is the shared memory that the code takes by itself.
    """

    written: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    conditions: tuple[Expression, ...]
    launches: tuple[LaunchSpec, ...]
    static_bytes: int = 0

    def holds(self, names: Mapping[str, Value]) -> bool:
        """Tell whether the kernel may run; `names` holds the axes and the device's numbers."""
        if self.written and tuple(names[axis] for axis in self.written) not in self.shapes:
            return False
        try:
            if not all(condition.evaluate(names) for condition in self.conditions):
                return False
            launches = [launch.resolve(names) for launch in self.launches]
        except ExpressionError:
            return False
        made = [launch for launch in launches if launch is not None]
        return bool(made) and all(self._launchable(launch, names) for launch in made)

    def _launchable(self, launch: Launch, names: Mapping[str, Value]) -> bool:
        shared = launch.shared_bytes + self.static_bytes
        return (
            all(1 <= size <= most for size, most in zip(launch.grid, GRID_LIMITS, strict=True))
            and min(launch.block) >= 1
            and launch.threads <= int(names["max_threads"])
            and launch.shared_bytes >= 0
            and shared <= int(names["max_shared_bytes"])
        )


def nearest(
    points: Iterable[tuple[Workload, Served]],
    shape: Mapping[str, int],
    holds: Callable[[Served], bool],
) -> tuple[Workload, Served] | None:
    """Find the point nearest in log axes whose kernel holds; of equally near ones the first.

    The header's dispatch function does the same in C++ (tuner/export/dispatch.h.j2).
    """
    logs = {axis: log(size) for axis, size in shape.items()}
    least, found = inf, None
    for workload, served in points:
        distance = sum((logs[axis] - log(size)) ** 2 for axis, size in workload.axes)
        if distance < least * (1.0 - TIE) and holds(served):
            least, found = distance, (workload, served)
    return found
