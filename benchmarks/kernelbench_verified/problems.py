"""Which problems of KernelBench-Verified are tried, how, and the folder that each has.

A folder holds all there is of one problem in one arm: the problem, what is asked of an agent and
answered, the session and the row. It can be carried to any machine, and an agent needs no other.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What our agents wrote: their first kernels serve every arm, which then all begin alike.
KERNELS = HERE / "kernels"
LEVELS = {1: 100, 2: 100, 3: 50}
# The benchmark leaves them out itself: their outputs are zeros whatever the inputs are.
EXCLUDED = {(2, 23), (2, 80), (2, 83)}
# 20 + 20 + 10 problems; every tenth are half of them, and the arms run eight.
EVERY, FIRST_PASS, EVERY_OF_ARMS, LEVELS_OF_ARMS = 5, 10, 25, (1, 2)
ROUNDS, TRIALS = 3, 16
DRAFTS = ("search_spaces", "templates")
KERNEL, TEMPLATE, SPACE = "kernel.cu", "template.cu.j2", "space.yaml"
EXCHANGE, SESSION, ROW, README = "exchange", "session", "row.json", "README.md"


@dataclass(frozen=True, slots=True)
class Problem:
    level: int
    pid: int

    @property
    def name(self) -> str:
        return f"level{self.level}_{self.pid}"

    def path(self, benchmark: Path) -> Path:
        """Find its file in a checkout of the benchmark."""
        folder = benchmark / "KernelBench" / f"level{self.level}"
        found = sorted(folder.glob(f"{self.pid}_*.py"))
        if len(found) != 1:
            raise SystemExit(f"{folder}: {len(found)} files are named {self.pid}_*.py, not one")
        return found[0]

    def hidden_tests(self, benchmark: Path) -> Path:
        return benchmark / f"hidden_tests/level{self.level}/{self.pid}_hidden.py"


def chosen(every: int, levels: tuple[int, ...] = (1, 2, 3)) -> tuple[Problem, ...]:
    """Choose every k-th problem of each level, or the next one where that is left out."""
    return tuple(
        Problem(level, pid + ((level, pid) in EXCLUDED))
        for level in levels
        for pid in range(every, LEVELS[level] + 1, every)
    )


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of working that is compared with the others.

    `fixed`: the agent writes plain code, in which each parameter has one value.
    """

    name: str
    trials: int = TRIALS
    profile: bool = True
    fixed: bool = False


# Neighbours differ in one thing: the profile, the template, the search; `search` lacks the profile.
ARMS = {
    one.name: one
    for one in (
        Arm("time", trials=1, profile=False, fixed=True),
        Arm("profile", trials=1, fixed=True),
        Arm("template", trials=1),
        Arm("search", profile=False),
        Arm("all"),
    )
}
# 0 is the run over all problems, in which agents write the first kernels too.
REPETITIONS = (1, 2)


@dataclass
class Step:
    """One run of `tune`: its seconds on the machine, how it ended, the time it had found, and of
    which commit it was."""

    seconds: float
    code: int | None
    on_gpu: bool
    best_us: float | None = None
    commit: str = ""


@dataclass
class Row:
    """Where a problem stands in an arm; `state` is one of STATES.

    `request` is the newest one, within the folder. `result` is what `tune --json` gave at the end,
    `judged` what the benchmark's harness says, and `reason` why the problem is lost. `part` is what
    of the problem is tuned where PyTorch's libraries keep the rest, and `tolerance` what replaced
    the drafted one. `earlier_s` is what the GPU was busy with a first try that a fault of ours
    ended, or that nothing could pass.
    """

    level: int
    pid: int
    arm: str = "all"
    repetition: int = 0
    state: str = "new"
    request: str = ""
    reason: str = ""
    part: str = ""
    tolerance: str = ""
    earlier_s: float = 0.0
    steps: list[Step] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return Problem(self.level, self.pid)

    @property
    def kernel(self) -> str:
        """Name the file that is tuned, without its ending."""
        return self.part or self.problem.name

    @property
    def key(self) -> str:
        return self.problem.name + (f"-{self.arm}-{self.repetition}" if self.repetition else "")

    @property
    def gpu_s(self) -> float:
        return sum(one.seconds for one in self.steps if one.on_gpu)

    @property
    def best_us(self) -> float | None:
        return next((one.best_us for one in reversed(self.steps) if one.best_us), None)


def rows_of(every: int, *, arms: bool) -> list[Row]:
    """List what is to be run: every k-th problem, or those of the arms in each arm."""
    if not arms:
        return [Row(one.level, one.pid) for one in chosen(every)]
    return [
        Row(one.level, one.pid, arm, repetition)
        for one in chosen(EVERY_OF_ARMS, LEVELS_OF_ARMS)
        for arm in ARMS
        for repetition in REPETITIONS
    ]


# asks: an answer is awaited; ready: a GPU is; cut: a run was ended before its time; tuned: only the
# judge is left.
STATES = ("new", "asks", "ready", "cut", "tuned", "judged", "lost")


def read_row(folder: Path) -> Row:
    stored = json.loads((folder / ROW).read_text("utf-8"))
    return Row(**{**stored, "steps": [Step(**one) for one in stored["steps"]]})


def write_row(folder: Path, row: Row) -> None:
    written = folder / f"{ROW}.new"
    written.write_text(json.dumps(asdict(row), indent=1) + "\n", "utf-8")
    written.replace(folder / ROW)


def rows_in(state: Path) -> Iterator[tuple[Path, Row]]:
    """Read every problem's row, in the order of levels and numbers."""
    read = [(path.parent, read_row(path.parent)) for path in state.glob(f"*/{ROW}")]
    yield from sorted(read, key=lambda one: (one[1].level, one[1].pid, one[1].key))


def make_folder(state: Path, row: Row, benchmark: Path) -> Path:
    """Write a problem's folder unless it is there.

    An arm gets the part, the first kernel and the drafts of the run over all problems, with which
    all of them begin; there is no folder where that has none yet.
    """
    folder, name = state / row.key, row.problem.name
    if (folder / ROW).exists():
        return folder
    if row.repetition:
        first = read_row(state / name) if (state / name / ROW).exists() else None
        if first is None or not (state / name / "search_spaces").exists():
            return folder
        row.part, row.tolerance, row.state = first.part, first.tolerance, "ready"
        for path in (f"{row.kernel}.py", f"{row.kernel}.cu", *DRAFTS):
            copy = shutil.copytree if (state / name / path).is_dir() else shutil.copyfile
            folder.mkdir(parents=True, exist_ok=True)
            copy(state / name / path, folder / path)
    (folder / EXCHANGE).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(row.problem.path(benchmark), folder / f"{name}.py")
    write_readme(folder, row)
    write_row(folder, row)
    return folder


def write_readme(folder: Path, row: Row) -> None:
    """Tell an agent what to do in a problem's folder."""
    arm = ARMS[row.arm]
    fixed = "\n- Give every parameter one value: there is no search, so write plain code."
    one = "\n- Only `default` is timed: there is no search, so choose it well."
    alone = (fixed if arm.fixed else one) if arm.trials == 1 else ""
    alone += "\n- Write one answer a round." if row.repetition else ""
    (folder / README).write_text(FOR_AGENTS.format(name=row.kernel, alone=alone), "utf-8")


def newest_request(folder: Path) -> str:
    """Name the request that was written last, or what was wrong with its answer; "" for none."""
    asked = sorted(
        (folder / EXCHANGE).glob("*/request.md"),
        key=lambda one: (one.parent.name.startswith("round-"), one.parent.name),
    )
    if not asked:
        return ""
    problem = asked[-1].with_name("problem.md")
    return str((problem if problem.exists() else asked[-1]).relative_to(folder))


def is_answered(folder: Path, request: str) -> bool:
    """Tell whether all the files that answer a request are there."""
    place = (folder / request).parent
    needed = (KERNEL,) if place.name.startswith("kernel-") else (TEMPLATE, SPACE)
    several = [one for one in place.iterdir() if one.is_dir() and len(one.name) == 1]
    files = [one / name for one in several or [place] for name in needed]
    return all(one.exists() and one.stat().st_size for one in files)


def describe(folder: Path, row: Row) -> str:
    """Write a problem's line."""
    us = f"{row.best_us:.1f} us" if row.best_us else "-"
    (found, *_) = row.result.get("workloads") or [{}]
    peers = {n: one["us"] for n, one in found.get("peers", {}).items() if one and one["us"]}
    beside = ", ".join(f"{name} {us:.1f}" for name, us in peers.items()) or "-"
    asked = folder.name + "/" + row.request if row.state == "asks" else row.reason
    if row.state == "judged":
        asked = row.judged.get("why") or "correct"
    return f"{row.key:22} {row.state:6} {row.gpu_s:5.0f} s  {us:>12}  {beside}  {asked}"


def pack(state: Path, file: Path) -> None:
    """Put all folders into one small file."""
    with tarfile.open(file, "w:xz") as archive:
        archive.add(state, arcname=".")
    print(f"packed {state} into {file.stat().st_size / 1e6:.1f} MB")


def unpack(file: Path, state: Path) -> None:
    """Take all folders as they were packed, in the place of those that are there."""
    shutil.rmtree(state, ignore_errors=True)
    with tarfile.open(file) as archive:
        archive.extractall(state, filter="data")


FOR_AGENTS = """\
# {name}

The newest `exchange/*/request.md` (or `problem.md` beside it, where there is one) says what is
asked. Write the files it names beside it, once: they are read as they lie there. Write an answer
to `draft/` in this folder before, have `tune gate draft {name}.cu` say, without a GPU, what a round
would refuse, and move it when it passes. A first kernel is checked once it is there.

- Everything you need is in this folder. Look at no other one, at no other solution of the problem,
  and at no test of it.
- The benchmark compares with PyTorch, whose convolutions take TF32 (and products that a part was
  cut from): operands rounded to it, to nearest, agree with that where exact ones need not.
- Write `agent.json` beside `request.md`, once a round, or in each folder of several answers:
  {{"agent": "your model's name", "tokens": N}}, with how many tokens you used, or null.{alone}
"""
