"""What came of a round: the prediction beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median

from tuner.agent.base import Expectation, Idea
from tuner.feedback.wording import times
from tuner.statistics import geometric_mean

TIME = "time_us"
ByWorkload = Mapping[str, float]
ByMetric = Mapping[str, Mapping[str, float]]
_NAMES = {TIME: "time"}


@dataclass(frozen=True, slots=True)
class Moved:
    """One expectation and what came of it: both are the new value over the base's.

    `workload` is "" for all tuned ones. `actual` is None where it was not measured on both sides.
    """

    metric: str
    workload: str
    predicted: float
    actual: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a candidate did, by the times of its search; all mappings are by `Workload.key`.

    `speedup` is the geometric mean over the tuned workloads of the baseline's time over the best,
    `over_base` of the base's best over it; both None where the candidate has no correct config.
    `best_us` lacks the workloads without one. `default_us` is the time of the space's default,
    None where it was not tried or not correct: what rewriting alone gives.
    """

    speedup: float | None
    over_base: float | None
    moved: tuple[Moved, ...] = ()
    best_us: Mapping[str, float] = field(default_factory=dict)
    default_us: Mapping[str, float | None] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write it as JSON text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read what `to_json` wrote."""
        content = json.loads(text)
        return cls(**{**content, "moved": tuple(Moved(**one) for one in content["moved"])})


def outcome(
    idea: Idea,
    *,
    baseline_us: ByWorkload,
    base_us: ByWorkload,
    best_us: ByWorkload,
    default_us: Mapping[str, float | None],
    base_metrics: ByMetric | None = None,
    metrics: ByMetric | None = None,
) -> Outcome:
    """Compare what an idea promised with what was measured, all by `Workload.key`.

    `baseline_us` has every tuned workload; on those that `base_us` or `best_us` lacks, the
    baseline stands in, as it does for the user. The metrics are those of `profiler.base.METRICS`,
    `{workload: {metric: value}}`, of the base's best config and of the candidate's.
    """
    mean = over_base = None
    if best_us:
        mean = geometric_mean(baseline_us[w] / best_us.get(w, baseline_us[w]) for w in baseline_us)
        over_base = geometric_mean(
            base_us.get(w, baseline_us[w]) / best_us.get(w, baseline_us[w]) for w in baseline_us
        )
    before = _with_times(base_us, base_metrics or {})
    after = _with_times(best_us, metrics or {})
    moved = tuple(
        Moved(e.metric, e.workload, e.factor, _factor(e, before, after)) for e in idea.expectations
    )
    return Outcome(mean, over_base, moved, dict(best_us), dict(default_us))


def sentence(moved: Moved) -> str:
    """Say what was expected and what came: `expected time x0.60 on T=8192, got x0.71`."""
    name = _NAMES.get(moved.metric, moved.metric.replace("_", " "))
    where = f"on {moved.workload}" if moved.workload else "on all workloads"
    expected = f"expected {name} {times(moved.predicted)} {where}"
    if moved.actual is None:
        return f"{expected}, not measured"
    other_way = (moved.predicted - 1) * (moved.actual - 1) < 0
    return f"{expected}, got {times(moved.actual)}" + (", the other way" if other_way else "")


def _with_times(times_us: ByWorkload, metrics: ByMetric) -> dict[str, dict[str, float]]:
    found = {workload: dict(values) for workload, values in metrics.items()}
    for workload, time_us in times_us.items():
        found.setdefault(workload, {})[TIME] = time_us
    return found


def _factor(expectation: Expectation, before: ByMetric, after: ByMetric) -> float | None:
    """Divide the new values by the old; over several workloads take the middle one.

    Times are averaged geometrically; other metrics may be 0, where that is not possible.
    """
    wanted = [expectation.workload] if expectation.workload else list(before)
    metric = expectation.metric
    ratios = []
    for workload in wanted:
        old = before.get(workload, {}).get(metric)
        new = after.get(workload, {}).get(metric)
        if old is None or new is None or (old == 0 and new != 0):
            continue
        ratios.append(1.0 if new == old else new / old)
    if not ratios:
        return None
    return geometric_mean(ratios) if metric == TIME else median(ratios)
