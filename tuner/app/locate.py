"""Finding the search space that belongs to a kernel, and the recordings in a tree."""

from __future__ import annotations

import glob
from pathlib import Path

from tuner.model.errors import KernelError, SpaceError

FOLDER = "search_spaces"
# How files end that state what a kernel computes.
PROBLEMS = (".py", ".json")


def find_space(kernel: Path, start: Path) -> Path:
    """Find what `look_for_space` finds; raise `SpaceError` for none or several."""
    found = look_for_space(kernel, start)
    if found is not None:
        return found
    raise SpaceError(
        f"no search space for {kernel}: there is no {FOLDER}/**/{kernel.stem}.yaml",
        remedy=f"`tune init {kernel}` drafts one; --space names one that lies elsewhere",
    )


def look_for_space(kernel: Path, start: Path, stem: str | None = None) -> Path | None:
    """Find `search_spaces/**/<stem>.yaml` from `start`, then from the kernel's folder upwards.

    The stem is the kernel file's by default. The first folder that holds a match decides;
    `SpaceError` for several.
    """
    stem = stem or kernel.stem
    folder = kernel.resolve().parent
    for root in (start.resolve(), folder, *folder.parents):
        matches = sorted((root / FOLDER).glob(f"**/{glob.escape(stem)}.yaml"))
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = "".join(f"\n    {match}" for match in matches)
            raise SpaceError(
                f"{len(matches)} search spaces are named {stem}.yaml:{listed}",
                remedy="choose one with --space",
            )
    return None


def require_kernel(kernel: Path) -> None:
    """Raise `KernelError` unless `kernel` is a file that can hold a kernel."""
    if not kernel.exists():
        raise KernelError(f"no such kernel file: {kernel}")
    if not kernel.is_file():
        raise KernelError(f"{kernel} is not a file")
    if kernel.suffix in PROBLEMS:
        raise KernelError(
            f"{kernel} is no kernel",
            remedy=f"`tune init {kernel}` drafts from a KernelBench problem or a FlashInfer-trace "
            "definition; its kernel, the .cu beside it, is what is tuned then",
        )
    if kernel.suffix in {".yaml", ".yml"}:
        raise KernelError(
            f"{kernel} is a search space, not a kernel",
            remedy=f"name the .cu file, and this one with --space {kernel}",
        )


def require_space(path: Path) -> None:
    """Raise `SpaceError` for a file that is plainly something else than a search space."""
    if path.is_file() and path.suffix in {".cu", ".cuh", ".h", ".py", ".j2"}:
        raise SpaceError(
            "is not a search space",
            path=path,
            remedy=f"name the .yaml file, such as {FOLDER}/{path.name.partition('.')[0]}.yaml",
        )


def find_recordings(start: Path, suffix: str) -> tuple[Path, ...]:
    """List the recordings under `kernels/` of a tree, sorted."""
    return tuple(sorted((start / "kernels").glob(f"**/recordings/*/*{suffix}")))
