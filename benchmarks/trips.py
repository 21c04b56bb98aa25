"""Count the files of ours that the program enters on a trip, and how often it moves between them.

    python benchmarks/trips.py [--json] [--files]

The trips: a recorded run of one workload; one config of its search, from proposal to learned;
`init` of a stranger's .cu; an export for SGLang. A file is entered where one of its functions is
called, and not where it is only imported. A move is a call from one of our files into another, as
the program runs: calls into libraries in between don't count, a call of theirs back into ours does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'tuner'}{os.sep}"
KERNEL = "kernels/sglang/silu_and_mul.cu"
RUN = (KERNEL, "--device", "recorded", "--workload", "T=16,D=14336", "--quiet")
STRANGER = "benchmarks/strangers/vllm/lean_pairs.cu"
# Of the 31 that the recording has: before the first the searcher is made, and for the last few the
# search only waits.
FIRST_CONFIG, LAST_CONFIG = 5, 20


@dataclass(eq=False)
class Trip:
    """The files that were entered, with the calls into each, and the calls from one to another."""

    files: Counter[str] = field(default_factory=Counter)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)

    def counts(self) -> tuple[int, int]:
        return len(self.files), self.moves.total()


class Tracer:
    """Follow the calls of every thread for as long as there is a trip to add them to."""

    def __init__(self) -> None:
        self.trip: Trip | None = None
        self._files: dict[str, str] = {}

    @contextlib.contextmanager
    def following(self, trip: Trip | None) -> Iterator[None]:
        self.trip = trip
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            self.trip = None

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        trip = self.trip
        if event != "call" or trip is None or not (file := self._ours(frame)):
            return
        trip.files[file] += 1
        caller = frame.f_back
        while caller is not None and not (before := self._ours(caller)):
            caller = caller.f_back
        if caller is not None and before != file:
            trip.moves[before, file] += 1

    def _ours(self, frame: FrameType) -> str:
        """Name the file that a function of ours is in; "" for a module's body and all others."""
        code = frame.f_code
        if code.co_name == "<module>":
            return ""
        path = code.co_filename
        if path not in self._files:
            self._files[path] = path.removeprefix(PACKAGE) if path.startswith(PACKAGE) else ""
        return self._files[path]


def command(*words: str) -> Callable[[], None]:
    """Make a call of `tune` in this process; a failure of it is raised."""

    def call() -> None:
        from tuner.cli import cli

        try:
            cli.main(list(words))
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"tune {' '.join(words)} ended with {ended.code}") from None

    return call


def trip_of(call: Callable[[], None]) -> Trip:
    """Follow a call from its start to its end."""
    trip = Trip()
    with Tracer().following(trip):
        call()
    return trip


def trip_of_configs(call: Callable[[], None]) -> tuple[int, float, Trip]:
    """Follow a search between two configs that have been learned.

    Returns the files entered, and the moves for each config in between: in that time as many are
    proposed, compiled and measured as are learned.
    """
    from tuner.tuning.progress import ProgressTracker

    tracer, trip, counted = Tracer(), Trip(), 0
    count = ProgressTracker.count

    def count_and_switch(tracker: ProgressTracker, *given: Any, **named: Any) -> None:
        nonlocal counted
        count(tracker, *given, **named)
        counted += 1
        tracer.trip = trip if FIRST_CONFIG <= counted < LAST_CONFIG else None

    with tracer.following(None):
        ProgressTracker.count = count_and_switch  # type: ignore[method-assign]
        try:
            call()
        finally:
            ProgressTracker.count = count  # type: ignore[method-assign]
    return len(trip.files), trip.moves.total() / (LAST_CONFIG - FIRST_CONFIG), trip


def one_trip(name: str) -> dict[str, Any]:
    """Take one trip, in this process, with what it needs in a folder of its own."""
    os.environ["TUNE_STORE"] = "none"
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        session = ("--session", f"{folder}/session")
        run = command(*RUN, *session)
        match name:
            case "run":
                trip = trip_of(run)
            case "config":
                files, moves, trip = trip_of_configs(run)
                entered = dict(trip.files.most_common())
                between = {" -> ".join(pair): n for pair, n in trip.moves.most_common(40)}
                return {
                    "files": files,
                    "moves": round(moves, 1),
                    "entered": entered,
                    "between": between,
                }
            case "init":
                copied = Path(folder, "stranger.cu")
                copied.write_bytes((ROOT / STRANGER).read_bytes())
                trip = trip_of(command("init", str(copied), "--out", folder))
            case _:
                run()
                words = ("--to", f"{folder}/package", "--format", "sglang")
                trip = trip_of(command("export", f"{folder}/session", *words))
    files, total = trip.counts()
    return {"files": files, "moves": total, "entered": dict(trip.files.most_common())}


TRIPS = {
    "run": "a recorded run",
    "config": "one config of it",
    "init": "init of a stranger's .cu",
    "export": "export for SGLang",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--files", action="store_true", help="name the files and the calls of each")
    parser.add_argument("--trip", choices=TRIPS, help="take one, in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.trip:
        with contextlib.redirect_stdout(sys.stderr):
            found = one_trip(arguments.trip)
        print(json.dumps(found))
        return
    taken = {}
    for name in TRIPS:
        words = [sys.executable, __file__, "--trip", name]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        taken[name] = json.loads(ran.stdout.splitlines()[-1])
    if arguments.json:
        print(json.dumps(taken, indent=1))
        return
    for name, title in TRIPS.items():
        found = taken[name]
        print(f"{title:28} {found['files']:4} files {found['moves']:9} moves")
        if arguments.files:
            for file, calls in found["entered"].items():
                print(f"    {file:44} {calls}")


if __name__ == "__main__":
    main()
