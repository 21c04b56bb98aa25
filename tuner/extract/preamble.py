"""The head of an extracted unit: where it is from, and the headers that it includes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.extract.items import Item
from tuner.extract.reading import Reading
from tuner.extract.standins import standard_library
from tuner.extract.unit import Text
from tuner.source import implied_headers

# headers that only some code needs, slow to compile or not there on the CPU
_ONLY_WITH = {
    "cub/": r"\bcub\s*::",
    "cooperative_groups": r"\bcooperative_groups\b",
    "cuda/": r"\bcuda\s*::",
    "mma.h": r"\b(?:nvcuda|wmma)\b",
    "cuda_pipeline": r"\b__pipeline\w*",
    "curand": r"\bcurand\w*",
    "cstdio": r"\bprintf\b",
    "stdio.h": r"\bprintf\b",
    "cassert": r"\bassert\b",
    "assert.h": r"\bassert\b",
    "cuda_fp8": r"\b__nv_fp8\w*|\b__NV_\w+|\b__nv_cvt_\w+fp8\w*",
}
# from the system's headers, which nvcc includes first of all
_SYSTEM_TYPES = {"uint": "unsigned int", "ushort": "unsigned short", "ulong": "unsigned long"}
# NVRTC refuses the header that includes all of cub
_CUB = {
    "BlockReduce": "block/block_reduce.cuh",
    "BlockScan": "block/block_scan.cuh",
    "BlockRadixSort": "block/block_radix_sort.cuh",
    "BlockLoad": "block/block_load.cuh",
    "BlockStore": "block/block_store.cuh",
    "BlockExchange": "block/block_exchange.cuh",
    "BlockMergeSort": "block/block_merge_sort.cuh",
    "WarpReduce": "warp/warp_reduce.cuh",
    "WarpScan": "warp/warp_scan.cuh",
    "WarpMergeSort": "warp/warp_merge_sort.cuh",
}


def preamble(
    reading: Reading,
    path: Path,
    instances: Sequence[str],
    files: Sequence[Path],
    kept: Sequence[Item],
) -> Text:
    """Begin a unit: a comment that says where it is from, includes, C++'s library for NVRTC."""
    masked = "\n".join(item.code for item in kept)
    text = Text()
    others = [file.name for file in files if file != path]
    where = path.name + (f" with {_listed(others)}" if others else "")
    names = [instance.partition("<")[0] for instance in instances]
    text.extend(_wrapped(f"{_listed(names)}: from {where}, extracted by `tune init`."))
    text.add("")
    plain, standing = standard_library(masked)
    headers = list(dict.fromkeys([*_toolkit(reading, masked), *plain]))
    directives = [f"#include <{header}>" for header in headers]
    implied = implied_headers("\n".join([masked, *instances]), directives)
    text.extend([*directives, *(f"#include <{header}>" for header in implied)])
    text.add("")
    text.extend(standing)
    text.extend(
        f"using {name} = {stands_for};"
        for name, stands_for in _SYSTEM_TYPES.items()
        if re.search(rf"\b{name}\b", masked)
    )
    text.add("")
    return text


def _toolkit(reading: Reading, masked: str) -> Iterator[str]:
    for code in reading.files.values():
        for include in code.included.values():
            name = include.name
            if include.origin != "toolkit":
                continue
            only = next((p for start, p in _ONLY_WITH.items() if name.startswith(start)), None)
            if only is not None and not re.search(only, masked):
                continue
            if name == "cub/cub.cuh":
                used = re.findall(r"\bcub\s*::\s*(\w+)", masked)
                yield from (f"cub/{_CUB[part]}" for part in used if part in _CUB)
            else:
                yield name


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _wrapped(sentence: str) -> Iterator[str]:
    line = "//"
    for word in sentence.split():
        if len(line) + len(word) > 110:
            yield line
            line = "//"
        line += f" {word}"
    yield line
