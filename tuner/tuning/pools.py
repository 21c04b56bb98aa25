"""The configs that each workload of a plan may try."""

from __future__ import annotations

from tuner.model.errors import SpaceError
from tuner.model.kernel import KernelSpec, Workload
from tuner.search.pool import Pool, valid_configs
from tuner.search.random import require_listed
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Evaluator


def pools_of(plan: Plan, evaluator: Evaluator) -> dict[Workload, Pool]:
    """Enumerate the valid configs of every tuned workload; raise `SpaceError` where none is."""
    pools = {}
    for workload in plan.tuned:
        pool = valid_configs(plan.space, evaluator.names(workload))
        if not len(pool):
            raise no_valid_config(plan.spec, workload, pool)
        answered = evaluator.answered(workload)
        if answered is not None:
            # Where nothing is left the space has changed: then the trials say so.
            pool = pool.restricted(answered) or pool
        if plan.config.searcher == "exhaustive":
            require_listed(pool)
        pools[workload] = pool
    return pools


def no_valid_config(spec: KernelSpec, workload: Workload, pool: Pool) -> SpaceError:
    """Say which constraint leaves a workload without any config."""
    constraint = pool.emptied_by
    which = "all constraints" if constraint is None else f"`{constraint.text}`"
    return SpaceError(
        f"no config satisfies {which} for workload {workload}",
        path=spec.path,
        line=None if constraint is None else constraint.line,
        remedy="change the workload, the parameters' values or the constraints",
    )
