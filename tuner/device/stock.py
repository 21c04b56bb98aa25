"""Inputs with their reference that several configs are checked with, while searching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.device.number_formats import Array
from tuner.kernel import Workload

# A config sees a set once, so to its code the numbers are as new as freshly drawn ones.
USES = 32


@dataclass(slots=True)
class Prepared:
    """Inputs as they are stored, their float64 reference once computed, and a run's outputs."""

    workload: Workload
    fill: str
    seed: int
    inputs: dict[str, Array]
    reference: Mapping[str, Array] | None = None
    first_output: dict[str, Array] | None = None
    telling: set[str] = field(default_factory=set)  # outputs that zeros were seen not to pass

    @property
    def size_bytes(self) -> int:
        """Bytes of inputs and reference."""
        arrays = (*self.inputs.values(), *(self.reference or {}).values())
        return sum(int(array.nbytes) for array in arrays)


class Stock:
    """Keep one prepared set of each fill for at most `USES` checks, within `limit_bytes` in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[str, tuple[Prepared, int]] = {}

    def take(self, fill: str) -> Prepared | None:
        """Return the set of this fill, None where there is none or it is used up."""
        kept = self._kept.pop(fill, None)
        if kept is None or kept[0].reference is None or kept[1] >= USES:
            return None
        prepared, uses = kept
        self._keep(prepared, uses + 1)
        return prepared

    def put(self, prepared: Prepared) -> None:
        """Keep a set that was drawn and is about to be used."""
        self._keep(prepared, 1)

    def clear(self) -> None:
        """Forget everything: another workload follows."""
        self._kept.clear()

    def _keep(self, prepared: Prepared, uses: int) -> None:
        others = sum(other.size_bytes for other, _ in self._kept.values())
        if others + prepared.size_bytes <= self._limit_bytes:
            self._kept[prepared.fill] = (prepared, uses)
