"""The tree that candidates form: each was made from one other, its parent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


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
        """Find a node; raise `KeyError` for an unknown name."""
        return self._by_name[name]

    @property
    def roots(self) -> tuple[Node, ...]:
        """The candidates that were made from no other, earliest first."""
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
        reverse = [self[name]]
        while (parent := reverse[-1].parent) is not None:
            reverse.append(self[parent])
        return tuple(reversed(reverse))

    def depth(self, name: str) -> int:
        """Count the refactorings between the root and a candidate: 0 for a root."""
        return len(self.path(name)) - 1
