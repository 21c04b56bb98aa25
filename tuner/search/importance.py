"""Which parameters decide whether a config is among the fast ones, by PED-ANOVA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.model.config import format_value
from tuner.model.trial import Trial

# PED-ANOVA fits a density to the best quantile; its authors ask for at least 5 trials in it.
FEWEST_IN_QUANTILE = 5
FEWEST_TRIALS = 20
QUANTILE = 0.1


@dataclass(frozen=True, slots=True)
class Importance:
    """Shares that add up to 1, largest first, or the reason why there are none."""

    shares: tuple[tuple[str, float], ...] = ()
    trials: int = 0
    quantile: float = QUANTILE
    reason: str = ""


def preload_importance() -> None:
    """Import what ranks the parameters, which takes a second or two."""
    import optuna.importance  # noqa: F401


def importance(trials: Sequence[Trial]) -> Importance:
    """Rank the parameters by the correct trials of one workload."""
    groups: dict[frozenset[str], list[Trial]] = {}
    for trial in trials:
        if trial.time_us is not None:
            groups.setdefault(frozenset(trial.config), []).append(trial)
    # the largest group with the same parameters: templates may differ in theirs
    timed = max(groups.values(), key=len, default=[])
    if len(timed) < FEWEST_TRIALS:
        reason = f"{len(timed)} correct trials; at least {FEWEST_TRIALS} are needed"
        return Importance(trials=len(timed), reason=reason)
    varied = [name for name in timed[0].config if len({t.config[name] for t in timed}) > 1]
    if not varied:
        return Importance(trials=len(timed), reason="no parameter took two values")
    if len({trial.time_us for trial in timed}) == 1:
        return Importance(trials=len(timed), reason="every correct trial took the same time")
    quantile = max(QUANTILE, FEWEST_IN_QUANTILE / len(timed))
    shares = _ped_anova(timed, varied, quantile)
    fixed = [(name, 0.0) for name in timed[0].config if name not in varied]
    ranked = sorted(shares, key=lambda item: -item[1])
    return Importance((*ranked, *fixed), len(timed), quantile)


def average(importances: Sequence[Importance]) -> tuple[tuple[str, float], ...]:
    """Average the shares over the workloads that have any, largest first."""
    shares_known = [dict(importance.shares) for importance in importances if importance.shares]
    names = dict.fromkeys(name for shares in shares_known for name in shares)
    means = [
        (name, sum(s.get(name, 0.0) for s in shares_known) / len(shares_known)) for name in names
    ]
    return tuple(sorted(means, key=lambda item: -item[1]))


def _ped_anova(
    trials: Sequence[Trial], names: Sequence[str], quantile: float
) -> list[tuple[str, float]]:
    import optuna

    from tuner.search.optuna import quiet_optuna

    # as text, for a categorical distribution takes False for 0 and True for 1
    rows = [{name: format_value(trial.config[name]) for name in names} for trial in trials]
    choices = {name: sorted({row[name] for row in rows}) for name in names}
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(values)
        for name, values in choices.items()
    }
    with quiet_optuna():
        study = optuna.create_study(direction="minimize")
        study.add_trials(
            optuna.trial.create_trial(params=row, distributions=distributions, value=trial.time_us)
            for row, trial in zip(rows, trials, strict=True)
        )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return [(name, float(share)) for name, share in shares.items()]
