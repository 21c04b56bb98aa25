"""Take each problem of KernelBench-Verified as far as the answers that are there allow.

    python benchmarks/kernelbench_verified/run.py STATE --benchmark CHECKOUT --prepare
    python benchmarks/kernelbench_verified/run.py STATE --benchmark CHECKOUT [NAME ...]
                                [--time-s 540] [--gpus 2] [--unpack FILE] [--pack FILE]

`--prepare` does what needs no GPU: it makes the folders of every 5th problem (`--every 10` for
the first pass, `--arms` for the eight problems of each arm) and writes the first requests; called
again, it checks the first kernels that agents wrote and drafts their search spaces. Of a problem
with convolutions or products `tune cut` leaves these to PyTorch, and the part that loses most there
is tuned, but for one whose products CUDA cores compute while its bytes move. Agents answer
in STATE. Each other call runs every problem for which an answer waits, the shortest first, until
`--time-s` is over, and prints a line a problem: its state, its best time, those of its peers, and
the request that is to be answered. After the last round the benchmark's harness judges what was
exported (judge.py). Packed, STATE goes to another machine and back; it has the same path on both,
which sessions have their files by.

A GPU runs one problem at a time. Nothing is opened beside what is timed: an opening draws inputs
on all cores and computes references on the GPU. First kernels, which need neither, are checked
beforehand instead, and further GPUs take further problems.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernelbench_verified.judge import judge
from kernelbench_verified.problems import (
    ARMS,
    EVERY,
    EXCHANGE,
    ROUNDS,
    SESSION,
    Row,
    Step,
    describe,
    is_answered,
    make_folder,
    newest_request,
    pack,
    rows_in,
    rows_of,
    unpack,
    write_readme,
    write_row,
)

ROOT = Path(__file__).resolve().parents[2]
# What a problem may take of a GPU, and what of it is left for the finals with its peers.
GPU_S, FINALS_S = 240.0, 90.0
# What is expected of a run of which there was none like it, and of the judge.
STEP_S, JUDGE_S = 70.0, 60.0
# Reading a problem, and checking its kernel, on a CPU: 512 steps of a GRU take ten minutes of two
# busy cores.
PREPARE_S = 1500.0
# A run that is interrupted writes its session and ends.
GRACE_S = 20.0
# A file of this name in a problem's exchange ends its rounds.
STOP = "stop"
# How often a first kernel may be refused; a round counts for itself.
MOST_REFUSED = 4
NO_ANSWER, INTERRUPTED = 4, 130
MOST_REASON = 300
# What decides which part of a problem is tuned: the data sheet's rate without tensor cores.
GPU, FP32_TFLOPS = "h200", 67.0
CONVOLUTION = "nn.Conv"
# The benchmark's own for float32. Where a convolution is tuned too it is PyTorch's with TF32 that
# the benchmark compares with: of level2_60, inputs x3, that is 7 times as far from the exact one.
TOLERANCE, ROUNDED = "1e-3", ", tf32: true"


@dataclass(frozen=True)
class Call:
    """What one call of this program may use, on one GPU."""

    benchmark: Path
    device: str
    ends: float
    environ: Mapping[str, str]
    gpu_s: float = GPU_S

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()


def words_for(folder: Path, row: Row, device: str) -> list[str]:
    """Write the command that begins a problem's session, or goes on with it."""
    kernel, arm = [f"{row.kernel}.cu", "--exchange", EXCHANGE], ARMS[row.arm]
    if (folder / SESSION).exists():
        return [*kernel, "--resume", SESSION, "--step"]
    return [
        *(*kernel, "--agent", "files", "--session", SESSION, "--device", device),
        *("--rounds", str(ROUNDS), "--trials", str(arm.trials), "--seed", str(row.repetition)),
        *(["--no-mutants"] if arm.profile else ["--no-mutants", "--no-profile"]),
        *([] if device == "host" else ["--peers"]),
        "--step",
    ]


def can_run(folder: Path, row: Row) -> bool:
    stopped = (folder / EXCHANGE / STOP).exists()  # by whoever wants what there is judged
    answered = "/round-" in row.request and (stopped or is_answered(folder, row.request))
    return row.state in ("ready", "cut", "tuned") or (row.state == "asks" and answered)


def expected_s(row: Row) -> float:
    """Expect of a problem's next run what its last one took."""
    if row.state == "tuned":
        return JUDGE_S
    taken = [one.seconds for one in row.steps if one.on_gpu]
    return taken[-1] if taken else STEP_S


def advance(folder: Path, row: Row, call: Call) -> None:
    """Take a problem to its next request, or to its end."""
    if row.state != "tuned":
        run_step(folder, row, call)
    if row.state == "tuned" and call.left_s > 0:
        row.judged = judge(folder, row, call.benchmark, call.environ, call.left_s)
        row.state = "judged" if row.judged else "tuned"
    write_row(folder, row)


def run_step(folder: Path, row: Row, call: Call) -> None:
    """Run `tune` once for a problem, and say in its row where that led."""
    stop = folder / EXCHANGE / STOP
    if row.gpu_s >= call.gpu_s - FINALS_S:
        stop.touch()
    limit_s = min(call.left_s, max(call.gpu_s - row.gpu_s, FINALS_S))
    began = time.monotonic()
    words = ["-m", "tuner", *words_for(folder, row, call.device), "--json", "--quiet"]
    code, out, err = run_program(words, folder, limit_s, call.environ)
    seconds = round(time.monotonic() - began, 1)
    commit = call.environ.get("TUNE_COMMIT", "")
    row.steps.append(Step(seconds, code, call.device != "host", best_us(folder), commit))
    row.request = newest_request(folder)
    result = json.loads(out) if out and code in (0, NO_ANSWER) else {}
    if result.get("workloads"):
        row.state, row.result = "tuned", result
    elif code == NO_ANSWER and not stop.exists():
        row.state = "asks"
    elif code in (None, INTERRUPTED) and row.gpu_s < call.gpu_s + FINALS_S:
        row.state = "cut"
    else:
        undecided = [*result.get("undecided", {}).values()]
        said = say_why(err) or "; ".join(undecided) or f"ended with code {code}, no result"
        row.state, row.reason = "lost", said[:MOST_REASON]


def run_program(
    words: Sequence[str], folder: Path, limit_s: float, environ: Mapping[str, str]
) -> tuple[int | None, str, str]:
    """Run Python in a folder; return its code, None where it was killed, and what it said."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=dict(environ),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for wait_s, then in ((limit_s, signal.SIGINT), (GRACE_S, signal.SIGKILL)):
        try:
            out, err = process.communicate(timeout=max(wait_s, 1.0))
        except subprocess.TimeoutExpired:
            process.send_signal(then)
        else:
            return process.returncode, out, err
    process.communicate()
    return None, "", ""


def say_why(err: str) -> str:
    """Find the line in which `tune` says why it ended."""
    said = [line for line in err.splitlines() if line.startswith("Error: ")]
    return said[-1].removeprefix("Error: ")[:MOST_REASON] if said else ""


def best_us(folder: Path) -> float | None:
    """Read the least time that a session has found for a call on its tuned workloads."""
    from tuner.model.errors import TunerError
    from tuner.session.session import Session
    from tuner.tuning import progress

    try:
        with Session.open(folder / SESSION, read_only=True) as session:
            found = (progress.best_us(session, one.name) for one in session.candidates())
            return min((us for one in found for us in one.values()), default=None)
    except TunerError:  # there is none yet
        return None


def run_all(state: Path, calls: Sequence[Call], names: Sequence[str]) -> None:
    """Run what can be, the shortest first, one problem at a time in each call."""
    known = [(f, row) for f, row in rows_in(state) if not names or row.key in names]
    able = sorted((one for one in known if can_run(*one)), key=lambda one: expected_s(one[1]))
    lock = threading.Lock()

    def work(call: Call) -> None:
        while True:
            with lock:
                if not able or expected_s(able[0][1]) > call.left_s:
                    return
                folder, row = able.pop(0)
            advance(folder, row, call)
            print(describe(folder, row), flush=True)

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(work, call) for call in calls]:
            done.result()
    print("\n".join(["", *(describe(folder, row) for folder, row in rows_in(state))]))


def prepare(state: Path, rows: Sequence[Row], calls: Sequence[Call], tolerance: str) -> None:
    """Take each problem as far as the CPU can: to its first kernel, checked, and its space.

    An arm begins with what the run over all problems has of these.
    """
    for row in rows:
        make_folder(state, row, calls[0].benchmark)
    left = [(folder, row) for folder, row in rows_in(state) if is_to_prepare(folder, row)]

    def work(place: int) -> None:
        for folder, row in left[place :: len(calls)]:
            if calls[place].left_s <= 0:
                return
            prepare_one(folder, row, calls[place].environ, tolerance)
            write_row(folder, row)
            print(describe(folder, row), flush=True)

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(work, place) for place in range(len(calls))]:
            done.result()


def is_to_prepare(folder: Path, row: Row) -> bool:
    asked = "/kernel-" in row.request and is_answered(folder, row.request)
    return row.state == "new" or (row.state == "asks" and asked)


def prepare_one(folder: Path, row: Row, environ: Mapping[str, str], tolerance: str) -> None:
    """Ask for a problem's kernel, or check it and draft; `tolerance` replaces the drafted one."""
    if row.state == "new" and not row.repetition:
        cut_problem(folder, row, environ)
    name = f"{row.kernel}.py"
    code, _, err = run_program([__file__, "--kernel", name], folder, PREPARE_S, environ)
    row.request = newest_request(folder)
    if code == NO_ANSWER:
        refused = len([*(folder / row.request).parent.glob("refused-*")])
        row.state = "asks" if refused < MOST_REFUSED else "lost"
        row.reason = f"{refused} first kernels were wrong" if row.state == "lost" else ""
        return
    if code == 0:
        words = ["-m", "tuner", "init", name]
        code, _, err = run_program(words, folder, PREPARE_S, environ)
    row.state, row.reason = ("lost", say_why(err) or f"ended with code {code}")
    if code == 0:
        tolerance = choose_tolerance(tolerance, row.part, (folder / name).read_text("utf-8"))
        row.state, row.reason, row.tolerance = "ready", "", tolerance
        for space in folder.glob("search_spaces/*.yaml") if tolerance else ():
            stated = f": {{{tolerance}}}"
            space.write_text(space.read_text("utf-8").replace(": measured", stated), "utf-8")


def choose_tolerance(stated: str, part: str, problem: str) -> str:
    """Write what replaces a drafted tolerance: a part leaves its problem's convolutions out."""
    if not stated:
        return ""
    rounded = ROUNDED if not part and CONVOLUTION in problem else ""
    return f"absolute: {stated}, relative: {stated}{rounded}"


def cut_problem(folder: Path, row: Row, environ: Mapping[str, str]) -> None:
    """Choose what of a problem is tuned."""
    words = ["-m", "tuner", "cut", f"{row.problem.name}.py", "--to", ".", "--gpu", GPU, "--json"]
    code, out, _ = run_program(words, folder, PREPARE_S, environ)
    if code == 0:
        row.part = choose_part(json.loads(out)["steps"])
    write_readme(folder, row)


def choose_part(steps: Sequence[Mapping[str, Any]]) -> str:
    """Choose the part that loses most where each operator is a launch; "" for the whole problem."""
    kept = [one["worth"] for one in steps if not one["problem"]]
    if all(one["flops"] / (FP32_TFLOPS * 1e6) <= one["floor_us"] for one in kept):
        return ""
    lost = Counter[str]()
    for one in (one for one in steps if one["problem"]):
        lost[one["problem"]] += one["worth"]["one_by_one_us"] - one["worth"]["floor_us"]
    return max(lost, key=lost.__getitem__)


def ask_for_kernel(problem: str) -> int:
    """Have a first kernel written and checked on the CPU, in this process and its folder."""
    from tuner.app.authors import authors
    from tuner.app.plan import RunOptions
    from tuner.model.errors import AwaitedError, TunerError

    asked = {"device": "host", "agent": "files", "exchange": EXCHANGE}
    try:
        authors().kernel_for(Path(problem), asked, RunOptions(step=True), None)
    except AwaitedError:
        return NO_ANSWER
    except TunerError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("state", type=Path, help="the folder that has one for each problem")
    parser.add_argument("names", nargs="*", help="only these; all by default")
    parser.add_argument("--benchmark", type=Path, required=True, help="a checkout of the benchmark")
    parser.add_argument("--prepare", action="store_true", help="make folders and first requests")
    parser.add_argument("--every", type=int, default=EVERY, help="which problems to prepare")
    parser.add_argument("--arms", action="store_true", help="prepare the eight of each arm instead")
    parser.add_argument(
        "--tolerance", default=TOLERANCE, help="for drafts' `measured`, without convolutions"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--gpus", type=int, default=1, help="how many problems run at a time")
    parser.add_argument("--time-s", type=float, default=540.0, help="what this call may take")
    parser.add_argument("--unpack", type=Path, metavar="FILE", help="begin with what was packed")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="a .tar.xz for another machine")
    given = parser.parse_intermixed_args()
    if given.unpack:
        unpack(given.unpack, given.state)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ = os.environ | {"PYTHONPATH": path, "TUNE_STORE": "none"}
    ends = time.monotonic() + given.time_s
    own = [
        {"CUDA_VISIBLE_DEVICES": str(gpu)} if given.gpus > 1 else {} for gpu in range(given.gpus)
    ]
    device = "host" if given.prepare else given.device
    calls = [Call(given.benchmark.resolve(), device, ends, environ | one) for one in own]
    if given.prepare:
        rows = rows_of(given.every, arms=given.arms)
        rows = [row for row in rows if not given.names or row.key in given.names]
        prepare(given.state, rows, calls, given.tolerance)
    else:
        run_all(given.state, calls, given.names)
    if given.pack:
        pack(given.state, given.pack)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--kernel"]:
        raise SystemExit(ask_for_kernel(sys.argv[2]))
    main()
