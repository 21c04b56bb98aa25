"""What Nsight Compute printed, read: counters of each launch, samples, and why there are none."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence

# Columns that tell a launch from others; all else is a counter.
_FIRST_COLUMN = "ID"
_NAME_COLUMN = "Kernel Name"
_ADDRESS_COLUMN = "Address"
# The second is what it is called where warps were sampled alone.
_SAMPLES_COLUMNS = ("Warp Stall Sampling (Not-issued Samples)", "# Samples")
_COUNTER = re.compile(r"[a-z][a-z0-9]*__\w")
_NUMBER = re.compile(r"-?\d+(,\d{3})*(\.\d+)?([eE][+-]?\d+)?")
_PLACE = re.compile(r"(0x)?[0-9a-fA-F]+")
_UNKNOWN = re.compile(r"Failed to find metric (?:regex:\^)?([\w.\\]+)")
_ERROR = re.compile(r"==ERROR== *(.*)")
# What follows from another error and explains nothing.
_CONSEQUENCES = (
    "An error occurred while trying to profile",
    "The application returned an error code",
    "Failed to profile",
)
NO_PERMISSION = "ERR_NVGPUCTRPERM"
PERMISSION_TEXT = (
    "the driver lets only administrators read the GPU's counters: run as root, or load the "
    "driver's module with NVreg_RestrictProfilingToAdminUsers=0 (in a container: also "
    "--cap-add=SYS_ADMIN)"
)


def raw_counters(text: str) -> list[tuple[str, dict[str, float]]]:
    """Read `--page raw --csv`: the kernel's name and the counters of each launch, in order.

    A counter without a value, `n/a`, is left out. Lines of the tool and of the program that it
    ran may stand before the table.
    """
    header: Sequence[str] = ()
    launches = []
    for row in csv.reader(_table(text)):
        if row[0] == _FIRST_COLUMN:
            header = row
        elif header and len(row) == len(header) and row[0]:  # the row of units has no number
            cells = dict(zip(header, row, strict=True))
            launches.append((cells.get(_NAME_COLUMN, ""), _counters(cells)))
    return launches


def source_samples(text: str) -> list[tuple[str, dict[int, int]]]:
    """Read `--page source --print-source sass --csv`: samples by offset in the code, a launch each.

    They are those of warps that could not issue.
    """
    launches: list[tuple[str, dict[int, int]]] = []
    address = samples = -1
    start = 0
    for row in csv.reader(_table(text)):
        if row[0] == _NAME_COLUMN and len(row) > 1:
            launches.append((row[1], {}))
            address = -1
        elif _ADDRESS_COLUMN in row:
            address = row.index(_ADDRESS_COLUMN)
            samples = next((row.index(name) for name in _SAMPLES_COLUMNS if name in row), -1)
        elif (
            launches
            and 0 <= address < len(row)
            and 0 <= samples < len(row)
            and _PLACE.fullmatch(row[address])
        ):
            found = launches[-1][1]
            place = int(row[address], 16)
            start = start if found else place
            found[place - start] = int(_number(row[samples]) or 0)
    return [(name, {at: count for at, count in found.items() if count}) for name, found in launches]


def unknown_counters(text: str) -> list[str]:
    """List the counters that the tool does not know for this chip; it then counts none."""
    return [name.replace("\\", "") for name in _UNKNOWN.findall(text)]


def trouble(text: str) -> str:
    """Say in one line why the tool counted nothing, "" where it gives no cause."""
    if NO_PERMISSION in text:
        return PERMISSION_TEXT
    said = [match[1].strip() for match in map(_ERROR.search, text.splitlines()) if match]
    causes = [line for line in said if line and not line.startswith(_CONSEQUENCES)]
    return next(iter(causes), "")


def _table(text: str) -> Iterable[str]:
    """Leave out `==PROF==` and whatever else was printed between the rows."""
    return (line for line in text.splitlines() if line.startswith('"'))


def _counters(cells: Mapping[str, str]) -> dict[str, float]:
    read = {name: _number(cell) for name, cell in cells.items() if _COUNTER.match(name)}
    return {name: value for name, value in read.items() if value is not None}


def _number(cell: str) -> float | None:
    """Read a number with or without separators of thousands; None for what isn't one."""
    if not _NUMBER.fullmatch(cell.strip()):
        return None
    value = float(cell.replace(",", ""))
    return value if math.isfinite(value) else None
