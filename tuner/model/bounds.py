"""Types of the numbers and names that a record may hold; whoever reads records checks them."""

from __future__ import annotations

import re
from math import inf
from typing import Annotated

from annotated_types import Ge, Gt, Lt, Predicate


def is_file_name(text: str) -> bool:
    """Tell whether text may become a part of a file's name, and of a line on a terminal."""
    return text.isprintable() and "/" not in text and 0 < len(text) < 200 and text[0] != "."


# A terminal would take them for commands, or turn what stands behind them round.
CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
Int64 = Annotated[int, Ge(-(1 << 63)), Lt(1 << 63)]
Count = Annotated[int, Ge(0), Lt(1 << 63)]
# Neither NaN nor infinite.
Finite = Annotated[float, Gt(-inf), Lt(inf)]
Seconds = Annotated[float, Ge(0.0), Lt(inf)]
# No time is longer than a year; sums of such stay finite.
Microseconds = Annotated[float, Gt(0.0), Lt(4e13)]
Ratio = Annotated[float, Gt(0.0), Lt(4e13)]
Printable = Annotated[str, Predicate(str.isprintable)]
FileName = Annotated[str, Predicate(is_file_name)]
Axis = Annotated[str, Predicate(str.isidentifier)]
