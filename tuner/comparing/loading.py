"""From a recording's file to its recorded spaces, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.comparing.rendered import rendered_spaces
from tuner.comparing.spaces import RecordedSpace, space_of
from tuner.device.foreign.files import is_foreign
from tuner.device.foreign.recordings import load_measured
from tuner.errors import InputError
from tuner.space_file import Definition


def load_spaces(
    path: Path, find: Callable[[Path], Definition], workloads: Sequence[str] = ()
) -> tuple[RecordedSpace, ...]:
    """Read a Kernel Tuner cache, T4 results or a recording of `tune record`.

    `find` finds the search space of the last kind, which names no configs. `workloads`
    chooses among those of a recording; a foreign file has one, which only ours name. Raises
    `DeviceError` for a file that cannot be read and `InputError` for one of no use.
    """
    if not is_foreign(path):
        return tuple(rendered_spaces(path, find, workloads))
    measured = load_measured(path)
    own = measured.own.workload if measured.own else None
    if workloads and set(workloads) != {own}:
        raise InputError(
            f"holds one workload, {own or 'which it does not name'}",
            path=path,
            remedy="--workload chooses among those of a recording of `tune record`: leave it out",
        )
    return (space_of(measured, path),)
