"""Run a small PTX kernel in Python, one thread after the other: what our own few kernels need."""

from __future__ import annotations

import ctypes
import operator
import re
from collections.abc import Sequence
from typing import Any

_SIZES = {"u8": 1, "u32": 4, "u64": 8}
_MASK = (1 << 64) - 1
_COMPARED = {"ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


class PtxRunner:
    """Run the entry of a PTX text on `memory`, whose addresses are places in it."""

    def __init__(self, text: str, memory: bytearray) -> None:
        head, _, body = text.partition("{")
        self.parameters = re.findall(r"\.param \.u\d+ (\w+)", head)
        lines = (line.split("//")[0].strip() for line in body.splitlines())
        self.lines = [line for line in lines if line and not line.startswith((".reg", "}"))]
        self.labels = {line[:-1]: k for k, line in enumerate(self.lines) if line.endswith(":")}
        self.memory = memory

    def issue(self, stream: Any, blocks: int, *values: Any) -> None:
        """Run all threads of a launch; as `PtxKernel`, but with four in a block."""
        given = dict(zip(self.parameters, (value.value for value in values), strict=True))
        sizes = {"%ntid.x": 4, "%nctaid.x": blocks}
        for block in range(blocks):
            for thread in range(4):
                self._run({**sizes, "%ctaid.x": block, "%tid.x": thread}, given)

    def _run(self, registers: dict[str, int], given: dict[str, int]) -> None:
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            at += 1
            if line.endswith(":"):
                continue
            guard = re.match(r"@(%p\d+) (.*)", line)
            if guard and not registers[guard[1]]:
                continue
            name, _, rest = (guard[2] if guard else line).rstrip(";").partition(" ")
            words = [word.strip().strip("[]") for word in rest.split(",")]
            if name == "ret":
                return
            if name == "bra":
                at = self.labels[words[0]]
            elif name.startswith("ld.param"):
                registers[words[0]] = given[words[1]]
            elif name.startswith("ld.global"):
                base, _, further = words[1].partition("+")
                begin, size = registers[base] + int(further or 0), _SIZES[name.rpartition(".")[2]]
                registers[words[0]] = int.from_bytes(self.memory[begin : begin + size], "little")
            elif name.startswith("st.global"):
                begin, size = registers[words[0]], _SIZES[name.rpartition(".")[2]]
                value = registers[words[1]] & ((1 << 8 * size) - 1)
                self.memory[begin : begin + size] = value.to_bytes(size, "little")
            else:
                operands = [
                    int(w.rstrip("U"), 0) if w[0].isdigit() else registers[w] for w in words[1:]
                ]
                registers[words[0]] = _compute(name, operands)


def _compute(name: str, of: Sequence[int]) -> int:
    short = (1 << 32) - 1
    kind, *_ = name.split(".")
    mask = _MASK if name.endswith("64") or ".wide" in name else short
    found = {
        "mov": lambda: of[0],
        "cvt": lambda: of[0],
        "add": lambda: of[0] + of[1],
        "sub": lambda: of[0] - of[1],
        "mul": lambda: of[0] * of[1] >> (64 if ".hi." in name else 0),
        "mad": lambda: of[0] * of[1] + of[2],
        "div": lambda: of[0] // of[1],
        "rem": lambda: of[0] % of[1],
        "shl": lambda: of[0] << of[1],
        "shr": lambda: of[0] >> of[1],
        "xor": lambda: of[0] ^ of[1],
        "setp": lambda: int(_COMPARED[name.split(".")[1]](of[0], of[1])),
    }[kind]()
    return found & mask


class DeviceMemory:
    """Memory of a GPU that is no GPU: allocations, copies, and kernels in PTX on them."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self.bytes, self._end = bytearray(size_bytes), 256

    def allocate(self, size_bytes: int) -> int:
        base, self._end = self._end, self._end + -(-size_bytes // 256) * 256
        return base

    def call(self, function: Any, *arguments: Any) -> Any:
        """Do what a call of the driver does; memory that is freed is not used again."""
        name = function.__name__
        if name.startswith("cuMemcpyHtoD"):
            target, source, size = arguments[:3]
            self.bytes[target : target + size] = ctypes.string_at(source, size)
        elif name.startswith("cuMemcpyDtoD"):
            target, source, size = arguments[:3]
            self.bytes[target : target + size] = self.bytes[source : source + size]
        elif name in ("cuMemsetD8", "cuMemsetD8Async"):
            base, byte, size = arguments[:3]
            self.bytes[base : base + size] = bytes([byte]) * size
        elif name == "cuMemsetD2D8Async":
            base, pitch, byte, size, rows = arguments[:5]
            for at in range(base, base + pitch * rows, pitch):
                self.bytes[at : at + size] = bytes([byte]) * size

    def load_kernel(self, text: str, name: str) -> PtxRunner:
        return PtxRunner(text, self.bytes)
