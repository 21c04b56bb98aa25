"""The tree that candidates form: each was made from one other, its parent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from tuner.model.errors import InputError


@dataclass(frozen=True, slots=True)
class Node:
    """One candidate in the tree.

    `reward` is the natural logarithm of the geometric-mean speedup over the baseline: 0 is as fast
    as the baseline, 0.69 twice as fast. It is None while it is unknown, and for a candidate that
    never ran correctly. `failures` counts the rounds from here that gave no valid candidate.
    Raises `ValueError` for a reward that is not finite and for a negative count.
    """

    name: str
    parent: str | None
    reward: float | None = None
    failures: int = 0

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"the reward of candidate {self.name!r} is {self.reward}, not finite")
        if self.failures < 0:
            raise ValueError(f"candidate {self.name!r} has {self.failures} failures, below 0")


@dataclass(frozen=True, slots=True)
class Tree:
    """Candidates in the order they were made; `Tree.of` builds one."""

    nodes: tuple[Node, ...]
    _by_name: Mapping[str, Node]
    _children: Mapping[str | None, tuple[Node, ...]]

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Tree:
        """Build a tree of nodes in the order they were made, every parent before its children.

        Raises `ValueError` for a name that occurs twice and for a parent that is not among the
        nodes before its child; the latter also keeps cycles out.
        """
        by_name: dict[str, Node] = {}
        children: dict[str | None, list[Node]] = {}
        for node in nodes:
            if node.name in by_name:
                raise ValueError(f"two candidates are named {node.name!r}")
            if node.parent is not None and node.parent not in by_name:
                known = ", ".join(by_name) or "none"
                raise ValueError(
                    f"candidate {node.name!r} has the unknown parent {node.parent!r}; "
                    f"made before it: {known}"
                )
            by_name[node.name] = node
            children.setdefault(node.parent, []).append(node)
        return cls(
            tuple(by_name.values()),
            MappingProxyType(by_name),
            MappingProxyType({name: tuple(made) for name, made in children.items()}),
        )

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    @property
    def roots(self) -> tuple[Node, ...]:
        return self._children.get(None, ())

    def children(self, name: str) -> tuple[Node, ...]:
        """List what was made from a candidate, earliest first; raise `KeyError` for unknown."""
        return self._children.get(self[name].name, ())

    @property
    def best(self) -> Node | None:
        """The node of the highest reward, the earliest of equals; None where none has one."""
        measured = [node for node in self.nodes if node.reward is not None]
        return max(measured, key=lambda node: node.reward or 0.0, default=None)

    def path(self, name: str) -> tuple[Node, ...]:
        """List the nodes from the root to a candidate, both included."""
        node = self[name]
        return (node,) if node.parent is None else (*self.path(node.parent), node)


class Policy(Protocol):
    """Who chooses the candidate that a round builds on."""

    def choose(self, tree: Tree) -> str | None:
        """Name the candidate to build on; None leaves the choice to the agent."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Build on the best so far, on the first root where nothing is measured."""

    def choose(self, tree: Tree) -> str | None:
        base = tree.best or next(iter(tree.roots), None)
        return None if base is None else base.name


@dataclass(frozen=True, slots=True)
class AgentsChoice:
    """Leave the choice to the agent, which sees the whole population."""

    def choose(self, tree: Tree) -> str | None:
        return None


# The lowest value, where that of the best is 1 and that of the root mostly 0: a candidate that is
# a hundred times slower must not outweigh all else that came of its branch.
SLOWEST = -1.0


@dataclass(slots=True)
class _Branch:
    own_value: float
    visits: int = 0
    measured: int = 0
    total_value: float = 0.0
    best_value: float = SLOWEST
    best: float | None = None
    # The best reward when the branch last made progress, and the rounds since then.
    mark: float | None = None
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
        self.best = node.reward if self.best is None else max(self.best, node.reward)
        if self.mark is None or node.reward > self.mark + progress:
            self.mark, self.stale = node.reward, node.failures


@dataclass(frozen=True, slots=True)
class MonteCarlo:
    """Search the tree as UCT does: follow the branch of the highest bound to where it may grow.

    A round is a visit, failed ones included. The value of a candidate is its log-speedup on a
    scale that ends with 1 at the best so far and has its 0 at the root, or `far_below` the best
    where the root is nearer to it; a failed round is worth 0. The descent ends at a node that may
    have a further child (progressive widening) and whose own bound is no lower than its
    children's. Dead ends are not entered while there is another way, and a branch at a standstill
    waits for its siblings that are not. A candidate that never ran correctly is not built on.

    The numbers were chosen for 24 rounds of tasks like those in `tests/support/simulated_tree.py`,
    on other seeds than are tested; no real session has confirmed them.
    """

    # Weight of the confidence term. That of UCT (Kocsis and Szepesvari, ECML 2006), sqrt(2) for
    # values in [0, 1], is for noisy values and thousands of visits; a session has dozens. From
    # 0.05 to 0.2 differed little; 0.4 lost three tenths where gains never diminish.
    exploration: float = 0.1
    # The share of a branch's best value, the rest is its mean: a session is worth its best
    # candidate, and the mean only sets branches that fail often behind others. Half and half lost
    # a quarter where gains never diminish.
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
        if tree.best is None:
            return Greedy().choose(tree)
        branches = self._branches(tree)
        here = self._likeliest(tree, branches, tree.roots)
        while not self._grows(tree, branches, here):
            here = self._likeliest(tree, branches, tree.children(here.name))
        return here.name

    def _branches(self, tree: Tree) -> dict[str, _Branch]:
        values = self._values(tree)
        branches = {node.name: _Branch(values.get(node.name, 0.0)) for node in tree.nodes}
        for node in tree.nodes:
            for ancestor in tree.path(node.name):
                branches[ancestor.name].add(node, values.get(node.name, 0.0), self.progress)
        return branches

    def _values(self, tree: Tree) -> dict[str, float]:
        rewards = {node.name: node.reward for node in tree.nodes if node.reward is not None}
        root = min((rewards[r.name] for r in tree.roots if r.name in rewards), default=0.0)
        best = max(rewards.values())
        span = max(best - root, self.far_below)
        return {name: max(SLOWEST, 1 - (best - reward) / span) for name, reward in rewards.items()}

    def _grows(self, tree: Tree, branches: Mapping[str, _Branch], here: Node) -> bool:
        if here.reward is None:
            return False
        children = tree.children(here.name)
        options = self._options(tree, branches, children)
        if all(self._is_dead_end(tree, branches, child) for child in options):
            return True
        branch = branches[here.name]
        tried = len(children) + here.failures
        if tried >= self.width * branch.visits**self.widening:
            return False
        if self._stands_still(branch) and not self._stands_still(branches[options[0].name]):
            return False
        own = branch.own_value + self._uncertainty(branch.visits, tried)
        return own >= max(self._bound(branches[o.name], branch.visits) for o in options)

    def _likeliest(
        self, tree: Tree, branches: Mapping[str, _Branch], siblings: Sequence[Node]
    ) -> Node:
        parent = siblings[0].parent
        rounds = (
            sum(branches[node.name].visits for node in siblings)
            if parent is None
            else branches[parent].visits
        )
        options = self._options(tree, branches, siblings)
        return max(options, key=lambda node: self._bound(branches[node.name], rounds))

    def _options(
        self, tree: Tree, branches: Mapping[str, _Branch], siblings: Sequence[Node]
    ) -> list[Node]:
        """List the siblings that may be entered: all the improving, else the living, else any."""
        measured = [node for node in siblings if branches[node.name].measured]
        alive = [node for node in measured if not self._is_dead_end(tree, branches, node)]
        moving = [node for node in alive if not self._stands_still(branches[node.name])]
        return moving or alive or measured

    def _is_dead_end(self, tree: Tree, branches: Mapping[str, _Branch], node: Node) -> bool:
        branch = branches[node.name]
        if branch.visits <= self.patience:
            return False
        if branch.measured == 1 and node.reward is not None:
            return True
        above = None if node.parent is None else tree[node.parent].reward
        if above is None or branch.best is None:
            return False
        return branch.best < above - self.far_below

    def _stands_still(self, branch: _Branch) -> bool:
        return branch.stale >= self.patience

    def _bound(self, branch: _Branch, rounds: int) -> float:
        mean = branch.total_value / branch.visits
        value = self.best_share * branch.best_value + (1 - self.best_share) * mean
        return value + self._uncertainty(rounds, branch.visits)

    def _uncertainty(self, rounds: int, visits: int) -> float:
        return self.exploration * math.sqrt(math.log(rounds) / visits)


POLICIES: Mapping[str, type[Policy]] = {
    "greedy": Greedy,
    "mcts": MonteCarlo,
    "llm": AgentsChoice,
}


def policy(name: str) -> Policy:
    if name not in POLICIES:
        raise InputError(f"unknown policy {name!r}", remedy=f"choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()
