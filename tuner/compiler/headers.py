"""Where CUDA's headers come from: NVRTC's own bundle, or a toolkit for an NVRTC without one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from cuda import pathfinder
from cuda.bindings import nvrtc

# Older NVRTCs bring no headers.
FIRST_WITH_BUNDLE = (13, 3)

_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


def include_dirs(version: tuple[int, int], cache_dir: Path) -> list[Path]:
    """Return the include folders for NVRTC `version`; none where no header can be found."""
    if version >= FIRST_WITH_BUNDLE and hasattr(nvrtc, "nvrtcInstallBundledHeaders"):
        bundle = _bundled(version, cache_dir)
        return [bundle, bundle / "cccl"]
    toolkit = _toolkit(version)
    if toolkit is None:
        return []
    cccl = toolkit / "cccl"
    elsewhere = None if cccl.is_dir() else pathfinder.find_nvidia_header_directory("cccl")
    return [toolkit, Path(elsewhere) if elsewhere else cccl]


def identity(folders: list[Path]) -> str:
    """Name the headers' origin and state, for the cache key."""
    if not folders:
        return "no headers"
    root = folders[0]
    if (root / ".nvrtc_headers_version").exists():
        return "bundled"
    marker = root / "cuda_runtime_api.h"
    return f"{root} {_cudart_version(root)} {marker.stat().st_mtime_ns}"


def _bundled(version: tuple[int, int], cache_dir: Path) -> Path:
    folder = cache_dir / f"headers-{version[0]}.{version[1]}"
    if folder.is_dir():
        return folder
    # Extracted beside and renamed: a killed process leaves no half-filled folder in use.
    cache_dir.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix="headers-", dir=cache_dir))
    try:
        result, log = nvrtc.nvrtcInstallBundledHeaders(os.fsencode(beside), 0)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise OSError(f"NVRTC could not extract its headers to {beside}: {result} {log}")
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _toolkit(version: tuple[int, int]) -> Path | None:
    found = [root for root in _toolkit_candidates() if (root / "cuda_runtime_api.h").is_file()]
    wanted = version[0] * 1000 + version[1] * 10
    return min(found, key=lambda root: _distance(_cudart_version(root), wanted), default=None)


def _toolkit_candidates() -> list[Path]:
    candidates = [pathfinder.find_nvidia_header_directory("cudart")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        candidates.append(str(Path(nvcc).resolve().parent.parent / "include"))
    candidates += [
        str(Path(os.environ[name], "include"))
        for name in ("CUDA_HOME", "CUDA_PATH")
        if os.environ.get(name)
    ]
    candidates.append("/usr/local/cuda/include")
    return [Path(candidate) for candidate in candidates if candidate]


def _cudart_version(root: Path) -> int:
    match = _VERSION.search((root / "cuda_runtime_api.h").read_text(errors="replace"))
    return int(match[1]) if match else 0


def _distance(found: int, wanted: int) -> tuple[bool, int]:
    return found // 1000 != wanted // 1000, abs(found - wanted)
