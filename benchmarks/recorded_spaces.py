"""The spaces that were measured whole on an H200, with what is known of a config before it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
# As they were when every config was measured: the operators' own files go on, and their recordings
# hold a part of the configs.
WHOLE = {
    name: ROOT / f"benchmarks/recorded/{name}/{name}.yaml"
    for name in ("silu_and_mul", "topk_softmax")
}
AHEAD = 64


@dataclass
class RecordedSpace:
    """One workload's valid configs in the order of the pool.

    `trials` are as the recorded device gives them, at once; `features` has None where a config
    cannot run; `seconds` is what it took to make one config's features.
    """

    kernel: str
    workload: object
    pool: object
    space: object
    trials: list
    features: list
    seconds: list

    @cached_property
    def times_us(self):
        """Median times, nan where there is none."""
        return np.array([np.nan if t.time_us is None else t.time_us for t in self.trials])

    @cached_property
    def best_us(self):
        """The optimum."""
        return float(np.nanmin(self.times_us))

    def trial(self, config):
        """Answer as the device would."""
        return self.trials[self.pool.index(config)]

    def foresee(self, config):
        """Answer as the compiler would; None for what can't run."""
        return self.features[self.pool.index(config)]


def space_of(kernel):
    """Name the search space of one of `kernels/sglang`."""
    return ROOT / f"search_spaces/sglang/{kernel}.yaml"


def recorded(space):
    """Read the recording of a space's kernel."""
    from tuner.device.recorded.recording import load_recording, recordings_of
    from tuner.space.load import load_definition

    (path,) = recordings_of(load_definition(space).spec.source)
    return load_recording(path)


def evaluator_of(space, compiler=None):
    """Make what tries a space's own template on its recording; keys need no compiler."""
    from tuner.device.recorded.recording import RecordedDevice, recordings_of
    from tuner.model.trial import INITIAL
    from tuner.space.load import load_definition
    from tuner.space.template import Template
    from tuner.tuning.evaluator import Candidate, Evaluator

    definition = load_definition(space)
    spec = definition.spec
    operators = {operator.name: operator.values[0] for operator in spec.operators}
    (path,) = recordings_of(spec.source)
    device = RecordedDevice(path, spec.name, operators)
    candidate = Candidate(
        INITIAL, definition.space, Template.load(spec.template, spec.include_dirs)
    )
    return Evaluator(spec, candidate, operators, compiler, device)


def shares_of_optimum(space, folder):
    """Compare what a session found on each tuned workload with the best, by the recording's times.

    The session may have measured for itself: only which configs it tried counts.
    """
    from tuner.model.trial import INITIAL, Status
    from tuner.session.session import Session

    recording, evaluator = recorded(space), evaluator_of(space)
    found = {}
    with Session.open(folder, read_only=True) as session:
        for workload in (w for w in session.manifest.config.workloads if not w.held_out):
            trials = [t for t in session.trials(INITIAL, workload) if t.time_us]
            best = min(trials, key=lambda trial: trial.time_us)
            of_workload = recording.workloads[workload.key]
            times = {
                key: program.outcome().measurement.median_us
                for key, program in of_workload.programs.items()
                if program.status is Status.CORRECT and key != of_workload.baseline
            }
            own = times[evaluator.key(workload, best.config)]
            found[workload.key] = {"trials": len(trials), "share": min(times.values()) / own}
    return found


def load(kernel, *, held_out=False):
    """Compile every valid config of every workload of `WHOLE[kernel]` and look its time up."""
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.search.pool import valid_configs
    from tuner.space.load import load_definition

    definition = load_definition(WHOLE[kernel])
    spec, space = definition.spec, definition.space
    spaces = []
    with NvrtcPool(cache=Cache()) as compiler:
        evaluator = evaluator_of(WHOLE[kernel], compiler)
        for workload in spec.workloads if held_out else spec.tuned:
            pool = valid_configs(space, evaluator.names(workload))
            answered = evaluator.answered(workload)
            pool = pool if answered is None else pool.restricted(answered)
            rows = [_look(evaluator, pending) for pending in _started(evaluator, workload, pool)]
            trials, features, seconds = (list(column) for column in zip(*rows, strict=True))
            spaces.append(RecordedSpace(kernel, workload, pool, space, trials, features, seconds))
    return spaces


def _started(evaluator, workload, pool):
    """Start compilations in batches: all at once would hold every cubin."""
    for configs in batched(pool, AHEAD):
        yield from [evaluator.start(workload, config) for config in configs]


def _look(evaluator, pending):
    from tuner.model.trial import Trial

    if pending.compilation is not None:
        pending.compilation.result()
    started_s = time.perf_counter()
    features = evaluator.foresee(pending)
    seconds = time.perf_counter() - started_s
    return evaluator.finish(pending), None if isinstance(features, Trial) else features, seconds


def batched(items, size):
    """Cut an iterable into lists of at most `size`."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
