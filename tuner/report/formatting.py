"""Numbers and names as a reader sees them, the same in the report and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tuner.model.config import Config, format_value
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import NOISY, Occupancy, Result

if TYPE_CHECKING:
    from tuner.dispatch.evidence import OverWinner

# 0.1 ns, and a hundredth of a per cent: far below the noise of any measurement.
DIGITS = 4
# Below this it is significant digits: a ratio far below 1 is to agree with the times that it is of.
SMALL = 0.1
# A workload's name that is longer leaves out what all of them share.
MOST_WORKLOAD_CHARS = 28


def round_value(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, DIGITS) if abs(value) >= SMALL else float(f"{value:.{DIGITS}g}")


def microseconds(value: float) -> str:
    """Write a time with three or four significant digits, without a unit."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 10 else f"{value:.3f}"


def significant(value: float) -> str:
    """Write any number with three or four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ratio(value: float) -> str:
    """Write a speedup: `1.60x`, with the digits of its interval's bounds near 1: `1.004x`."""
    return f"{_write_bound(value)}x"


def interval(bounds: tuple[float, float]) -> str:
    """Write a 95 % interval of speedups: `[1.58, 1.62]`.

    A bound that rounds to 1.00 gets the digits that show on which side of 1 it is.
    """
    return f"[{_write_bound(bounds[0])}, {_write_bound(bounds[1])}]"


def _write_bound(value: float) -> str:
    for digits in (2, 3, 4):
        text = f"{value:.{digits}f}"
        if value == 1.0 or float(text) != 1.0:
            return text
    return text


def percent(share: float) -> str:
    """Write a share: `78 %`, and one decimal below ten."""
    return f"{share * 100:.1f} %" if share < 0.1 else f"{share * 100:.0f} %"


def occupancy(value: Occupancy | None) -> str:
    """Write occupancy with its limiter: `50 % (registers)`."""
    if value is None:
        return "-"
    return f"{percent(value.share)} ({value.limiter})" if value.limiter else percent(value.share)


def seconds(value: float) -> str:
    """Write a duration: `42.0 s`, `3 min 05 s`, `2 h 10 min`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def shorten_text(text: str, most: int) -> str:
    """Cut a text off after so many characters, and say so: `The first …`."""
    text = text.strip()
    return text if len(text) <= most else text[:most].rstrip() + " …"


def cut(text: str, most: int) -> str:
    """Cut a name off so that it has at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """Replace the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\t\n" else "?" for c in text)


def coordinate(value: float) -> str:
    """Write a place in a chart, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def tick_label(value: float) -> str:
    """Write a chart's tick without needless zeros."""
    if value != 0 and not 0.001 <= abs(value) < 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def join_names(names: Sequence[str], most: int = 3) -> str:
    """List names, the first few by name: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def significance(result: Result | OverWinner) -> str:
    """Say what the interval allows to say of one workload."""
    if not result.different:
        return NOISY if result.noisy else "no difference"
    return "faster" if result.speedup > 1.0 else "slower"


def common(results: Sequence[Result]) -> dict[str, Value]:
    """Give what all configs have, also those that lost to a baseline: their times are shown."""
    configs = [result.config for result in results]
    if len(configs) < 2:
        return {}
    first, *others = configs
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def varying(found: Iterable[Config]) -> list[str]:
    """Name the parameters that are not the same in all configs; all of them of a single one."""
    configs = [*found]
    names = dict.fromkeys(name for config in configs for name in config)
    if len(configs) < 2:
        return [*names]
    return [n for n in names if len({c.get(n) for c in configs}) > 1]


def shared_axes(workloads: Iterable[Workload]) -> dict[str, int]:
    """Give the axes of one size in all of several workloads where their names are long."""
    listed = [workload.values for workload in workloads]
    if all(len(pairs(one)) <= MOST_WORKLOAD_CHARS for one in listed):
        return {}
    first = listed[0]
    shared = {axis: n for axis, n in first.items() if all(one.get(axis) == n for one in listed)}
    return shared if len(shared) < len(first) else {}


def without(config: Mapping[str, Value], left_out: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in config.items() if name not in left_out}


def pairs(values: Mapping[str, Value]) -> str:
    return " ".join(f"{name}={format_value(value)}" for name, value in values.items())


def times(ratio: float) -> str:
    """Write a ratio: `x0.71`."""
    return f"x{ratio:.2f}" if ratio < 100 else f"x{ratio:.0f}"
