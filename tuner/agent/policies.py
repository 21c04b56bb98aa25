"""Where the tree of candidates grows next: by the best so far, by a tree search, or by the agent.

A policy looks at the tree alone and draws no random numbers, so a resumed run that replays its
rounds chooses the same bases again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.agent.tree import Node, Tree
from tuner.errors import InputError


class Policy(Protocol):
    """Who chooses the candidate that a round builds on."""

    def choose(self, tree: Tree) -> str | None:
        """Name the candidate to build on; None leaves the choice to the agent."""
        ...


@dataclass(frozen=True, slots=True)
class Greedy:
    """Build on the best so far, on the first root where nothing is measured."""

    def choose(self, tree: Tree) -> str | None:
        """Name the fastest candidate, the earliest of equals; None for an empty tree."""
        base = tree.best or next(iter(tree.roots), None)
        return None if base is None else base.name


@dataclass(frozen=True, slots=True)
class Chosen:
    """Leave the choice to the agent, which sees the whole population."""

    def choose(self, tree: Tree) -> str | None:
        """Name no candidate."""
        return None


@dataclass(slots=True)
class _Branch:
    """What is known of a candidate and all that grew from it."""

    visits: int = 0
    measured: int = 0
    total_value: float = 0.0
    best_value: float = 0.0
    # the reward that the branch had when it last made progress, and the rounds since
    mark: float = -math.inf
    stale: int = 0

    def add(self, node: Node, value: float, progress: float) -> None:
        """Count a candidate and the failed rounds from it; to be called in the order of making."""
        rounds = 1 + node.failures
        self.visits += rounds
        self.stale += rounds
        if node.reward is None:
            return
        self.measured += 1
        self.total_value += value
        self.best_value = max(self.best_value, value)
        if node.reward > self.mark + progress:
            self.mark, self.stale = node.reward, node.failures


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Search the tree as UCT does: follow the branch of the highest bound to where it may grow.

    A round is a visit, failed ones included. The value of a candidate is its log-speedup on a
    scale from the root (0) to the best so far (1). The descent ends at a node that may have a
    further child (progressive widening) and whose own bound is no lower than its children's.
    Dead ends are not entered while there is another way, and a branch at a standstill waits for
    its siblings that are not. A candidate that never ran correctly is not built on.

    The numbers were chosen for 24 rounds of tasks like those in `tests/support/simulated_tree.py`,
    on other seeds than are tested.
    """

    # Weight of the confidence term. That of UCT (Kocsis and Szepesvari, ECML 2006), sqrt(2) for
    # values in [0, 1], is for noisy values and thousands of visits; a session has dozens. From
    # 0.05 to 0.2 made no difference; 0.4 lost a third where every step is an equal gain.
    exploration: float = 0.1
    # The share of a branch's best value, the rest is its mean: a session is worth its best
    # candidate, and the mean only sets branches that fail often behind others.
    best_share: float = 0.9
    # A node may have a further child while it was tried fewer than width * visits**widening times.
    # The exponent is the usual one (Couetoux et al., LION 2011; the default of MCTS.jl).
    width: float = 1.0
    widening: float = 0.5
    # So many rounds in a row without success make a dead end or a standstill. Where a quarter of
    # the rounds fail, chance alone condemns one base in 64.
    patience: int = 3
    # Whatever is this far below its parent after its patience is a dead end: 0.78 times as fast.
    far_below: float = 0.25
    # The gain in log-speedup that counts as progress: 3 %, more than timing noise.
    progress: float = 0.03

    def choose(self, tree: Tree) -> str | None:
        """Name the candidate to build on; None for an empty tree."""
        if tree.best is None:
            return Greedy().choose(tree)
        branches = self._branches(tree)
        here = self._likeliest(tree, branches, tree.roots)
        while (child := self._descend(tree, branches, here)) is not None:
            here = child
        return here.name

    def _branches(self, tree: Tree) -> dict[str, _Branch]:
        values = self._values(tree)
        branches = {node.name: _Branch() for node in tree.nodes}
        for node in tree.nodes:
            for ancestor in tree.path(node.name):
                branches[ancestor.name].add(node, values.get(node.name, 0.0), self.progress)
        return branches

    def _values(self, tree: Tree) -> dict[str, float]:
        rewards = {node.name: node.reward for node in tree.nodes if node.reward is not None}
        # The lowest root is the zero, not the lowest candidate: one that is a hundred times
        # slower would make all the others look alike.
        zero = min((rewards[r.name] for r in tree.roots if r.name in rewards), default=0.0)
        best = max(rewards.values())
        span = max(best - zero, self.progress)
        return {name: max(0.0, 1 - (best - reward) / span) for name, reward in rewards.items()}
