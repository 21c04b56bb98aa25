"""Does the search earn its place? Template and search against the template's own defaults.

    python benchmarks/search_worth.py SESSION... [--device D] [--rounds N] [--out FILE] [--raw FILE]

For every tuned workload of finished sessions, three kernels are timed in the same rounds:

- the baseline;
- *rewriting alone*: the best default config among the session's candidates, by the times that the
  search took of the defaults;
- *the search*: the winner that the session reports.

Both arms have the same conversation, the same candidates and the same number of measurements. One
that rewrites alone has a single config of each candidate to spend its measurements on: they make
its times more exact, not shorter, and here both arms are timed equally often. Where the arms are
unequal it is in favour of rewriting alone: it takes the best of all its candidates on every
workload, and what an agent read before later rounds was learned by searching. A session without an
agent has one candidate, and its default is what the template's author chose.

A default counts only where it is right with every kind of input. Where none is, the baseline
stands in. The intervals are bootstraps over rounds: they hold for these workloads and say nothing
of others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from environment import write_result

sys.path.append(str(Path(__file__).resolve().parents[1]))

from tuner.app.environment import environment_of
from tuner.app.instruments import compiler_for
from tuner.app.session_plan import verified_plan
from tuner.device.select import open_device
from tuner.extensions.agents.history import restore
from tuner.model.statistics import paired_interval
from tuner.model.trial import RESOLUTION, Status, Variant
from tuner.session.session import Session
from tuner.tuning.evaluator import Candidates

ROOT = Path(__file__).resolve().parents[1]
GROUP = "sglang"
ROUNDS = 60
FEWEST_ROUNDS = 40
RESAMPLES = 10_000
OUT = ROOT / "benchmarks/results/h200/search_worth.json"
BASELINE, DEFAULT, SEARCH = 0, 1, 2
# What is divided by what: the time of the first over that of the second.
RATIOS = {
    "default_over_baseline": (BASELINE, DEFAULT),
    "search_over_baseline": (BASELINE, SEARCH),
    "search_over_default": (DEFAULT, SEARCH),
}


def defaults(session, candidates, workload):
    """List the candidates' defaults, the fastest in the search first; untimed ones are left out."""
    timed = []
    for plan in candidates.plans:
        config = plan.space.default
        trial = config and session.trial(plan.candidate, workload, config)
        if trial and trial.time_us is not None:
            timed.append((trial.time_us, trial.variant))
    return [variant for _, variant in sorted(timed, key=lambda one: one[0])]


def first_right(device, candidates, workload, variants, winner):
    """Choose the first that passes the whole verification; the winner has passed it."""
    for one in variants:
        if one == winner:
            return one
        program = candidates.evaluator(one.candidate).program(workload, one.config)
        outcome = device.verify(program)
        if outcome.status is Status.CORRECT:
            return one
        print(f"  {workload}: the default of {one.candidate} is {outcome.reason}", file=sys.stderr)
    return None


def timed(device, candidates, initial, workload, arms, rounds):
    """Time baseline and both arms: one column each, in this order; equal arms share a column."""
    programs = {None: candidates.evaluator(initial).baseline_program(workload)}
    for one in arms:
        if one not in programs:
            evaluator = candidates.evaluator(one.candidate)
            programs[one] = evaluator.program(workload, one.config)
    compared = device.compare(list(programs.values()), rounds=rounds)
    assert compared.paired
    assert not any(compared.faults), compared.faults
    order = list(programs)
    columns = [[row[order.index(one)] for row in compared.times_us] for one in (None, *arms)]
    isolated = compared.isolated_us or (None,) * len(order)
    return columns, [isolated[order.index(one)] for one in (None, *arms)]


def said(interval):
    """Put an interval into a word."""
    low, high = interval
    return "faster" if low > 1 + RESOLUTION else "slower" if high < 1 - RESOLUTION else "same"


def row_of(columns, seed):
    """Compute the times and ratios of one workload from its three columns of rounds."""
    row = dict(zip(("baseline_us", "default_us", "search_us"), map(median, columns), strict=True))
    for name, (over, under) in RATIOS.items():
        ratio, interval = paired_interval(columns[over], columns[under], seed, RESAMPLES)
        row[name] = {"ratio": ratio, "interval": interval, "said": said(interval)}
    return row


def mean_of(rounds, over, under, seed):
    """Compute the geometric mean of a ratio over workloads, and its bootstrap interval.

    `rounds` holds the three columns of every workload; rounds are drawn within each workload.
    """
    rng = np.random.default_rng(seed)
    point, drawn = 0.0, np.zeros(RESAMPLES)
    for columns in rounds:
        ratios = np.asarray(columns[over]) / np.asarray(columns[under])
        picks = rng.integers(0, ratios.size, (RESAMPLES, ratios.size))
        point += log(float(np.median(ratios)))
        drawn += np.log(np.median(ratios[picks], axis=1))
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)) / len(rounds))
    return {"ratio": exp(point / len(rounds)), "interval": (float(low), float(high))}


def means_of(rounds, seed):
    """Compute the geometric means of all ratios over workloads."""
    return {name: mean_of(rounds, *columns, seed) for name, columns in RATIOS.items()}


def plan_of(session, folder):
    """Rebuild a session's plan in `folder` from the template and the space that it began with.

    Those beside the kernel may have been replaced since by what the session found; the kernel and
    its reference must still be the same.
    """
    manifest, first = session.manifest, session.candidates()[0]
    space = folder / "search_spaces" / GROUP / f"{manifest.kernel}.yaml"
    template = folder / "templates" / GROUP / f"{manifest.kernel}.cu.j2"
    for path, text in ((space, first.space_text), (template, first.template_text)):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    (folder / "kernels").symlink_to(ROOT / "kernels")
    return verified_plan(session.directory, manifest, space)


def measure(folder, device_name, rounds):
    """Measure one session: what is reported of its kernel, the rounds, and the environment."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        copy = shutil.copytree(folder, scratch / "session")  # candidates are written there
        session = stack.enter_context(Session.open(copy, read_only=True))
        assert session.state == "complete", f"{folder} is not finished"
        manifest = session.manifest
        plan = plan_of(session, scratch)
        device = open_device(device_name, plan.spec, plan.config.operators)
        stack.callback(device.close)
        compiler = compiler_for(plan.spec, device, None, stack)
        candidates = Candidates(plan, compiler, device)
        restore(plan, session, candidates)
        results = {result.workload: result for result in session.results()}
        rows, columns_of = [], {}
        for workload in plan.tuned:
            if workload not in results:
                continue
            winner = results[workload].variant
            known = defaults(session, candidates, workload)
            default = first_right(device, candidates, workload, known, winner)
            columns, isolated = timed(
                device, candidates, plan.candidate, workload, (default, winner), rounds
            )
            row = {
                "workload": workload.key,
                **row_of(columns, plan.config.seed),
                "isolated_us": isolated,
                "default": described(default),
                "search": described(winner),
                "measurements": len(session.trials(workload=workload)),
            }
            print(f"{manifest.kernel} {json.dumps(row)}", file=sys.stderr, flush=True)
            rows.append(row)
            columns_of[workload.key] = columns
        found = {
            "kernel": manifest.kernel,
            "agent": manifest.agent,
            "candidates": len(candidates.plans),
            "session": manifest.created,
            "workloads": rows,
            **means_of(list(columns_of.values()), plan.config.seed),
        }
        environment = dict(environment_of(device, compiler, ROOT))
    return found, columns_of, environment


def described(variant: Variant | None):
    """Write a variant down; None is the baseline."""
    return variant and {"candidate": variant.candidate, "config": dict(variant.config)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", nargs="+", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--raw", type=Path, help="write all rounds")
    asked = parser.parse_args()
    if asked.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds: at least {FEWEST_ROUNDS}")
    kernels, raw, environment = [], {}, {}
    for folder in asked.sessions:
        found, rounds, environment = measure(folder, asked.device, asked.rounds)
        kernels.append(found)
        raw[found["kernel"]] = rounds
    every = [columns for rounds in raw.values() for columns in rounds.values()]
    result = {
        "benchmark": "search_worth",
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": asked.rounds,
        "kernels": kernels,
        **means_of(every, 0),
        "environment": environment,
    }
    if asked.raw:
        asked.raw.write_text(json.dumps(raw))
    write_result(asked.out, result)
    for one in (*kernels, {"kernel": "all", **result}):
        figures = (f"{name} {one[name]['ratio']:.3f}" for name in RATIOS)
        low, high = one["search_over_default"]["interval"]
        print(f"{one['kernel']}: {', '.join(figures)} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
