"""Which kernels of a source to extract: those asked for, or all that one function launches."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from tuner.errors import KernelError
from tuner.extract.items import Item
from tuner.extract.leftovers import unread
from tuner.extract.reading import Reading
from tuner.extract.unit import Place
from tuner.source import LaunchSite, SourceFile
from tuner.source.facts import bare_name

_WHY = {True: "launched by different functions", False: "and no launch of any"}


def chosen_kernels(
    path: Path,
    kernels: Sequence[Item],
    asked: tuple[str, ...],
    whole: SourceFile,
    places: Sequence[Place | None],
) -> tuple[str, ...]:
    """Name the kernels to extract, in the order of their launches; `KernelError` for a choice.

    `whole` holds all files, and `places` says where each of its lines is from.
    """
    names = list(dict.fromkeys(item.names[-1] for item in kernels))
    for name in asked:
        if bare_name(name) not in names:
            raise _no_such(path, name, names)
    if asked:
        return tuple(dict.fromkeys(bare_name(name) for name in asked))
    if len(names) == 1:
        return (names[0],)
    sites = [site for site in whole.launches if bare_name(site.kernel) in names]
    own = [site for site in sites if _is_in(site, path, places)] or sites
    launched = list(dict.fromkeys(bare_name(site.kernel) for site in own))
    if len(launched) == 1 or (launched and len({_around(site, whole) for site in own}) == 1):
        return tuple(launched)
    listed = "\n  ".join(f"{item.path}:{item.line}: {item.names[-1]}" for item in kernels)
    raise KernelError(
        f"has {len(names)} kernels, " + (_WHY[bool(launched)]),
        path=path,
        remedy=f"choose one or several, such as --kernel {','.join((launched or names)[:1])}\n"
        f"  {listed}",
    )


def no_kernel(path: Path, reading: Reading) -> KernelError:
    """Say that there is no kernel, and which header could hold it."""
    missing = unread(reading, "missing")
    if missing:
        listed = ", ".join(f"{header.directive} (line {header.line})" for header in missing)
        return KernelError(
            f"has no __global__ function, and headers that it includes were not found: {listed}",
            path=missing[0].path,
            line=missing[0].line,
            remedy="give the folder that holds them with --include DIR",
        )
    return KernelError(
        "has no __global__ function, and neither have the headers that it includes",
        path=path,
        remedy="give the file that defines the kernel",
    )


def _no_such(path: Path, name: str, names: list[str]) -> KernelError:
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return KernelError(
        f"no __global__ function named {name!r}",
        path=path,
        remedy=f"{hint}kernels in it: {', '.join(names)}",
    )


def _is_in(site: LaunchSite, path: Path, places: Sequence[Place | None]) -> bool:
    place = places[site.line - 1] if site.line <= len(places) else None
    return place is not None and place[0] == path


def _around(site: LaunchSite, whole: SourceFile) -> int:
    # the innermost function; where there is none, the launch is alone
    starts = [
        d.span[0]
        for d in whole.definitions
        if d.kind == "function" and d.span[0] <= site.at < d.span[1]
    ]
    return max(starts, default=-site.at)
