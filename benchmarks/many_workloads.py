"""What proposals cost the process that makes them, by how many workloads are searched together.

    python benchmarks/many_workloads.py [--workloads 4,16,57] [--trials 28] [--out FILE]

Searches the space of gemm_small_m on a device and with a compiler that answer at once, each search
in a process of its own. What is left is rendering, constraints, models and the session: the
processor's milliseconds for each trial. On GPUs a trial of this space takes 30 to 50 ms, and every
GPU of a host waits for the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environment import ROOT, environment, require_clean, write_result

if TYPE_CHECKING:
    from tuner.compiler.base import CompileRequest, CompileResult
    from tuner.device.base import Program

sys.path.append(str(ROOT / "tests/support"))
KERNEL = ROOT / "kernels/sglang/gemm_small_m.cu"


class AtOnce:
    """A compiler that makes nothing, and says a plausible number of registers."""

    version = "none"

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        from tuner.compiler.base import CompileResult
        from tuner.model.trial import Resources

        registers = 32 + zlib.crc32(request.source.encode()) % 90
        used = Resources(registers, 0, 0, 1024)
        found: Future[CompileResult] = Future()
        names = {name: name for name in request.kernels}
        found.set_result(CompileResult(b"x", names, dict.fromkeys(names, used)))
        return found

    def close(self) -> None:
        """Nothing is open."""


class Untold:
    """A progress tracker that nobody looks at."""

    def deadline_s(self, *_: object) -> None:
        """No search has one."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def answered(program: Program) -> float:
    """Time a program by its config alone."""
    return 10.0 + zlib.crc32(repr(program.config).encode()) % 1000 / 100


@dataclass(frozen=True)
class Cost:
    """Of one search: its workloads and trials, and the processor's time for each trial."""

    workloads: int
    trials: int
    ms_per_trial: float


def search(count: int, trials: int) -> Cost:
    """Search the first workloads of the space."""
    from simulated_device import SimulatedDevice

    from tuner.app.plan import new_plan
    from tuner.app.session_plan import manifest_of
    from tuner.session.session import Session
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.run import Run, SkippedWorkloads, pools_of
    from tuner.tuning.search import Search

    plan = new_plan(KERNEL, {"device": "cuda", "trials": trials})
    chosen = plan.config.workloads[:count]
    workloads = tuple(replace(one, held_out=False) for one in chosen)
    plan = replace(plan, config=replace(plan.config, workloads=workloads))
    candidates = Candidates(plan, AtOnce(), SimulatedDevice(answered))
    with (
        tempfile.TemporaryDirectory() as folder,
        Session.create(Path(folder, "session"), manifest_of(plan, ()), {}) as session,
    ):
        session.add_candidate(plan.candidate, plan.template.text, plan.spec.path.read_text("utf-8"))
        pools = pools_of(plan, candidates.evaluator(plan.candidate))
        of = pools, Untold(), Untold(), SkippedWorkloads(session)
        run = Run(plan, session, candidates, *of)  # type: ignore[arg-type]
        searching = Search(run, plan.tuned, {})
        began_s = time.process_time()
        searching.run(1)
        spent_s = time.process_time() - began_s
        tried = len(session.trials())
    return Cost(len(workloads), tried, round(1e3 * spent_s / tried, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", default="4,16,57", help="of the space, in its order")
    parser.add_argument("--trials", type=int, default=28, help="of each workload")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(vars(search(asked.one, asked.trials))))
        return
    require_clean()
    rows = []
    for count in asked.workloads.split(","):
        command = [sys.executable, __file__, "--one", count, "--trials", str(asked.trials)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    out = asked.out or "many_workloads"
    write_result(out, {"environment": environment(), "trials": asked.trials, "rows": rows})


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
