"""Keep what a recording's session measured as one small JSON file.

    python benchmarks/summarize_session.py SESSION --out benchmarks/results/h200/NAME.json
                                                   [--keep EARLIER.json]
                                                   [--package NAME==VERSION ...]

Per workload: the surroundings, and of the baseline, every finalist and every peer the cost
in the rounds that did not choose the winner, its 95 % interval, and how many times the winner's
that is in the same rounds, with a paired interval; the times alone; which of them production calls,
which the dispatch takes, and what became of peers that were not compared. Besides, the checks that
ran, with their failures, hashes of the files that decide what was measured, and the environment
with the code's commit. What a session was not asked
for, or was interrupted before it, can be kept from an earlier result, with the commit of that one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from environment import versions, write_result

if TYPE_CHECKING:
    from tuner.dispatch.table import DispatchTable
    from tuner.model.kernel import KernelSpec, Workload
    from tuner.model.trial import Comparison, Result
    from tuner.session.session import Session

RESAMPLES = 2000
# Letters of a hash, as of a commit.
SHORT = 12
DIGITS = 4
# What peers are imported from.
PACKAGES = (
    "torch",
    "triton",
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "sgl-deep-gemm",
    "flashinfer-python",
    "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
    "nvidia-cudnn-frontend",
    "vllm",
)


def _packages(gpu: str) -> Mapping[str, str]:
    """Tell what peers were imported from, which only the machine knows that has this GPU."""
    from tuner.device.cuda.driver import gpu_name
    from tuner.device.select import gpu_count

    return versions(PACKAGES) if gpu_count() and gpu_name(0) == gpu else {}


def summary(folder: Path) -> dict[str, Any]:
    """Collect what a result file holds of a session."""
    from tuner.dispatch.table import SessionDispatch, SetSelection
    from tuner.session.session import Session

    with Session.open(folder, read_only=True) as session:
        if session.state != "complete" and not session.results():
            raise SystemExit(f"{folder}: the session is {session.state}: nothing is decided yet")
        manifest, table = session.manifest, SessionDispatch(session, SetSelection()).table
        # Of a workload that was compared twice the later comparison counts.
        compared = {
            result.workload: (one, result)
            for one in session.comparisons()
            for result in session.results()
            if result.workload == one.workload and result.variant in one.finalists
        }
        return {
            "kernel": manifest.kernel,
            **_choice(_spec(session), manifest.config.operators),
            "created": manifest.created,
            "files": {
                "space": manifest.space_sha[:SHORT],
                "template": manifest.template_sha[:SHORT],
                "headers": manifest.headers_sha[:SHORT],
            },
            "seconds": round(session.seconds, 1),
            "seed": manifest.config.seed,
            "surroundings": _surroundings(_spec(session)),
            # Of an interrupted session, what is not decided.
            "undecided": sorted(
                one.key
                for one in {*manifest.config.workloads} - {r.workload for r in session.results()}
            ),
            "trials": _trials(session),
            "checks": _checks(session),
            "peer_packages": _packages(session.environment.get("device", "")),
            # As it was when the session began, not as it is now.
            "environment": {"commit": "", "date": manifest.created[:10], **session.environment},
            "workloads": [
                _workload(session, table, comparison, result)
                for comparison, result in compared.values()
            ],
        }


def _workload(
    session: Session, table: DispatchTable, comparison: Comparison, result: Result
) -> dict[str, Any]:
    from tuner.device.reference import load_production

    workload = comparison.workload
    failed = {
        one.name: {"status": one.status.value, "reason": one.reason}
        for one in session.peers(workload)
        if one.reason or one.name not in comparison.peers
    }
    operators = session.manifest.config.operators
    # It may not have been compared: not installed, or wrong.
    called = load_production(_spec(session).reference, workload.values, operators)
    production = comparison.production or called or "baseline"
    return {
        "workload": workload.key,
        "axes": workload.values,
        "surroundings": comparison.surroundings,
        "paired": comparison.paired,
        "rounds": len(comparison.rounds),
        "winner": comparison.finalists.index(result.variant) + 1,
        "production": production,
        "dispatch": _served(table, workload) or f"production's: {production}",
        "programs": _programs(comparison, result, session.manifest.config.seed),
        "peers": failed,
    }


def _programs(comparison: Comparison, result: Result, seed: int) -> list[dict[str, Any]]:
    """Describe every column; column 0 is the baseline, those of peers come last."""
    from tuner.dispatch.evidence import split
    from tuner.model.statistics import cost_us, paired_interval, unpaired_interval

    _, reporting = split(comparison)
    columns = list(zip(*reporting, strict=True))
    winner = columns[comparison.finalists.index(result.variant) + 1]
    interval = paired_interval if comparison.paired else unpaired_interval
    described: list[dict[str, Any]] = [{"kind": "baseline", "name": "baseline"}]
    described += [
        {"kind": "config", "name": str(one), "config": dict(one.config)}
        for one in comparison.finalists
    ]
    described += [{"kind": "peer", "name": name} for name in comparison.peers]
    for k, (one, column) in enumerate(zip(described, columns, strict=True)):
        ratio, bounds = interval(column, winner, seed)
        one["us"] = round(cost_us(column), DIGITS)
        one["interval_us"] = cost_interval(column)
        one["over_winner"] = round(ratio, DIGITS)
        one["over_winner_interval"] = [round(bound, DIGITS) for bound in bounds]
        one["alone_us"] = _at(comparison.alone_us, k)
        one["isolated_us"] = _at(comparison.isolated_us, k)
    return described


def _at(times_us: Sequence[float | None], column: int) -> float | None:
    known = times_us[column] if times_us else None
    return None if known is None else round(known, DIGITS)


def cost_interval(times_us: Sequence[float]) -> list[float]:
    """Give the 95 % interval of a cost, by bootstrap."""
    from tuner.model.statistics import cost_us

    drawn = np.random.default_rng(0).choice(np.asarray(times_us), (RESAMPLES, len(times_us)))
    low, high = np.percentile([cost_us(one) for one in drawn], [2.5, 97.5])
    return [round(float(low), DIGITS), round(float(high), DIGITS)]


def _served(table: DispatchTable, workload: Workload) -> str:
    """Name the variant that the dispatch takes; "" for what production calls."""
    for entry in table.entries:
        if entry.workload == workload and entry.kernel is not None:
            return str(entry.kernel.variant)
    for one in table.held_out:
        if one.workload == workload and one.kernel is not None and not one.refuted:
            return str(one.kernel.variant)
    return ""


def _choice(spec: KernelSpec, operators: Mapping[str, str]) -> dict[str, Any]:
    """Name the choices of the operator that are not its first ones."""
    from tuner.space.choices import chosen_operators

    first = chosen_operators(spec, {})
    other = {name: value for name, value in operators.items() if value != first[name]}
    return {"operators": other} if other else {}


def _spec(session: Session) -> KernelSpec:
    from tuner.space.load import load_definition

    return load_definition(session.manifest.config.space).spec


def _surroundings(spec: KernelSpec) -> dict[str, str]:
    """Describe all that the search space declares, by name."""
    return {one.name: str(one).removeprefix(f"{one.name}: ") for one in spec.surroundings}


def _trials(session: Session) -> dict[str, int]:
    return {status.value: count for status, count in session.status_counts().items() if count}


def _checks(session: Session) -> dict[str, Any]:
    """Count the checks by their kind, and list what failed."""
    rows = list(_verdicts(session))
    counted = Counter((kind, verdict) for kind, verdict, _ in rows)
    kinds = dict.fromkeys(kind for kind, _, _ in rows)
    finals = [trial.correctness for trial in session.trials(stage="finals") if trial.correctness]
    return {
        "kinds": {
            kind: {name: counted[kind, name] for name in ("passed", "failed", "not_run")}
            for kind in kinds
        },
        "input_kinds": sorted({name for one in finals for name in one.input_kinds}),
        "failures": [what for _, verdict, what in rows if verdict == "failed"],
    }


def _verdicts(session: Session) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Give the kind and the verdict of every check, and what was checked."""
    for trial in session.trials(stage="finals"):
        passed = trial.status.value == "correct"
        what = {"workload": trial.workload.key, "config": str(trial.variant)}
        said = {"kind": "finals", **what, "reason": f"{trial.status.value}: {trial.reason}"}
        yield "finals", "passed" if passed else "failed", said
    for one in session.checks():
        verdict = "not_run" if one.passed is None else "passed" if one.passed else "failed"
        what = {"workload": one.workload.key, "config": str(one.variant)}
        yield one.kind, verdict, {"kind": one.kind, **what, "reason": one.reason}


def with_kept(content: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Add an earlier result's workloads where this one has not decided them, or was not asked."""
    known = {"commit": earlier["environment"]["commit"], "files": earlier["files"]}
    decided = {one["workload"] for one in content["workloads"]}
    kept = [{**known, **one} for one in earlier["workloads"] if one["workload"] not in decided]
    return {
        **content,
        "undecided": sorted({*content["undecided"]} - {one["workload"] for one in kept}),
        "workloads": [*content["workloads"], *kept],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("session", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="a result that has what the session lacks")
    what = "what peers were imported from, where this is another machine"
    parser.add_argument("--package", action="append", default=[], help=what)
    asked = parser.parse_args()
    content = summary(asked.session)
    named = dict(package.split("==") for package in asked.package)
    content["peer_packages"] = content["peer_packages"] or named
    if asked.keep is not None:
        content = with_kept(content, json.loads(asked.keep.read_text(encoding="utf-8")))
    write_result(asked.out, content)


if __name__ == "__main__":
    main()
