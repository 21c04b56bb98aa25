"""From a problem in the style of KernelBench's level 1 to a search space that is checked.

    python benchmarks/kernelbench.py [--keep DIR]
    python benchmarks/kernelbench.py --device cuda --drafts DIR --out FILE

Each of the twenty problems in `benchmarks/kernelbench` (statements and plain kernels of our own) is
drafted with `tune init` from the problem and its kernel and not touched by hand. It counts where
`tune check` finds no mistake; besides, the drafted baseline is verified on the CPU against the
problem in float64, on the drafted edge cases. On a GPU what `--keep` left is verified at the
problem's own size, too, and so are the kernels of `benchmarks/unseen`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import environment, write_result

from tuner.app.check import check
from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.device.select import open_device
from tuner.extensions.cpu.compiler import HostCompiler
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.draft.drafting import draft_problem
from tuner.model.errors import TunerError
from tuner.model.trial import Status
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator

PROBLEMS = Path(__file__).parent / "kernelbench"
UNSEEN = Path(__file__).parent / "unseen"
ASKED = 18


def drafted(name: str, folder: Path) -> Path:
    """Draft one problem with its kernel below a folder; return the search space."""
    for suffix in (".py", ".cu"):
        shutil.copy(PROBLEMS / f"{name}{suffix}", folder)
    with NvrtcPool(1, cache=Cache(folder / "cache")) as pool:
        made = draft_problem(folder / f"{name}.py", folder, compiler=lambda: pool)
    made.require_filled("tune check")
    return made.space


def verified(space: Path, device_name: str, cache: Cache) -> str:
    """Verify the baseline on a device; return the first reason against it."""
    definition = load_definition(space)
    spec = definition.spec
    on_gpu = device_name != "host"
    workloads = (*spec.tuned, *spec.edge_cases) if on_gpu else spec.edge_cases
    device = open_device("cuda", spec, {}) if on_gpu else HostDevice(spec, {}, run_timeout_s=60.0)
    compiler = NvrtcPool(1, cache=cache) if on_gpu else HostCompiler(cache=cache)
    try:
        candidate = Candidate("baseline", definition.space, Template.load(spec.template, ()))
        evaluator = Evaluator(spec, candidate, {}, compiler, device)
        for workload in workloads:
            outcome = device.verify(evaluator.baseline_program(workload))
            if outcome.status is not Status.CORRECT:
                return f"{workload}: {outcome.reason}"
    finally:
        compiler.close()
        device.close()
    return "" if workloads else "no edge case to verify it on"


def row(name: str, folder: Path) -> dict[str, object]:
    """Draft a problem, check what comes of it and verify its kernel on the CPU."""
    began_s = time.perf_counter()
    found: dict[str, object] = {"problem": name, "checked": False, "verified": False}
    try:
        space = drafted(name, folder)
        found |= {"axes": list(check(space, sample=2).spec.axes), "checked": True}
        reason = verified(space, "host", Cache(folder / "cache"))
        found |= {"verified": not reason} | ({"reason": reason} if reason else {})
    except TunerError as error:
        found["reason"] = str(error).replace(str(folder), "")
    return {**found, "seconds": round(time.perf_counter() - began_s, 1)}


def gpu_row(space: Path) -> dict[str, object]:
    """Verify the kernel of a search space that is there already."""
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        reason = verified(space, "cuda", Cache(Path(folder)))
    found = {"kernel": space.stem, "verified": not reason} | ({"reason": reason} if reason else {})
    found["workloads"] = [str(workload) for workload in load_definition(space).spec.tuned]
    return {**found, "seconds": round(time.perf_counter() - began_s, 1)}


def gpu_rows(drafts: Path) -> Iterator[dict[str, object]]:
    """Verify the kernels of all drafts and of what nobody drafted."""
    spaces = [*drafts.glob("*/search_spaces/*.yaml"), *UNSEEN.glob("*/*.yaml")]
    for space in sorted(spaces):
        if not space.stem.endswith(".mutants"):
            yield gpu_row(space)


def rows_of(asked: argparse.Namespace) -> Iterator[dict[str, object]]:
    if asked.device == "cuda":
        yield from gpu_rows(asked.drafts)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for path in sorted(PROBLEMS.glob("*.py")):
            folder = (asked.keep or Path(temporary)) / path.stem
            folder.mkdir(parents=True)
            yield row(path.stem, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the drafts there")
    parser.add_argument("--device", choices=["host", "cuda"], default="host")
    parser.add_argument("--drafts", type=Path, metavar="DIR", help="what --keep left, for a GPU")
    parser.add_argument("--out", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if (asked.device == "cuda") != (asked.drafts is not None):
        parser.error("--device cuda and --drafts DIR go together")
    rows: list[dict[str, object]] = []
    for found in rows_of(asked):
        rows.append(found)
        print(found, flush=True)
        write_result(asked.out or "kernelbench", result_of(rows, on_gpu=asked.device == "cuda"))


def result_of(rows: list[dict[str, object]], *, on_gpu: bool) -> dict[str, object]:
    checked = sum(bool(one.get("checked")) for one in rows)
    return {
        "benchmark": "kernelbench",
        "problems": len(rows),
        **({} if on_gpu else {"checked": checked, "asked": ASKED, "met": checked >= ASKED}),
        "verified": sum(bool(one["verified"]) for one in rows),
        "rows": rows,
        "environment": environment(),
    }


if __name__ == "__main__":
    main()
