"""The essential line of a sanitizer's report, for when the process died instead of saying it."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"ERROR: AddressSanitizer:? (?P<what>[^\n]+?)(?: \(pc|,| at pc|\n|$)")
_ACCESS = re.compile(r"^(?P<kind>READ|WRITE) of size (?P<bytes>\d+)", re.MULTILINE)
_WHERE = re.compile(r"^0x[0-9a-f]+ is located (?P<where>[^\n]+?)(?: \[|$)", re.MULTILINE)
_FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ (?:in .*? )?(?P<file>[^\s:]+):(?P<line>\d+)", re.M)
_UNDEFINED = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+: runtime error: (?P<what>.+)$", re.MULTILINE
)
_OURS = re.compile(r"on_host|sanitizer|libasan|libubsan")


def sanitizer_finding(text: str) -> str:
    """Return `kernel.cu(12): what was done` for the first finding in `text`, or nothing."""
    undefined = _UNDEFINED.search(text)
    address = _ADDRESS.search(text)
    if undefined and not (address and address.start() < undefined.start()):
        return f"{_named(undefined['file'])}({undefined['line']}): {undefined['what']}"
    if address is None:
        return ""
    report = text[address.start() :]
    frames = (frame for frame in _FRAME.finditer(report) if not _OURS.search(frame["file"]))
    frame = next(frames, None)
    place = f"{_named(frame['file'])}({frame['line']})" if frame else "unknown line"
    access, where = _ACCESS.search(report), _WHERE.search(report)
    told = [address["what"].split(" on address ")[0]]
    if access:
        told.append(f"{access['kind'].lower()} of {access['bytes']} bytes")
    if where:
        told.append(where["where"])
    return f"{place}: {', '.join(told)}"


def _named(path: str) -> str:
    return path.rsplit("/", 1)[-1]
