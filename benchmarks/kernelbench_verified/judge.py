"""Ask KernelBench-Verified's own harness what it says of a tuned problem, and collect the results.

    python benchmarks/kernelbench_verified/judge.py STATE [--to FILE]

Without a GPU: reads all rows, writes the result file that docs/results.md is made from, and copies
what agents wrote into `kernels/`. run.py calls `judge` after a problem's last round: the export is
written, and the harness runs it in a process of its own, with its hidden tests, its timer and its
measure of memory; then it times the problem itself with TF32, in another process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import RESULTS, provenance, write_result
from kernelbench_verified.problems import EXCHANGE, KERNELS, SESSION, Problem, Row, rows_in

OUT = RESULTS.parent / "h200/kernelbench_verified.json"
EXPORTED = "answer"
# As the benchmark's own script has them.
CORRECT_TRIALS, PERF_TRIALS, TIMEOUT_S = 5, 100, 180.0
LEFT = "PyTorch computes it"
# What the harness says of other numbers than the problem's, which it computes with TF32 in
# convolutions; such an answer is asked again without. Where the problem itself, on inputs that are
# `APART`, gives other numbers too, nothing passes but PyTorch's own bits.
MISMATCH, EXACT, APART, LATE = "Output mismatch", "exact", "a rounding apart", "late"
# PyTorch's word for TF32 in products: as its users have it, and what it computes beside a part.
HIGH = "high"
EAGER = "eager"
# The problem itself, as these peers of a session are compiled.
MODES = {EAGER: None, "torch.compile": "default", "torch.compile-max": "max-autotune"}
ANSWERS = ("kernel.cu", "template.cu.j2", "space.yaml", "plan.json")


def judge(
    folder: Path, row: Row, benchmark: Path, environ: Mapping[str, str], left_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Export a session and have the harness judge it; `why` is empty where it is correct.

    Gives nothing where `left_s` was too little to say anything.
    """
    words = ("export", SESSION, "--to", EXPORTED, "--format", "kernelbench")
    tune = [sys.executable, "-m", "tuner", *words]
    done = subprocess.run(
        tune, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"correct": False, "why": f"not exported: {done.stderr.strip()[:300]}"}
    (answer,) = (folder / EXPORTED).glob("cut.py" if row.part else "*.py")

    def ask(answer: Path | None, settings: Sequence[str]) -> dict[str, Any]:
        began = time.monotonic()
        limit_s = min(ends_s - began, TIMEOUT_S)
        said = run_harness(row.problem, benchmark, environ, limit_s, answer, settings)
        late = said.pop(LATE, False)
        if late and limit_s < TIMEOUT_S:
            raise TimeoutError
        if late and answer is not None:
            return {"correct": False, "why": f"it took the harness over {TIMEOUT_S:.0f} s"}
        return said

    ends_s = time.monotonic() + left_s
    try:
        found = ask(answer, [HIGH] if row.part else [])
        if MISMATCH in found["why"]:
            found["exact"] = ask(answer, [EXACT])
            found |= ask(None, [APART])
        # Of a part peers were timed alone: the whole is timed here.
        found["peers"] = ask(None, [*MODES] if row.part and found["correct"] else [EAGER])
    except TimeoutError:
        return {}
    return found


def run_harness(
    problem: Problem,
    benchmark: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    answer: Path | None,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Have the harness judge an answer, or time the problem, in a process that may crash.

    `LATE` is set where it took longer; of the problem's modes some may have been timed.
    """
    with TemporaryDirectory() as folder:
        out = Path(folder) / "judged.json"
        words = [str(benchmark), str(problem.level), str(problem.pid), str(answer or ""), str(out)]
        why, late = "", {}
        try:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).resolve()), "--ask", *words, *settings],
                env=dict(environ),
                capture_output=True,
                text=True,
                timeout=max(timeout_s, 1.0),
                check=False,
            )
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            late = {LATE: True}
        if out.exists():
            return dict(json.loads(out.read_text("utf-8"))) | late
    if answer is None or late:
        return late
    return {"correct": False, "why": f"the harness ended: {why[:300]}"}


def ask_harness(
    benchmark: Path, problem: Problem, answer: Path | None, out: Path, settings: Sequence[str]
) -> None:
    """Have the harness judge an answer, or time the problem itself with TF32, in this process.

    `settings` are the modes to time the problem in, or how PyTorch computes beside an answer. What
    is known is written to `out` at once.
    """
    import torch

    # The package's other module, which wants the clients of ten services, does nothing here.
    sys.modules["src.utils"] = ModuleType("src.utils")
    sys.path.insert(0, str(benchmark))
    from src import eval as harness  # type: ignore[import-not-found]

    device, text = torch.device("cuda:0"), problem.path(benchmark).read_text("utf-8")
    if APART in settings:
        _write(out, {APART: _compare_apart(torch, harness, text, device)})
        return
    if answer is None:
        timed: dict[str, Any] = {}
        for mode in settings:
            timed[mode] = _time_problem(torch, harness, text, device, MODES[mode])
            _write(out, timed)
        return
    # cuDNN takes TF32 unless it is told not to, and what is right may be further from that.
    torch.backends.cudnn.allow_tf32 = EXACT not in settings
    if HIGH in settings:
        torch.set_float32_matmul_precision(HIGH)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = harness.eval_kernel_against_ref(
            original_model_src=text,
            custom_model_src=answer.read_text("utf-8"),
            num_correct_trials=CORRECT_TRIALS,
            num_perf_trials=PERF_TRIALS,
            measure_performance=True,
            device=device,
            hidden_test_path=str(problem.hidden_tests(benchmark)),
        )
    said = {name: str(value)[:300] for name, value in (found.metadata if found else {}).items()}
    # What an export leaves to PyTorch is right, and no kernel of ours.
    if left := [str(one.message) for one in warned if LEFT in str(one.message)]:
        said["not ours"] = left[0]
    correct = bool(found and found.correctness) and not left
    wrong = "; ".join(f"{n}: {v}" for n, v in said.items() if n not in ("hardware", "device"))
    told = {
        "correct": correct,
        "why": "" if correct else wrong or "it was not judged",
        "ms": found.runtime if correct else None,
        "peak_bytes": found.peak_memory if correct else None,
    }
    _write(out, told)


def _write(out: Path, told: Mapping[str, Any]) -> None:
    """Write at once: the process may be ended while it writes."""
    written = out.with_suffix(".new")
    written.write_text(json.dumps(told), "utf-8")
    written.replace(out)


def _pose(harness: Any, text: str, device: Any) -> tuple[Any, list[Any]]:
    """Make a problem's model and draw its inputs, as the harness does for answers."""
    make, init, inputs = harness.load_original_model_and_inputs(text, {})
    harness.set_seed(42)
    model = make(*init()).to(device)
    return model, [one.to(device) if hasattr(one, "to") else one for one in inputs()]


def _compare_apart(torch: Any, harness: Any, text: str, device: Any) -> dict[str, Any]:
    """Compare a problem with itself on inputs that are one unit in the last place larger."""
    tolerance = harness.get_tolerance_for_precision(torch.float32)
    with torch.no_grad():
        model, given = _pose(harness, text, device)
        moved = [_enlarge(torch, one) for one in given]
        one, other = (model(*each).clone() for each in (given, moved))
    close = torch.allclose(one, other, atol=tolerance, rtol=tolerance)
    return {"correct": close, "max": (one - other).abs().max().item()}


def _enlarge(torch: Any, given: Any) -> Any:
    floats = torch.is_tensor(given) and given.is_floating_point()
    return torch.nextafter(given, given * 2) if floats else given


def _time_problem(
    torch: Any, harness: Any, text: str, device: Any, mode: str | None
) -> dict[str, Any]:
    """Time a problem as the harness times answers, as PyTorch's users have it."""
    torch.set_float32_matmul_precision(HIGH)
    with torch.no_grad():
        model, given = _pose(harness, text, device)
        model = model if mode is None else torch.compile(model, mode=mode)
        times = harness.time_execution_with_cuda_event(
            model, *given, num_trials=PERF_TRIALS, verbose=False, device=device
        )
        memory = harness.get_memory_stats(model, *given, device=device)
    return {
        "ms": harness.get_timing_stats(times, device=device)["mean"],
        "peak_bytes": memory["peak_bytes"],
    }


def collect(state: Path) -> list[dict[str, Any]]:
    """List what became of every problem, also of those that were lost or are under way."""
    return [_result_of(folder, row) for folder, row in rows_in(state)]


def _result_of(folder: Path, row: Row) -> dict[str, Any]:
    (tuned, *_) = row.result.get("workloads") or [{}]
    peers = tuned.get("peers", {})
    timed = {n: peers[n]["us"] for n in MODES if peers.get(n) and peers[n]["us"]}
    judged, whole = dict(row.judged), row.judged.get("peers", {})
    judged.pop("peers", None)
    return {
        "level": row.level,
        "pid": row.pid,
        "arm": row.arm,
        "repetition": row.repetition,
        "state": row.state,
        "reason": row.reason or row.judged.get("why", ""),
        "tuned_us": tuned.get("tuned_us"),
        "candidate": tuned.get("candidate"),
        "config": tuned.get("config"),
        "part": row.part,
        "peers_us": timed,
        "judged": judged,
        "whole": whole,
        "gpu_s": round(row.gpu_s + row.earlier_s, 1),
        "again": bool(row.earlier_s),
        "commits": sorted({one.commit for one in row.steps if one.commit}),
        "rounds": [
            {n: one[n] for n in ("end", "speedup", "search_gain", "change")}
            for one in row.result.get("rounds", [])
        ],
        **_said(folder),
    }


def _said(folder: Path) -> dict[str, Any]:
    """Count the words of requests and answers, and add up the tokens that agents state."""
    requests = [_words(one) for one in sorted((folder / EXCHANGE).glob("*/request.md"))]
    answers = [*_answers(folder)]
    places = ("*", "*/[a-z]")
    found = [one for place in places for one in folder.glob(f"{EXCHANGE}/{place}/agent.json")]
    stated = [json.loads(one.read_text("utf-8")) for one in found]
    tokens = [one["tokens"] for one in stated if one.get("tokens")]
    return {
        "request_words": requests,
        "answer_words": sum(map(_words, answers)),
        "answers": len({one.parent for one in answers}),
        "tokens": sum(tokens) if tokens else None,
        "agents": sorted({str(one["agent"]) for one in stated}),
    }


def _answers(folder: Path) -> Iterator[Path]:
    for place in ("*", "*/[a-z]", "*/refused-*"):
        for name in ANSWERS:
            yield from (folder / EXCHANGE).glob(f"{place}/{name}")


def _words(path: Path) -> int:
    return len(path.read_text("utf-8", errors="replace").split())


def keep_kernels(state: Path, kernels: Path = KERNELS) -> None:
    """Copy what agents wrote, which is ours; requests hold the benchmark's text and are not."""
    for folder, row in rows_in(state):
        for path in _answers(folder):
            if row.repetition or path.parent.name.startswith("refused-"):
                continue
            place = path.parent.relative_to(folder / EXCHANGE)
            place = Path() if place.name.startswith("kernel-") else place
            target = kernels / row.problem.name / place / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("state", type=Path)
    parser.add_argument("--to", type=Path, default=OUT)
    parser.add_argument("--gpu", default="NVIDIA H200")
    given = parser.parse_args()
    rows = collect(given.state)
    keep_kernels(given.state)
    content = {"benchmark": "kernelbench_verified", "rows": rows, "environment": provenance()}
    content["environment"]["device"] = given.gpu
    write_result(given.to, content)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        place, level, pid, text, to, *settings = sys.argv[2:]
        asked = Problem(int(level), int(pid))
        ask_harness(Path(place), asked, Path(text) if text else None, Path(to), settings)
    else:
        main()
