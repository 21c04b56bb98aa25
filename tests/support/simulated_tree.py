"""Simulated refactoring tasks, to compare the policies that choose where the tree grows.

A task has candidates of which a policy sees the log-speedup and the failed rounds. Hidden from it
is the ceiling of each candidate's design: how fast that design can become. The numbers are
assumptions; what they have to show is which policy copes with which kind of landscape.

A quarter of the rounds fail. The n-th round from a base has the same outcome whoever asks for it,
so two policies on one seed differ by their choices alone, and neither has better luck.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.extensions.agents.tree import Node, Policy, Tree

FAILURE_RATE = 0.25
REDESIGN_RATE = 0.3
# The root's design can be made twice as fast as the baseline, the best of all designs four times.
FIRST_CEILING = math.log(2)
HARDWARE_CEILING = math.log(4)


@dataclass(frozen=True)
class Candidate:
    """A candidate's log-speedup, and the hidden one that its design can be brought to."""

    reward: float
    ceiling: float


Refactoring = Callable[[random.Random, Candidate, int], Candidate]


def polish(draw: random.Random, base: Candidate, repeat: int) -> Candidate:
    """Improve a base within its design: a landscape where greedy is optimal.

    A step takes 20 to 60 % of what the design has left, and 0.7 times that with each further step
    from the same base, for the obvious ideas come first. No step loses, and there is one ceiling,
    so the fastest candidate is always the right one to build on.
    """
    share = draw.uniform(0.2, 0.6) * 0.7**repeat
    return Candidate(base.reward + share * (base.ceiling - base.reward), base.ceiling)


def redesign(slowest: float, fastest: float) -> Refactoring:
    """Make a landscape where three rounds of ten replace the base's design and others polish it.

    The ceiling of a new design is drawn from no speedup to the hardware's, whatever its base
    reached: half of them are no better than the root's. Before it is polished it is `slowest` to
    `fastest` times as fast as its base. With 0.67 and 1.0 the good designs pass their base only
    after some steps, two or three as a rule, and the base is a local optimum; with 0.8 and 1.1
    each third is faster at once. How a design starts says nothing of its ceiling.
    """

    def refactor(draw: random.Random, base: Candidate, repeat: int) -> Candidate:
        if draw.random() >= REDESIGN_RATE:
            return polish(draw, base, repeat)
        ceiling = draw.uniform(0.0, HARDWARE_CEILING)
        start = base.reward + draw.uniform(math.log(slowest), math.log(fastest))
        return Candidate(min(start, ceiling), ceiling)

    return refactor


def final_best(policy: Policy, refactoring: Refactoring, seed: int, rounds: int = 24) -> float:
    """Grow a tree from a root that is as fast as the baseline; give the log-speedup of its best."""
    candidates = {"root": Candidate(0.0, FIRST_CEILING)}
    nodes = {"root": Node("root", None, 0.0)}
    tried = {"root": 0}
    for _ in range(rounds):
        base = policy.choose(Tree(nodes.values()))
        assert base is not None
        repeat = tried[base]
        tried[base] += 1
        draw = random.Random(f"{seed} {base} {repeat}")  # noqa: S311 - the same for all policies
        if draw.random() < FAILURE_RATE:
            nodes[base] = replace(nodes[base], failures=nodes[base].failures + 1)
            continue
        name = f"{base}.{repeat}"
        candidates[name] = refactoring(draw, candidates[base], repeat)
        nodes[name] = Node(name, base, candidates[name].reward)
        tried[name] = 0
    return max(candidate.reward for candidate in candidates.values())
