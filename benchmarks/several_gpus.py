"""How much sooner a campaign of operators ends on several GPUs of one host than on one.

    python benchmarks/several_gpus.py --simulate [--members 1,2,4] [--workloads 4] [--out FILE]
    python benchmarks/several_gpus.py [--members 1,2,4] [--workloads N] [--out FILE]
                                                            (needs NVIDIA GPUs and CuPy)

Tunes one operator after the other, in one process, on 1, 2, ... members, and adds up the seconds of
the runs from the opening of their devices to the end of their finals. With `--simulate` a member is
a recording that sleeps before it answers, as long as an H200 took in a run of `fused_add_rmsnorm`
(benchmarks/results/h200/cold_tune.json): for a trial, for a baseline, and for the finals of a
workload, half of which is taken for the comparison and half for six finalists. Not simulated are
the start of a GPU's processes, compilers, and the tools that watch the winners; and its searches
are short, for a recording holds 20 to 32 configs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environment import ROOT, environment, provenance, require_clean, write_result
from record_all import operators

sys.path.insert(0, str(ROOT))

from tuner.device.base import ComparisonRounds, Device, Outcome, Program
from tuner.device.cuda.driver import gpu_name
from tuner.device.recorded.recording import RecordedDevice, recordings_of
from tuner.model.kernel import Workload

if TYPE_CHECKING:
    from tuner.space.plan import Plan

COLD_TUNE = ROOT / "benchmarks/results/h200/cold_tune.json"
# Of that run: what is verified again on each workload.
FINALISTS = 6
GPU_OUT = ROOT / "benchmarks/results/h200/several_gpus.json"


class SleepingDevice(RecordedDevice):
    """A recording that answers as late as a GPU would.

    A GPU compares the finalists of a workload once; a recording, which has not timed all of them in
    the same rounds, is asked again for each.
    """

    def __init__(self, plan: Plan, seconds: Mapping[str, float]) -> None:
        spec = plan.spec
        (path,) = recordings_of(spec.source)
        super().__init__(path, spec.name, plan.config.operators, None, spec.surroundings_of)
        self._seconds, self._compared = seconds, set[Workload]()

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        what = "trial" if not full_verification else "finalist" if program.config else "baseline"
        time.sleep(self._seconds[what])
        return super().run(program)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        if programs[0].workload not in self._compared:
            self._compared.add(programs[0].workload)
            time.sleep(self._seconds["compare"])
        return super().compare(programs, rounds=rounds)


def gpu_seconds() -> dict[str, float]:
    """Tell what an H200 took for a trial, a baseline, a finalist and a comparison."""
    content = json.loads(COLD_TUNE.read_text(encoding="utf-8"))
    run, count = content["runs"]["auto"], len(content["workloads"]) + len(content["held_out"])
    baseline_s, finals_s = (run["phases_s"][name] / count for name in ("baseline", "finals"))
    return {
        "trial": run["ms_per_trial"] / 1e3,
        "baseline": round(baseline_s, 3),
        "finalist": round(finals_s / 2 / FINALISTS, 3),
        "compare": round(finals_s / 2, 3),
    }


def opened(plan: Plan, members: int, simulate: bool) -> Device:
    """Open so many GPUs, or recordings that stand for them."""
    from tuner.device.group import group_of
    from tuner.device.select import open_device

    if simulate:
        seconds = gpu_seconds()
        return group_of({f"member {n}": SleepingDevice(plan, seconds) for n in range(members)})
    gpus, config = ",".join(map(str, range(members))), plan.config
    return open_device("cuda", plan.spec, config.operators, config.workloads, gpus=gpus)


class Quiet:
    def update(self, progress: object) -> None:
        """Nobody looks."""


def planned(name: str, workloads: int | None, simulate: bool) -> Plan:
    """Read an operator's plan for its first tuned workloads, of a recording those that it holds."""
    from dataclasses import replace

    from tuner.app.open import restrict_to_recording
    from tuner.app.plan import new_plan

    kernel = ROOT / f"kernels/sglang/{name}.cu"
    plan = new_plan(kernel, {"device": "recorded" if simulate else "cuda"})
    if simulate:
        plan = restrict_to_recording(plan, opened(plan, 1, simulate), print)
    chosen = plan.tuned[:workloads]
    return replace(plan, config=replace(plan.config, workloads=chosen))


def tuned(plan: Plan, members: int, simulate: bool, folder: Path) -> dict[str, Any]:
    """Tune one operator; give the seconds that it took, by phase, and what it found."""
    from tuner.app.instruments import compiler_for, watches_for
    from tuner.app.run import tune
    from tuner.app.session_plan import manifest_of
    from tuner.model.statistics import geometric_mean
    from tuner.report.data import from_session
    from tuner.report.sections.course import course_json
    from tuner.session.session import Session

    began_s = time.perf_counter()
    with ExitStack() as stack:
        device = opened(plan, members, simulate)
        stack.callback(device.close)
        compiler = compiler_for(plan.spec, device, None, stack)
        watches = watches_for(plan, device, compiler, stack)
        session = stack.enter_context(Session.create(folder, manifest_of(plan, ()), {}))
        results = tune(
            plan,
            session=session,
            device=device,
            compiler=compiler,
            listener=Quiet(),
            watches=watches,
        )
        seconds = time.perf_counter() - began_s
        return {
            "seconds": round(seconds, 2),
            "workloads": len(results),
            "trials": len(session.trials()),
            "speedup": round(geometric_mean(one.speedup for one in results), 4),
            **course_json(from_session(session)),
        }


def campaign(
    names: Sequence[str], members: int, workloads: int | None, simulate: bool
) -> dict[str, Any]:
    """Tune operators one after the other on so many members."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            plan = planned(name, workloads, simulate)
            found[name] = tuned(plan, members, simulate, Path(folder, name))
            print(f"{members} members, {name}: {found[name]['seconds']:.1f} s", flush=True)
    total_s = round(sum(one["seconds"] for one in found.values()), 1)
    return {"members": members, "seconds": total_s, "operators": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", default="1,2,4", help="numbers of GPUs, 1,2,4 by default")
    parser.add_argument("--operator", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--workloads", type=int, help="of each operator; all tuned ones by default")
    parser.add_argument("--simulate", action="store_true", help="recordings that stand for GPUs")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    require_clean()
    os.environ["TUNE_STORE"] = "none"
    names = asked.operator or [
        name for name in operators() if recordings_of(ROOT / f"kernels/sglang/{name}.cu")
    ]
    # What a process does once, such as importing, is no part of either run.
    campaign(names[:1], 1, 1, asked.simulate)
    runs = [
        campaign(names, int(n), asked.workloads, asked.simulate) for n in asked.members.split(",")
    ]
    for run in runs:
        run["faster"] = round(runs[0]["seconds"] / run["seconds"], 3)
        print(f"{run['members']} members: {run['seconds']:.1f} s, {run['faster']:.2f}x")
    content: dict[str, Any] = {"workloads_each": asked.workloads, "runs": runs}
    if asked.simulate:
        content |= {"simulated_seconds": gpu_seconds(), "environment": environment()}
    else:
        cores = len(os.sched_getaffinity(0))
        content["environment"] = provenance() | {"device": gpu_name(0), "cores": cores}
    write_result(asked.out or ("several_gpus" if asked.simulate else GPU_OUT), content)


if __name__ == "__main__":
    main()
