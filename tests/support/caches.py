"""Kernel Tuner caches of a small space, as Kernel Tuner writes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

BLOCKS, ITEMS = (32, 64, 128, 256, 512), (1, 2, 4, 8)
FAILED = {(512, 8): "RuntimeFailedConfig", (256, 8): "InvalidConfig"}


def time_ms(block: int, items: int) -> float:
    """Fastest at block 256 and items 4."""
    return 1.0 + abs(block - 256) / 256 + abs(items - 4) / 4


def entry(block: int, items: int) -> dict[str, Any]:
    """One config's entry, with all that Kernel Tuner keeps of it."""
    failed = FAILED.get((block, items))
    told = {"time": failed, "__error__": failed} if failed else {"time": time_ms(block, items)}
    return {
        "block": block,
        "items": items,
        **told,
        **({} if failed else {"times": [time_ms(block, items)] * 7, "GFLOP/s": 3.0}),
        "compile_time": 400.0,
        "verification_time": 0,
        "benchmark_time": 100.0,
        "timestamp": "2025-03-01 12:00:00.5+00:00",
    }


def cache(**changes: Any) -> dict[str, Any]:
    """The content of a cache; keyword arguments replace its keys."""
    return {
        "device_name": "NVIDIA A100-PCIE-40GB",
        "kernel_name": "scale",
        "problem_size": [1000],
        "tune_params_keys": ["block", "items"],
        "tune_params": {"block": list(BLOCKS), "items": list(ITEMS)},
        "objective": ["time", "GFLOP/s"],
        "cache": {f"{b},{i}": entry(b, i) for b, i in product(BLOCKS, ITEMS)},
        **changes,
    }


def written(path: Path, content: Mapping[str, Any] | str) -> Path:
    """Write content as the path's ending says."""
    text = content if isinstance(content, str) else json.dumps(content)
    packed = gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode()
    path.write_bytes(packed)
    return path
