"""Candidates form a tree that is built in the order they were made."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tuner.agent.tree import Node, Tree

TREE = Tree.of(
    [
        Node("first", None, 0.0),
        Node("wider", "first", 0.3),
        Node("other", None, 0.1),
        Node("deeper", "wider", None, failures=2),
        Node("deepest", "deeper", 0.2),
        Node("staged", "first", 0.3),
    ]
)


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_roots_and_children_come_in_the_order_they_were_made() -> None:
    assert names(TREE.roots) == ["first", "other"]
    assert names(TREE.children("first")) == ["wider", "staged"]
    assert TREE.children("deepest") == ()


def test_the_path_leads_from_the_root_to_the_candidate() -> None:
    assert names(TREE.path("deepest")) == ["first", "wider", "deeper", "deepest"]
    assert names(TREE.path("other")) == ["other"]


@pytest.mark.parametrize(("name", "depth"), [("other", 0), ("staged", 1), ("deepest", 3)])
def test_depth_counts_the_refactorings(name: str, depth: int) -> None:
    assert TREE.depth(name) == depth


def test_the_earliest_of_the_fastest_is_the_best() -> None:
    assert TREE.best == Node("wider", "first", 0.3)


def test_a_slowdown_is_the_best_where_nothing_else_was_measured() -> None:
    tree = Tree.of([Node("a", None), Node("b", "a", -0.7), Node("c", "a", -1.2)])
    assert tree.best == tree["b"]


@pytest.mark.parametrize("nodes", [[], [Node("a", None), Node("b", "a", failures=3)]])
def test_nothing_is_best_where_nothing_was_measured(nodes: list[Node]) -> None:
    assert Tree.of(nodes).best is None


@pytest.mark.parametrize("ask", [Tree.children, Tree.path, Tree.depth, Tree.__getitem__])
def test_an_unknown_name_is_a_key_error(ask: Callable[[Tree, str], object]) -> None:
    with pytest.raises(KeyError, match="absent"):
        ask(TREE, "absent")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node("a", None), Node("b", "absent")], "'b' has the unknown parent 'absent'.*: a$"),
        ([Node("b", "a"), Node("a", None)], "'b' has the unknown parent 'a'.*: none$"),
        ([Node("a", "b"), Node("b", "a")], "'a' has the unknown parent 'b'"),
        ([Node("a", "a")], "'a' has the unknown parent 'a'"),
        ([Node("a", None), Node("a", None)], "two candidates are named 'a'"),
    ],
    ids=["absent", "made later", "cycle", "itself", "twice"],
)
def test_nodes_that_form_no_tree_are_refused(nodes: list[Node], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree.of(nodes)


@pytest.mark.parametrize("reward", [math.inf, -math.inf, math.nan])
def test_a_reward_is_a_finite_number(reward: float) -> None:
    with pytest.raises(ValueError, match=r"the reward of candidate 'a' is .* not finite"):
        Node("a", None, reward)


def test_failures_are_counted_from_zero() -> None:
    with pytest.raises(ValueError, match="candidate 'a' has -1 failures"):
        Node("a", None, failures=-1)
