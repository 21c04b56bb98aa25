"""FlashInfer-Bench from PyPI, kept beside this Python without the kernels that it would pull in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cuda import pathfinder
from engine_wheels import pip
from filelock import FileLock

# FlashInfer itself is 60 MB, and needed to replace its kernels only.
PACKAGES = ("flashinfer-bench==0.1.2", "apache-tvm-ffi==0.1.15.post2", "docstring-parser==0.18.0")
SAFETENSORS = "safetensors==0.8.0"
KEPT = Path(sys.prefix) / ".flashinfer-bench"


def packages() -> Path:
    """Return the folder of the packages; skip the test where they can't be had."""
    found = KEPT / f"{PACKAGES[0]}-{sys.version_info.major}.{sys.version_info.minor}"
    found.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(found.with_suffix(".lock")):
        if not (found / "complete").exists():
            pip("install", "--no-deps", "--target", str(found), *PACKAGES, SAFETENSORS)
            (found / "complete").touch()
    return found


def toolkit(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which TVM's FFI finds nvcc, ninja and the CUDA runtime to link.

    The runtime is loaded too, since that of a wheel lies nowhere where it would be looked for.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    nvcc = shutil.which("nvcc", path=path)
    if nvcc is None or shutil.which("ninja", path=path) is None:
        pytest.skip("needs nvcc and ninja")
    runtime: Any = pathfinder.load_nvidia_dynamic_lib("cudart")
    folder.mkdir()
    (folder / "libcudart.so").symlink_to(runtime.abs_path)
    return {"CUDA_HOME": str(Path(nvcc).parents[1]), "LIBRARY_PATH": str(folder), "PATH": path}
