"""Where NVIDIA's command-line tools are installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

# Nsight Compute installs itself there, apart from CUDA.
_NSIGHT_FOLDER = Path("/opt/nvidia/nsight-compute")


def candidates(name: str) -> Iterator[Path]:
    """List where a tool may be: on PATH, in the CUDA that the environment or /usr/local names.

    Then in pip's packages and in Nsight Compute's own folder. Only on PATH is it known to exist.
    """
    if on_path := shutil.which(name):
        yield Path(on_path)
    named = (os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH"))
    folders = [Path(folder) for folder in named if folder]
    folders += sorted(Path("/usr/local").glob("cuda*"), key=version_of, reverse=True)
    for folder in [*folders, *_from_pip()]:
        yield folder / "bin" / name
        yield folder / name / name
    for folder in sorted(_NSIGHT_FOLDER.glob("[0-9]*"), key=version_of, reverse=True):
        yield folder / name


def list_pip_paths(name: str) -> Iterator[Path]:
    """List where a tool of pip's packages may be, the newest first."""
    for folder in _from_pip():
        yield folder / "bin" / name


def executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def version_of(folder: Path) -> tuple[int, ...]:
    """`cuda-13.0` before `cuda-12.9`; `cuda` alone is the system's choice and comes first."""
    if folder.name == "cuda":
        return (1 << 30,)
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _from_pip() -> list[Path]:
    installed = importlib.util.find_spec("nvidia")
    places = (installed.submodule_search_locations if installed else None) or ()
    folders = [folder for place in places for folder in Path(place).glob("cu[0-9]*")]
    return sorted(folders, key=version_of, reverse=True)
