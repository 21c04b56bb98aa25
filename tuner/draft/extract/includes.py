"""Where an #include leads: to a file of the project, to the toolkit, or to what is not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_NAMED = re.compile(r"#\s*include(?:_next)?\s*(?:<(?P<angled>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\")")
# what NVRTC brings, or stands in for (tuner/compiler/shims.py)
_TOOLKIT = re.compile(
    r"cuda_(?:fp\d\w*|bf16)\.h(?:pp)?|math_constants\.h|vector_(?:types|functions)\.h|mma\.h"
    r"|cuda_(?:pipeline|awbarrier)\w*\.h|cooperative_groups(?:/.*|\.h)|nv/target|curand_kernel\.h"
    r"|cuda/.*|cub/.*|(?:assert|float|limits|math|stddef|stdint|stdio)\.h"
    r"|c(?:assert|float|limits|math|stddef|stdint|stdio)|(?:sm_\d+|device)_\w+\.h(?:pp)?"
)
# cub's own list of everything, which NVRTC refuses
_WHOLE = ("cub/cub.cuh",)
_FRAMEWORK = re.compile(
    r"(?:torch|ATen|c10|pybind11|tvm|dlpack|cutlass|cute|thrust|nccl\w*|nvToolsExt)\b"
    r"|Python\.h|\w*extension\w*\.h|cu(?:blas|sparse|dnn|fft)\w*\.h"
)
_HOST = re.compile(
    r"cuda(?:_runtime\w*|_profiler\w*|Typedefs)?\.h|curand\.h|device_launch_parameters\.h"
    r"|[a-z_]+|(?:stdlib|string|time|unistd|getopt|errno|sys/\w+)\.h"
)
# how far above a file a folder `include` is looked for
_LEVELS = 5

Origin = Literal["own", "toolkit", "framework", "host", "missing"]


@dataclass(frozen=True, slots=True)
class Include:
    """One #include: what it names, and where that is if it is a file of the project."""

    name: str
    quoted: bool
    origin: Origin
    path: Path | None = None

    def __str__(self) -> str:
        marks = '""' if self.quoted else "<>"
        return f"#include {marks[0]}{self.name}{marks[1]}"


def parsed_include(directive: str) -> tuple[str, bool] | None:
    """Read the name in an #include and whether it is quoted; None where a macro stands for it."""
    match = _NAMED.match(directive.strip())
    if match is None:
        return None
    return match["quoted"] or match["angled"], match["quoted"] is not None


def resolved(name: str, quoted: bool, includer: Path, folders: tuple[Path, ...]) -> Include:
    """Find out where an #include leads.

    Looked in are the includer's folder, `folders`, and each `include` beside a folder above.
    """
    places = _places(includer, quoted, folders)
    found = next((place / name for place in places if (place / name).is_file()), None)
    if found is not None:
        shown = found if includer.is_absolute() else Path(os.path.relpath(found))
        return Include(name, quoted, "own", shown)
    if _TOOLKIT.fullmatch(name):
        return Include(name, quoted, "toolkit")
    if _FRAMEWORK.match(name):
        return Include(name, quoted, "framework")
    if not quoted and _HOST.fullmatch(name):
        return Include(name, quoted, "host")
    return Include(name, quoted, "missing")


def is_plain(name: str, quoted: bool) -> bool:
    """Whether a header is the toolkit's or the host compiler's, as plain CUDA files have them."""
    if re.fullmatch(r"helper_\w+\.h", name):
        # of CUDA's samples, for their host code
        return True
    whole = name in _WHOLE
    host = not quoted and _HOST.fullmatch(name) is not None
    return not whole and (host or _TOOLKIT.fullmatch(name) is not None)


def _places(includer: Path, quoted: bool, folders: tuple[Path, ...]) -> Iterator[Path]:
    folder = includer.parent
    if quoted:
        yield folder
    yield from folders
    above = folder.resolve()
    for place in (above, *above.parents[:_LEVELS]):
        yield place / "include"
        if (place / ".git").exists():
            yield place
            return
