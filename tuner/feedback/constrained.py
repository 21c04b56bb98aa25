"""What the constraints rule out before anything is compiled, and which of them does most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd

from tuner.errors import ExpressionError
from tuner.expressions import Expression, Value
from tuner.feedback.wording import keys, one_line, percent
from tuner.findings import Finding
from tuner.kernel import Workload
from tuner.space import Config, SearchSpace

# Larger spaces are judged by so many combinations, spread evenly.
SAMPLE = 4096
GOLDEN = 0.6180339887
# A constraint that rules out less leaves the search its choice.
NOTABLE = 0.5
# It costs no trial: worth knowing, never urgent.
WEIGHT = 0.01

Names = Mapping[Workload, Mapping[str, Value]]


def constrained(space: SearchSpace, names: Names) -> Iterator[Finding]:
    """Find the constraint that alone rules out most combinations, where that is half or more.

    `names` has the axes and the device's numbers of every tuned workload.
    """
    configs = list(_sample(space))
    shares = {
        constraint: {w: _ruled_out(constraint, configs, values) for w, values in names.items()}
        for constraint in space.constraints
    }
    if not shares or not names:
        return
    strictest = max(shares, key=lambda one: sum(shares[one].values()))
    share = sum(shares[strictest].values()) / len(names)
    if share < NOTABLE:
        return
    most = [w for w, own in shares[strictest].items() if own == max(shares[strictest].values())]
    about = "" if len(configs) == space.size else f" (of {len(configs)} looked at)"
    yield Finding(
        topic="constraint",
        text=f"The constraint `{one_line(strictest.text)}` alone rules out {percent(share)} of "
        f"the {space.size:,} combinations{about}, most on {keys(most)}; it costs no trial.",
        advice="See that what it rules out could not be fast; if some of it could, loosen the "
        "constraint, or else drop the values that it never lets through.",
        value=100 * share,
        unit="%",
        weight=WEIGHT,
    )


def _sample(space: SearchSpace) -> Iterator[Config]:
    """Spread over the whole product: all of it where it is small."""
    # Steps of the golden ratio of the size: equal steps would always meet the same values of the
    # last parameters.
    step = max(1, int(space.size * GOLDEN))
    while gcd(step, space.size) > 1:
        step += 1
    for number in range(min(space.size, SAMPLE)):
        index = number * step % space.size
        chosen = []
        for parameter in reversed(space.parameters):
            index, position = divmod(index, len(parameter.values))
            chosen.append((parameter.name, parameter.values[position]))
        yield Config.of(reversed(chosen))


def _ruled_out(constraint: Expression, configs: list[Config], values: Mapping[str, Value]) -> float:
    broken = sum(not _holds(constraint, {**values, **config}) for config in configs)
    return broken / len(configs)


def _holds(constraint: Expression, names: Mapping[str, Value]) -> bool:
    try:
        return bool(constraint.evaluate(names))
    except ExpressionError:
        return False  # another constraint has to keep it from being asked
