"""What the search of one candidate says of it: findings from its trials alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.feedback.landscape import behind, disagreement, flatness
from tuner.feedback.observed import observed
from tuner.feedback.ranges import decisive, edges, unused
from tuner.feedback.rejected import rejections
from tuner.findings import Finding
from tuner.kernel import Workload
from tuner.space import SearchSpace
from tuner.template import Template
from tuner.trial import Trial


def search_findings(
    space: SearchSpace,
    trials: Mapping[Workload, Sequence[Trial]],
    template: Template,
    baselines_us: Mapping[Workload, float],
) -> tuple[Finding, ...]:
    """Say what the trials of a candidate's search teach, the weightiest first.

    `trials` are those of the search stage, by tuned workload; `baselines_us` are median times. A
    workload with fewer than five timed configs takes part in no claim about times.
    """
    seen = observed(trials)
    found = [
        *rejections(space, seen, template),
        *behind(seen, baselines_us),
        *edges(space, seen, template),
        *disagreement(space, seen, template),
        *flatness(seen, baselines_us),
        *decisive(space, seen, template),
        *unused(space, seen, template),
    ]
    return tuple(sorted(found, key=lambda finding: -finding.weight))
