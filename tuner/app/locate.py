"""Finding the search space that belongs to a kernel, and the recordings in a tree."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from tuner.model.errors import KernelError, SpaceError
from tuner.model.languages import OPENCL, language_of
from tuner.process.files import read_text

FOLDER = "search_spaces"
# How files end that state what a kernel computes.
PROBLEMS = (".py", ".json")
# What `tune init` adds to the name of a Triton file for the module that launches it.
DRAFTED = "_tune"
# How a file defines `launch`, or what it cannot be, which is told once the file is read.
_LAUNCH = re.compile(rb"^((async\s+)?def|class)\s+launch\b|^launch\s*[:=]", re.MULTILINE)
_KERNEL = re.compile(r"^kernel:\s*[\"']?(\w+)", re.MULTILINE)


def find_space(kernel: Path, start: Path) -> Path:
    """Find what `look_for_space` finds; raise `SpaceError` for none or several."""
    path = look_for_space(kernel, start)
    if path is not None:
        return path
    drafting = f"`tune init {kernel}` drafts one"
    if language_of(kernel) is OPENCL:
        drafting = "write one, for none is drafted for OpenCL (docs/hardware.md)"
    raise SpaceError(
        f"no search space for {kernel}: there is no {FOLDER}/**/{kernel.name}.yaml and no "
        f"{FOLDER}/**/{kernel.stem}.yaml",
        remedy=f"{drafting}; --space names one that lies elsewhere",
    )


def space_of(kernel: Path, given: Path | str | None) -> Path:
    """Name what a new run of a kernel reads: the search space that it is given, or what is found.

    Raises `SpaceError` as `find_space` does.
    """
    return Path(given or find_space(kernel, Path.cwd()))


def reads_space(kernel: Path, given: Path | str | None, space: Path) -> bool:
    """Tell whether a new run of a kernel, with the search space it is given, would read `space`."""
    try:
        path = space_of(kernel, given)
    except SpaceError:  # there is none, or there are several
        return False
    return path.exists() and space.samefile(path)


def look_for_space(kernel: Path, start: Path, stem: str | None = None) -> Path | None:
    """Find `search_spaces/**/NAME.yaml` from `start`, then from the kernel's folder upwards.

    NAME is the kernel file's name or its stem (`scale.cl`, `scale`), or the `stem` that is given.
    The first folder that holds a match decides. Of several there, those go first that lie in a
    folder of the same name as the kernel's, then those with the whole file name; `SpaceError` for
    several that are left.
    """
    names = (stem,) if stem else (kernel.name, kernel.stem)
    stem, folder = names[-1], kernel.resolve().parent
    for root in (start.resolve(), folder, *folder.parents):
        found = [sorted((root / FOLDER).glob(f"**/{glob.escape(name)}.yaml")) for name in names]
        matches = [path for paths in found for path in paths]
        beside = [path for path in matches if path.parent.name == folder.name] or matches
        chosen = [path for path in beside if path.stem == kernel.name] or beside
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            listed = "".join(f"\n    {match}" for match in chosen)
            raise SpaceError(
                f"{len(chosen)} search spaces are named {chosen[0].name}:{listed}",
                remedy="choose one with --space",
            )
    if kernel.suffix == ".py" and stem.endswith(DRAFTED):
        return look_for_space(kernel, start, stem.removesuffix(DRAFTED))
    return None


def require_kernel(kernel: Path) -> None:
    """Raise `KernelError` unless `kernel` is a file that can hold a kernel."""
    if not kernel.exists():
        raise KernelError(f"no such kernel file: {kernel}")
    if not kernel.is_file():
        raise KernelError(f"{kernel} is not a file")
    if kernel.suffix in PROBLEMS and not is_python_kernel(kernel):
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


def is_python_kernel(path: Path) -> bool:
    """Tell a kernel in Python from the statement of a problem.

    It defines `launch` or one that was drafted beside it, or is of Triton or Helion.
    """
    if path.suffix != ".py" or not path.is_file():
        return False
    drafted = path.with_name(f"{path.stem}{DRAFTED}.py")
    files = [one for one in (path, drafted) if one.is_file()]
    if any(_LAUNCH.search(file.read_bytes()) for file in files):
        return True
    from tuner.app.drafters import drafter

    return drafter().holds_kernel(path)


def is_for(space: Path, kernel: str) -> bool:
    """Whether a search space is for a kernel, as far as it says, or is not there."""
    try:
        match = _KERNEL.search(read_text(space))
    except OSError:
        return True
    return match is None or match[1] == kernel


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
