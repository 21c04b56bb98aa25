"""Compare search methods on recorded spaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.app.locate import look_for_space
from tuner.app.plan import read_space, require_searcher
from tuner.extensions.study.comparison import ReplayTask, SearcherComparison, Settings
from tuner.extensions.study.comparison import compare as replay_all
from tuner.extensions.study.recorded_spaces import RecordedSpace, load_spaces, recording_name
from tuner.model.errors import InputError
from tuner.space.load import Definition


def compare(
    recordings: Sequence[Path | str],
    *,
    searchers: Sequence[str] = ("auto", "optuna", "random"),
    seeds: int = 20,
    trials: int = 100,
    batch: int = 1,
    workloads: Sequence[str] = (),
    space: Path | str | None = None,
    jobs: int = 1,
    reading: Callable[[Path], None] = lambda path: None,
    ended: Callable[[RecordedSpace, str], None] = lambda space, searcher: None,
) -> SearcherComparison:
    """Replay search methods over recordings, each with every seed, and score what they find.

    A recording is a file of `tune record`, a Kernel Tuner cache or T4 results; the search space of
    the first kind is found by its name, or is `space`. `ended` is called when a method was replayed
    over a space with every seed. Raises `InputError` for a searcher or a file of no use.
    """
    for name in searchers:
        require_searcher(name)
    paths = tuple(dict.fromkeys(Path(path).resolve() for path in recordings))
    own = None if space is None else Path(space)
    spaces: list[RecordedSpace] = []
    for path in paths:
        reading(path)
        spaces += recorded_spaces(path, own, workloads)
    spaces = _told_apart(spaces)
    left = {(number, name): seeds for number in range(len(spaces)) for name in searchers}

    def count(task: ReplayTask) -> None:
        left[task.space, task.searcher] -= 1
        if not left[task.space, task.searcher]:
            ended(spaces[task.space], task.searcher)

    return replay_all(
        Settings(tuple(searchers), seeds, trials, batch), spaces, jobs=jobs, ended=count
    )


def _told_apart(spaces: Sequence[RecordedSpace]) -> list[RecordedSpace]:
    """Name recordings of one name by their folders too: those of two GPUs are called alike."""
    paths = Counter(recording_name(path) for path in {one.path for one in spaces})
    return [
        replace(one, name=f"{one.path.parent.name}/{one.name}") if paths[one.name] > 1 else one
        for one in spaces
    ]


def recorded_spaces(
    path: Path, space: Path | None = None, workloads: Sequence[str] = ()
) -> tuple[RecordedSpace, ...]:
    """Read a recording's spaces, with the search space that belongs to it or is given."""

    def find(recording: Path) -> Definition:
        return read_space(space or _space_of(recording))

    return load_spaces(path, find, workloads)


def _space_of(recording: Path) -> Path:
    # It is named after `<folder>/recordings/<gpu>/<kernel>.json.xz`.
    folders = recording.resolve().parents
    kernel = folders[min(2, len(folders) - 1)] / f"{recording_name(recording)}.cu"
    found = look_for_space(kernel, Path.cwd())
    if found is None:
        raise InputError(
            f"there is no search space named {kernel.stem}.yaml, which says what was recorded",
            path=recording,
            remedy="name it with --space",
        )
    return found
