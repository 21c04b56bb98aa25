"""The tree that candidates form: each was made from one other, its parent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


class Tree:
    """Candidates in the order they were made.

    Raises `ValueError` for a name that occurs twice and for a parent that is not among the nodes
    before its child; the latter also keeps cycles out.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._by_name: dict[str, Node] = {}
        self._children: dict[str | None, list[Node]] = {None: []}
        for node in nodes:
            if node.name in self._by_name:
                raise ValueError(f"two candidates are named {node.name!r}")
            if node.parent not in self._children:
                raise ValueError(
                    f"candidate {node.name!r} has the unknown parent {node.parent!r}; "
                    f"made before it: {', '.join(self._by_name) or 'none'}"
                )
            self._by_name[node.name] = node
            self._children[node.parent].append(node)
            self._children[node.name] = []

    def __getitem__(self, name: str) -> Node:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_name.values())

    def children(self, name: str | None) -> Sequence[Node]:
        """List what was made from a candidate, earliest first, and the roots for None."""
        return self._children[name]

    @property
    def best(self) -> Node | None:
        """The node of the highest reward, the earliest of equals; None where none has one."""
        measured = [node for node in self if node.reward is not None]
        return max(measured, key=lambda node: node.reward or 0.0, default=None)

    def path(self, name: str) -> tuple[Node, ...]:
        """List the nodes from the root to a candidate, both included."""
        node = self[name]
        return (node,) if node.parent is None else (*self.path(node.parent), node)


class Policy(Protocol):
    """A way to choose the candidate that a round builds on."""

    def choose(self, tree: Tree) -> str | None:
        """Name the candidate to build on; None leaves the choice to the agent."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Build on the best so far, on the first root where nothing is measured."""

    def choose(self, tree: Tree) -> str | None:
        base = tree.best or next(iter(tree), None)
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
        return Greedy().choose(tree) if tree.best is None else _Descent(self, tree).end()


class _Descent:
    """One choice: the way from a root down to the node that a round builds on."""

    def __init__(self, rules: MonteCarlo, tree: Tree) -> None:
        self._rules, self._tree = rules, tree
        rewards = {node.name: node.reward for node in tree if node.reward is not None}
        roots = [rewards[root.name] for root in tree.children(None) if root.name in rewards]
        best = max(rewards.values())
        span = max(best - min(roots, default=0.0), rules.far_below)
        values = {name: max(SLOWEST, 1 - (best - found) / span) for name, found in rewards.items()}
        self._branches = {node.name: _Branch(values.get(node.name, 0.0)) for node in tree}
        for node in tree:
            for ancestor in tree.path(node.name):
                value = values.get(node.name, 0.0)
                self._branches[ancestor.name].add(node, value, rules.progress)

    def end(self) -> str:
        here = self._likeliest(None)
        while not self._grows(here):
            here = self._likeliest(here.name)
        return here.name

    def _grows(self, here: Node) -> bool:
        if here.reward is None:
            return False
        options = self._options(here.name)
        if all(self._is_dead_end(child) for child in options):
            return True
        branch = self._branches[here.name]
        tried = len(self._tree.children(here.name)) + here.failures
        if tried >= self._rules.width * branch.visits**self._rules.widening:
            return False
        if self._stands_still(here) and not self._stands_still(options[0]):
            return False
        own = branch.own_value + self._uncertainty(branch.visits, tried)
        return own >= max(self._bound(option, branch.visits) for option in options)

    def _likeliest(self, parent: str | None) -> Node:
        siblings = self._tree.children(parent)
        rounds = (
            sum(self._branches[node.name].visits for node in siblings)
            if parent is None
            else self._branches[parent].visits
        )
        return max(self._options(parent), key=lambda node: self._bound(node, rounds))

    def _options(self, parent: str | None) -> list[Node]:
        """List the children that may be entered: all the improving, else the living, else any."""
        children = self._tree.children(parent)
        measured = [node for node in children if self._branches[node.name].measured]
        alive = [node for node in measured if not self._is_dead_end(node)]
        moving = [node for node in alive if not self._stands_still(node)]
        return moving or alive or measured

    def _is_dead_end(self, node: Node) -> bool:
        branch = self._branches[node.name]
        if branch.visits <= self._rules.patience:
            return False
        if branch.measured == 1 and node.reward is not None:
            return True
        above = None if node.parent is None else self._tree[node.parent].reward
        if above is None or branch.best is None:
            return False
        return branch.best < above - self._rules.far_below

    def _stands_still(self, node: Node) -> bool:
        return self._branches[node.name].stale >= self._rules.patience

    def _bound(self, node: Node, rounds: int) -> float:
        branch, share = self._branches[node.name], self._rules.best_share
        mean = branch.total_value / branch.visits
        value = share * branch.best_value + (1 - share) * mean
        return value + self._uncertainty(rounds, branch.visits)

    def _uncertainty(self, rounds: int, visits: int) -> float:
        return self._rules.exploration * math.sqrt(math.log(rounds) / visits)


POLICIES: Mapping[str, type[Policy]] = {
    "greedy": Greedy,
    "mcts": MonteCarlo,
    "llm": AgentsChoice,
}


def policy(name: str) -> Policy:
    if name not in POLICIES:
        raise InputError(f"unknown policy {name!r}", remedy=f"choose one of {', '.join(POLICIES)}")
    return POLICIES[name]()
