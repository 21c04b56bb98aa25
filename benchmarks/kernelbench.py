"""From a problem in the style of KernelBench's level 1 to a search space that is checked.

    python benchmarks/kernelbench.py

Each of the twenty problems in `benchmarks/kernelbench` (statements and plain kernels of our own) is
drafted with `tune init` from the problem and its kernel and not touched by hand. It counts where
`tune check` finds no mistake; besides, the drafted baseline is verified on the CPU against the
problem in float64, on the drafted edge cases.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.app.check import check
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.draft.drafting import draft_problem
from tuner.model.errors import TunerError
from tuner.model.trial import Status
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

PROBLEMS = Path(__file__).parent / "kernelbench"
ASKED = 18


def drafted(name: str, folder: Path) -> Path:
    """Draft one problem with its kernel below a folder; return the search space."""
    for suffix in (".py", ".cu"):
        shutil.copy(PROBLEMS / f"{name}{suffix}", folder)
    with NvrtcPool(1, cache=Cache(folder / "cache")) as pool:
        made = draft_problem(folder / f"{name}.py", folder, compiler=lambda: pool)
    made.require_filled("tune check")
    return made.space


def verified(space: Path) -> str:
    """Verify the baseline on every edge case, on the CPU; return the first reason against it."""
    definition = load_definition(space)
    spec = definition.spec
    device = HostDevice(spec, {}, run_timeout_s=60.0)
    try:
        compiler = HostCompiler(cache=Cache(space.parent / "host"))
        candidate = Candidate("baseline", definition.space, Template.load(spec.template, ()))
        evaluator = Evaluator(spec, candidate, {}, compiler, device)
        for workload in spec.edge_cases:
            outcome = device.verify(evaluator.baseline_program(workload))
            if outcome.status is not Status.CORRECT:
                return f"{workload}: {outcome.reason}"
        compiler.close()
    finally:
        device.close()
    return "" if spec.edge_cases else "no edge case to verify it on"


def row(name: str) -> dict[str, object]:
    began_s = time.perf_counter()
    found: dict[str, object] = {"problem": name, "checked": False, "verified": False}
    with tempfile.TemporaryDirectory() as folder:
        try:
            space = drafted(name, Path(folder))
            spec = check(space, sample=2).spec
            found |= {"checked": True, "axes": list(spec.axes)}
            reason = verified(space)
            found |= {"verified": not reason} | ({"reason": reason} if reason else {})
        except TunerError as error:
            found["reason"] = str(error).replace(folder, "")
    return {**found, "seconds": round(time.perf_counter() - began_s, 1)}


def main() -> None:
    rows = []
    for path in sorted(PROBLEMS.glob("*.py")):
        rows.append(row(path.stem))
        print(rows[-1], flush=True)
    checked = sum(bool(one["checked"]) for one in rows)
    result = {
        "benchmark": "kernelbench",
        "problems": len(rows),
        "checked": checked,
        "verified_on_the_cpu": sum(bool(one["verified"]) for one in rows),
        "asked": ASKED,
        "met": checked >= ASKED,
        "rows": rows,
        "environment": environment(),
    }
    write_result("kernelbench", result)


if __name__ == "__main__":
    main()
