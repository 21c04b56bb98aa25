"""Launches one compiled kernel in a fresh process: a script, and the function that runs it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.extensions.cpu.child import ByteRange, KernelEntry, LaunchRecord
from tuner.extensions.cpu.host_source import entry_name

GUARD_BYTES = 256
PATTERN = 0x5A
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Launched:
    """How a launch ended, and what its buffers hold then."""

    code: int
    message: str
    buffers: list[list[float]]


def launch(
    library: bytes,
    *buffers: tuple[str, int | list[Any]],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    shared_bytes: int = 0,
    order: int = 0,
    times: int = 1,
    timeout_s: float = 2.0,
    entry: int = 0,
    environment: dict[str, str] | None = None,
) -> Launched:
    """Run a kernel of `library`; buffers are a ctypes name with contents, or a length for 0, 1."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        wanted = {
            "library": file.name,
            "buffers": buffers,
            "grid": grid,
            "block": block,
            "cluster": cluster,
            "shared_bytes": shared_bytes,
            "order": order,
            "times": times,
            "timeout_s": timeout_s,
            "entry": entry,
        }
        done = subprocess.run(
            [sys.executable, "-S", __file__],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), **(environment or {})},
            check=False,
        )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return Launched(**json.loads(done.stdout))


def _run(wanted: dict[str, Any]) -> dict[str, Any]:
    memory, starts, guards, views = [], [], [], []
    for name, given in wanted["buffers"]:
        kind = getattr(ctypes, name)
        contents = given if isinstance(given, list) else range(given)
        length = len(contents)
        size = length * ctypes.sizeof(kind)
        block = (ctypes.c_char * (size + 3 * GUARD_BYTES))()
        first = -(-ctypes.addressof(block) // GUARD_BYTES) * GUARD_BYTES + GUARD_BYTES
        view = (kind * length).from_address(first)
        view[:] = [kind(one).value for one in contents]
        ctypes.memset(first - GUARD_BYTES, PATTERN, GUARD_BYTES)
        memory.append(block)
        views.append(view)
        starts.append(ctypes.c_void_p(first))
        guards += [
            ByteRange(first - GUARD_BYTES, GUARD_BYTES),
            ByteRange(first + size, GUARD_BYTES - size % 8),
        ]
    count = len(starts)
    values = (ctypes.c_void_p * max(count, 1))(*map(ctypes.addressof, starts))
    sizes = (ctypes.c_uint * max(count, 1))(*[8] * count)
    message = ctypes.create_string_buffer(1024)
    zones = (ByteRange * max(len(guards), 1))(*guards)
    record = LaunchRecord(
        tuple(wanted["grid"]),
        tuple(wanted["block"]),
        tuple(wanted["cluster"]),
        wanted["shared_bytes"],
        count,
        wanted["order"],
        wanted["timeout_s"],
        ctypes.addressof(values),
        ctypes.addressof(sizes),
        ctypes.addressof(message),
        len(message),
        ctypes.addressof(zones),
        len(guards),
    )
    library = ctypes.CDLL(wanted["library"])
    kernel = KernelEntry.in_dll(library, entry_name(wanted["entry"]))
    given = ctypes.byref(record), ctypes.byref(kernel)
    codes = [library.cuda_on_host_run(*given) for _ in range(wanted["times"])]
    buffers = [list(view) for view in views]
    return {"code": max(codes), "message": message.value.decode(), "buffers": buffers}


if __name__ == "__main__":
    print(json.dumps(_run(json.load(sys.stdin))))
