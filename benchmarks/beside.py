"""What two benchmarks of configs a second share: a clock, processes of their own, the summary."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Row = Mapping[str, Any]
Moment = tuple[float, float, float]
TICKS = os.sysconf("SC_CLK_TCK")


class PhaseClock:
    """Note when each phase of a run was first heard of, and when last, as `moment` tells it.

    CPU seconds are read where a phase begins, and stand for the end of the one before: to read
    them takes as long as half a config, and a phase is heard of at every config.
    """

    def __init__(self) -> None:
        self.first: dict[str, Moment] = {}
        self._last_s: dict[str, float] = {}

    def update(self, progress: Any) -> None:
        if progress.phase not in self.first:
            self.first[progress.phase] = moment()
        self._last_s[progress.phase] = time.perf_counter()

    def last(self, phase: str) -> Moment:
        """Tell when a phase was last heard of, with the CPU seconds where the next one began."""
        phases = list(self.first)
        _, own_s, everybody_s = self.first[phases[phases.index(phase) + 1]]
        return self._last_s[phase], own_s, everybody_s


def moment() -> Moment:
    """Tell the time, the CPU seconds of this process and all that it started, and everybody's."""
    user, nice, system = Path("/proc/stat").read_text().split(None, 4)[1:4]
    everybody = (int(user) + int(nice) + int(system)) / TICKS
    return time.perf_counter(), cpu_s(os.getpid()), everybody


def spent(began: Moment, ended: Moment) -> dict[str, float]:
    """Give the seconds between two moments, and how many cores others used meanwhile."""
    seconds, own, everybody = (end - begin for begin, end in zip(began, ended, strict=True))
    others = max(0.0, everybody - own) / seconds
    return {"seconds": seconds, "cpu_seconds": own, "cores_of_others": round(others, 2)}


def cpu_s(root: int) -> float:
    """Sum the CPU seconds of a process and all below it, those that ended included."""
    used, children = dict[int, float](), defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        used[int(folder.name)] = sum(map(int, fields[11:15])) / TICKS
        children[int(fields[1])].append(int(folder.name))
    total, waiting = 0.0, [root]
    while waiting:
        process = waiting.pop()
        total += used.get(process, 0.0)
        waiting += children[process]
    return total


def in_a_process_of_its_own(
    script: str, *words: str, caches: Mapping[str, str], root: Path = ROOT
) -> Any:
    """Run a script with folders of its own for what `caches` names; give its last line's JSON.

    `root` is the checkout whose `tuner` it imports.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {variable: f"{folder}/{name}" for variable, name in caches.items()}
        for place in places.values():
            Path(place).mkdir()
        path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        answer = subprocess.run(
            [sys.executable, script, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **places},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(answer.stdout.splitlines()[-1])


def alternating(tools: Mapping[str, Callable[[], Row]], rounds: int) -> dict[str, list[Row]]:
    """Run every tool once a round, in an order drawn for each, and print what each came to."""
    rows: dict[str, list[Row]] = {name: [] for name in tools}
    for _ in range(rounds):
        for name in random.sample(list(tools), len(tools)):
            load = round(os.getloadavg()[0], 1)
            rows[name].append({**tools[name](), "load": load})
            print(name, json.dumps(rows[name][-1]), flush=True)
    return rows


def summary(rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Print the median rates, and give them with the ratio of the first tool's to the second's.

    `ratios` are those of the single rounds.
    """
    every = {name: [one["configs"] / one["seconds"] for one in runs] for name, runs in rows.items()}
    rates = {name: median(found) for name, found in every.items()}
    for name, runs in rows.items():
        best = min(one["best_us"] for one in runs)
        print(f"{name:32} {rates[name]:7.2f} configs/s   best {best:.2f} us")
    ours, theirs = list(rows)[:2]
    ratios = [mine / other for mine, other in zip(every[ours], every[theirs], strict=True)]
    print(f"ratio {rates[ours] / rates[theirs]:.2f}")
    return {"rates": rates, "ratio": rates[ours] / rates[theirs], "ratios": ratios, "runs": rows}


def surroundings() -> dict[str, str]:
    """Describe what both tools ran on and with."""
    return {
        "cpus": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "kernel_tuner": version("kernel_tuner"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
