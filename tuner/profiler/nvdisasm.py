"""NVIDIA's disassembler: a cubin to the text of its machine code."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tuner.toolkit import bundled, candidates, executable

TIMEOUT_S = 30.0
# Some 600,000 instructions: more than any kernel that fits into an instruction cache's reach.
MAX_BYTES = 64 << 20

_NAME = "nvdisasm"
_MAGIC = b"\x7fELF"


@cache
def find_nvdisasm() -> Path | None:
    """Find the tool: pip's, which is as new as the compiler, else a CUDA toolkit's."""
    paths = (*bundled(_NAME), *candidates(_NAME))
    return next((path for path in paths if executable(path)), None)


def disassemble(cubin: bytes, timeout_s: float = TIMEOUT_S) -> str:
    """Disassemble a cubin, with the source's line of each instruction where it is known.

    Returns "" where there is no tool, or it refuses the cubin, or does not end in time.
    """
    tool = find_nvdisasm()
    if tool is None or not cubin.startswith(_MAGIC):
        return ""
    with TemporaryDirectory(prefix="tuner-nvdisasm-") as folder:
        file, listing = Path(folder, "cubin"), Path(folder, "listing")
        file.write_bytes(cubin)
        with listing.open("wb") as output:
            try:
                ended = subprocess.run(  # noqa: S603 - the tool that was found
                    [tool, "--print-code", "--print-line-info-inline", file],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "LC_ALL": "C"},
                    timeout=timeout_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired):
                return ""
        if ended.returncode != 0 or listing.stat().st_size > MAX_BYTES:
            return ""
        return listing.read_text(encoding="utf-8", errors="replace")
