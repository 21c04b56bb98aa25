"""How soon a search finds the best of spaces that were measured whole on an H200.

    python benchmarks/recorded_search.py [--searcher NAME] [--seeds N] [--trials N] [--out FILE]

`tune`'s own search (tuner/tuning/search.py) on recorded times, every config compiled beforehand:

- alone: each workload by itself, nothing known of the others, with what the compiler says of each
  config and without; with the searcher's early end and without it; a run is cut short when it has
  found 99 % of the optimum;
- together: all workloads of a kernel in one search, to its own end.

A trial is a config that was asked for; what a limit refuses before that is none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from environment import environment, write_result  # noqa: E402
from recorded_spaces import WHOLE, load  # noqa: E402

TARGET = 0.99
WITHIN = 40
ALL = ("ask", "tell", "shortlist", "foresee", "share", "expected_gain")
# What of a searcher is used: without `expected_gain` it goes on to the end of the budget.
WAYS = {
    "with_features": ALL,
    "without_features": ("ask", "tell", "share", "expected_gain"),
    "with_features_to_the_end": ("ask", "tell", "shortlist", "foresee", "share"),
    "without_features_to_the_end": ("ask", "tell", "share"),
}


class ReachedError(Exception):
    """The search has found what it was to find."""


class Replay:
    """An evaluator that answers at once, and keeps what was asked for, by workload."""

    # What a search asks of a device: one trial at a time.
    device = SimpleNamespace(info=SimpleNamespace(parallel=1), capabilities=frozenset())

    def __init__(self, spaces, *, stops):
        self._spaces = {space.workload: space for space in spaces}
        self._stops = stops
        self.best_us = defaultdict(list)

    def answered(self, workload):
        """Answer for these configs only."""
        return frozenset(self._spaces[workload].pool)

    def start(self, workload, config):
        """Begin a trial."""
        from tuner.tuning.evaluator import Pending

        return Pending(workload, config, started_s=0.0)

    def foresee(self, pending):
        """Tell what the compiler says of a config, or why it can't run."""
        space = self._spaces[pending.workload]
        return space.foresee(pending.config) or space.trial(pending.config)

    def finish(self, pending, *, incumbent_us=None):
        """Look the trial up; end the search where it has found enough."""
        trial = self._spaces[pending.workload].trial(pending.config)
        best = self.best_us[pending.workload]
        known = [us for us in (trial.time_us, *best[-1:]) if us is not None]
        best.append(min(known, default=None))
        if self._stops and self.needed(pending.workload):
            raise ReachedError
        return trial

    def needed(self, workload):
        """Count the trials until a workload's target was reached, None where it wasn't."""
        enough_us = self._spaces[workload].best_us / TARGET
        reached = (
            number
            for number, us in enumerate(self.best_us[workload], 1)
            if us is not None and us <= enough_us
        )
        return next(reached, None)

    def share(self, workload):
        """Say what share of the optimum was reached."""
        return self._spaces[workload].best_us / self.best_us[workload][-1]


class Notebook:
    """What the search asks of a session, kept in memory."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self._trials = {}

    def trial(self, candidate, workload, config):
        """Find a trial."""
        return self._trials.get((workload, config))

    def record(self, trial):
        """Keep a trial."""
        self._trials[trial.workload, trial.config] = trial

    def trials(self, candidate, workload=None):
        """List the trials of a workload, or of all."""
        return [t for (of, _), t in self._trials.items() if workload in (None, of)]

    def events(self, *_):
        """Nothing was noted before."""
        return []

    def record_event(self, *_):
        """Forget a note."""

    def fastest(self, **_):
        """Nothing was searched before."""
        return []


class Spectator:
    """What the search tells of its standing, ignored; there is no deadline."""

    def announce(self, phase):
        """Ignore that it begins."""

    def expect(self, trials, *, searches_left):
        """Ignore what is planned."""

    def count(self, trial, *, measured):
        """Ignore a trial."""

    def expect_more(self, workload, trials):
        """Ignore a change of the budget."""

    def deadline_s(self, workload, searched):
        """Never end for want of time."""

    def add_device_time(self, device_s, compiler_s):
        """Ignore where the time went."""


class Partial:
    """A searcher with some of its methods, as if it could do no more."""

    def __init__(self, searcher, names):
        for name in names:
            if hasattr(searcher, name):
                setattr(self, name, getattr(searcher, name))


def search_in_memory(plan, pools, evaluator):
    """Run the search of a plan with an evaluator; return what a session would have kept of it."""
    from tuner.tuning.evaluator import KeptBits
    from tuner.tuning.run import SkippedWorkloads
    from tuner.tuning.search import Search

    with tempfile.TemporaryDirectory() as folder:
        notebook = Notebook(folder)
        run = SimpleNamespace(
            plan=plan,
            session=notebook,
            evaluator=evaluator,
            candidates=SimpleNamespace(kept=KeptBits()),
            tracker=Spectator(),
            pools=pools,
            skipped=SkippedWorkloads(notebook),
        )
        Search(run, plan.tuned, {}).run(searches_left=1)
        return notebook


def search(plan, spaces, names, *, stops=False):
    """Run the search once over the workloads of a plan; return the replay that it asked.

    `names` are the searcher's methods that are used.
    """
    from tuner.tuning.search import make_searcher

    def partial(*words, **options):
        return Partial(make_searcher(*words, **options), names)

    replay = Replay(spaces, stops=stops)
    pools = {space.workload: space.pool for space in spaces}
    with patch("tuner.tuning.search.make_searcher", partial), suppress(ReachedError):
        search_in_memory(plan, pools, replay)
    return replay


def plan_of(spaces, asked, seed):
    """Make the plan of a search of some workloads of one kernel."""
    from tuner.model.settings import RunConfig
    from tuner.space.load import load_definition
    from tuner.space.plan import Plan
    from tuner.space.template import Template

    spec = load_definition(WHOLE[spaces[0].kernel]).spec
    config = RunConfig(
        space=spec.path,
        template=spec.template,
        searcher=asked.searcher,
        trials=asked.trials,
        seed=seed,
        workloads=tuple(space.workload for space in spaces),
        operators={operator.name: operator.values[0] for operator in spec.operators},
    )
    return Plan(config, spec, spaces[0].space, Template.load(spec.template, spec.include_dirs))


def alone(spaces, asked, names):
    """Search every workload by itself for every seed."""
    needed, shares, trials = defaultdict(list), defaultdict(list), defaultdict(list)
    started_s = time.perf_counter()
    for space in spaces:
        key = f"{space.kernel} {space.workload.key}"
        for seed in range(asked.seeds):
            replay = search(plan_of([space], asked, seed), [space], names, stops=True)
            needed[key].append(replay.needed(space.workload))
            shares[key].append(round(replay.share(space.workload), 5))
            trials[key].append(len(replay.best_us[space.workload]))
        print(f"{key:34} {needed[key]}", flush=True)
    found = [count for counts in needed.values() for count in counts]
    within = sum(count is not None and count <= WITHIN for count in found)
    spent = [count for counts in trials.values() for count in counts]
    ended = sum(n is None and t < asked.trials for n, t in zip(found, spent, strict=True))
    return {
        "runs": len(found),
        f"share_of_runs_within_{WITHIN}_trials": round(within / len(found), 4),
        "share_of_runs_that_reach_it": round(1 - found.count(None) / len(found), 4),
        "share_of_runs_that_end_before": round(ended / len(found), 4),
        "mean_trials": round(statistics.fmean(spent), 2),
        "seconds_per_trial": round((time.perf_counter() - started_s) / sum(spent), 4),
        "trials_needed": dict(needed),
        "trials": dict(trials),
        "shares": dict(shares),
    }


def together(spaces, asked):
    """Search all workloads of a kernel in one search for every seed."""
    runs = []
    for seed in range(asked.seeds):
        replay = search(plan_of(spaces, asked, seed), spaces, ALL)
        workloads = [space.workload for space in spaces]
        runs.append(
            {
                "trials": {w.key: len(replay.best_us[w]) for w in workloads},
                "trials_needed": {w.key: replay.needed(w) for w in workloads},
                "shares": {w.key: round(replay.share(w), 5) for w in workloads},
            }
        )
        needed = list(runs[-1]["trials_needed"].values())
        total = sum(runs[-1]["trials"].values())
        print(f"together  {spaces[0].kernel:14} {total} trials; needed {needed}", flush=True)
    needed = [list(run["trials_needed"].values()) for run in runs]
    whole = [sum(one) for one in needed if None not in one]
    return {
        "share_of_runs_that_reach_all": len(whole) / len(runs),
        "mean_trials_needed_for_all": round(statistics.fmean(whole), 1) if whole else None,
        "mean_trials_until_its_end": round(
            statistics.fmean(sum(run["trials"].values()) for run in runs), 1
        ),
        "runs": runs,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searcher", default="auto")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--kernel", choices=WHOLE, action="append")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this, alone")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    kernels = {kernel: load(kernel) for kernel in asked.kernel or WHOLE}
    # What `auto` tries whole is no search.
    searched = [spaces for spaces in kernels.values() if len(spaces[0].pool) > asked.trials]
    every = [space for spaces in searched for space in spaces]
    ways = {}
    for name in asked.way or WAYS:
        print(name)
        ways[name] = alone(every, asked, WAYS[name])
        print({k: v for k, v in ways[name].items() if not isinstance(v, dict)})
    content = {
        "searcher": asked.searcher,
        "trials": asked.trials,
        "seeds": asked.seeds,
        "target": TARGET,
        "alone": ways,
        "together": {} if asked.way else {s[0].kernel: together(s, asked) for s in searched},
        "environment": environment(),
    }
    for name, found in content["together"].items():
        print(name, {k: v for k, v in found.items() if k != "runs"})
    write_result(asked.out or "recorded_search", content)


if __name__ == "__main__":
    main()
