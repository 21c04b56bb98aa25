"""The tree of candidates, and the policies that choose where it grows."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import mean

import pytest

from tests.support.simulated_tree import Refactoring, final_best, polish, redesign
from tuner.extensions.agents.tree import (
    POLICIES,
    AgentsChoice,
    Greedy,
    MonteCarlo,
    Node,
    Policy,
    Tree,
    policy,
)
from tuner.model.errors import InputError

TREE = Tree(
    [
        Node("first", None, 0.0),
        Node("wider", "first", 0.3),
        Node("other", None, 0.1),
        Node("deeper", "wider", None, failures=2),
        Node("deepest", "deeper", 0.2),
        Node("staged", "first", 0.3),
    ]
)


def test_children_and_paths_are_in_the_order_they_were_made() -> None:
    found = [TREE.children(None), TREE.children("first"), TREE.children("deepest")]
    assert [[node.name for node in nodes] for nodes in found] == [
        ["first", "other"],
        ["wider", "staged"],
        [],
    ]
    path = [node.name for node in TREE.path("deepest")]
    assert path == ["first", "wider", "deeper", "deepest"]


@pytest.mark.parametrize(
    ("nodes", "best"),
    [
        (list(TREE), "wider"),  # the earliest of the fastest
        ([Node("a", None), Node("b", "a", -0.7), Node("c", "a", -1.2)], "b"),
        ([Node("a", None), Node("b", "a", failures=3)], None),
        ([], None),
    ],
)
def test_the_best_is_the_fastest_of_those_measured(nodes: list[Node], best: str | None) -> None:
    found = Tree(nodes).best
    assert (found and found.name) == best


@pytest.mark.parametrize(
    ("reward", "failures", "said"),
    [
        *((r, 0, "the reward of candidate 'a' is .* not finite") for r in (math.inf, math.nan)),
        (0.0, -1, "candidate 'a' has -1 failures"),
    ],
)
def test_a_reward_is_finite_and_failures_are_counted_from_zero(
    reward: float, failures: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Node("a", None, reward, failures)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node("a", None), Node("b", "absent")], "'b' has the unknown parent 'absent'.*: a$"),
        ([Node("b", "a"), Node("a", None)], "'b' has the unknown parent 'a'.*: none$"),
        ([Node("a", "a")], "'a' has the unknown parent 'a'"),
        ([Node("a", None), Node("a", None)], "two candidates are named 'a'"),
    ],
)
def test_nodes_that_form_no_tree_are_refused(nodes: list[Node], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tree(nodes)


ROOT = Node("root", None, 0.0)
SEARCH = MonteCarlo()
# Final bests closer than 1 % are a draw: no measurement would tell them apart.
DRAW = 0.01


def after(*nodes: Node) -> str | None:
    return SEARCH.choose(Tree(nodes))


def test_a_policy_has_its_name_and_an_unknown_one_is_told_the_choices() -> None:
    assert [type(policy(name)) for name in POLICIES] == [Greedy, MonteCarlo, AgentsChoice]
    with pytest.raises(InputError, match=r"'beam'\n.*greedy, mcts, llm"):
        policy("beam")


@pytest.mark.parametrize("chooses", [Greedy(), SEARCH], ids=["greedy", "mcts"])
class TestEveryChoice:
    def test_an_empty_tree_has_nothing_to_build_on(self, chooses: Policy) -> None:
        assert chooses.choose(Tree([])) is None

    @pytest.mark.parametrize("reward", [None, 0.0, -2.0])
    @pytest.mark.parametrize("failures", [0, 43])
    def test_a_single_root_is_built_on_however_often_it_failed(
        self, chooses: Policy, reward: float | None, failures: int
    ) -> None:
        assert chooses.choose(Tree([Node("root", None, reward, failures)])) == "root"

    def test_the_root_is_built_on_where_nothing_is_measured(self, chooses: Policy) -> None:
        tree = Tree([Node("root", None), Node("broken", "root"), Node("worse", "broken")])
        assert chooses.choose(tree) == "root"

    def test_what_never_ran_correctly_is_not_built_on(self, chooses: Policy) -> None:
        tree = Tree([Node("broken", None), Node("a", "broken", -0.2), Node("b", "a")])
        assert chooses.choose(tree) == "a"

    def test_the_earliest_of_equals_is_chosen(self, chooses: Policy) -> None:
        tree = Tree([ROOT, Node("z", "root", 0.3), Node("a", "root", 0.3)])
        assert chooses.choose(tree) == "z"


def test_greedy_builds_on_the_fastest_wherever_it_is() -> None:
    nodes = [ROOT, Node("a", "root", 0.4, failures=9), Node("b", "a", 0.39), Node("c", "root", 0.1)]
    assert Greedy().choose(Tree(nodes)) == "a"


class TestMonteCarlo:
    @pytest.mark.parametrize(("reward", "chosen"), [(0.3, "a"), (0.0, "root"), (-0.1, "root")])
    def test_only_a_better_child_is_built_on_next(self, reward: float, chosen: str) -> None:
        assert after(ROOT, Node("a", "root", reward)) == chosen

    def test_among_equals_the_less_visited_is_chosen(self) -> None:
        nodes = (ROOT, Node("a", "root", 0.3, failures=1), Node("b", "root", 0.3))
        assert after(*nodes) == "b"

    @pytest.mark.parametrize(("failures", "chosen"), [(0, "b"), (1, "root")])
    def test_a_node_gets_a_third_child_only_after_enough_visits(
        self, failures: int, chosen: str
    ) -> None:
        # The root is the fastest. Two children are too many for 3 visits, as 2 >= 3 ** 0.5, but
        # not for 5. Patience would also send the search down, so it is out of the way here.
        children = [Node(name, "root", r, failures) for name, r in (("a", -0.2), ("b", -0.1))]
        patient = replace(SEARCH, patience=99)
        assert patient.choose(Tree([ROOT, *children])) == chosen

    def test_a_failed_round_counts_as_a_try(self) -> None:
        child = Node("a", "root", -0.1)
        assert after(ROOT, child) == "root"
        assert after(replace(ROOT, failures=1), child) == "a"

    def test_a_base_that_failed_too_often_is_left_for_its_parent(self) -> None:
        best = Node("a", "root", 0.5, failures=2)
        assert after(ROOT, best) == "a"
        assert after(ROOT, replace(best, failures=3)) == "root"

    def test_children_that_never_ran_are_failures_too(self) -> None:
        broken = [Node(f"broken{i}", "a") for i in range(3)]
        nodes = (ROOT, Node("a", "root", 0.5), *broken)
        assert after(*nodes[:-1]) == "a"
        assert after(*nodes) == "root"

    def test_a_base_that_once_gave_a_valid_child_is_no_dead_end(self) -> None:
        nodes = (ROOT, Node("a", "root", 0.5, failures=3), Node("b", "a", 0.45))
        assert after(*nodes) in {"a", "b"}

    @pytest.mark.parametrize(("reward", "chosen"), [(0.5, "root"), (0.9, "c")])
    def test_a_branch_that_stays_far_below_its_parent_is_left(
        self, reward: float, chosen: str
    ) -> None:
        # Each step of the branch is progress; after three rounds it has to be near 1.0, too.
        branch = (Node("a", "root", 0.2), Node("b", "a", 0.3), Node("c", "b", reward))
        start = replace(ROOT, reward=1.0, failures=6)
        assert after(start, *branch, Node("d", "c", reward - 0.1)) == chosen

    def test_a_branch_below_its_parent_gets_its_rounds_once_the_parent_stands_still(self) -> None:
        # However many children the parent might have.
        wide = replace(SEARCH, width=9.0)
        start = (ROOT, Node("best", "root", 0.7, failures=1), Node("dip", "best", 0.5))
        assert wide.choose(Tree(start)) == "best"
        still = (ROOT, replace(start[1], failures=2), start[2])
        assert wide.choose(Tree(still)) == "dip"
        assert wide.choose(Tree([*still, Node("up", "dip", 0.6)])) == "up"

    def test_a_branch_at_a_standstill_waits_for_one_that_moves(self) -> None:
        still = Node("still", "root", 0.7)
        polished = [Node(f"polished{i}", "still", 0.7 + i / 1000) for i in range(3)]
        slower = Node("slower", "root", 0.5)
        assert after(ROOT, still, slower, *polished[:2]) != "slower"
        assert after(ROOT, still, slower, *polished) == "slower"

    @pytest.mark.parametrize("parent", ["root", "b"])
    def test_one_very_slow_candidate_does_not_turn_the_search(self, parent: str) -> None:
        slow = Node("slow", parent, -5.0)
        assert after(ROOT, Node("a", "root", 0.4), Node("b", "root", 0.5), slow) == "b"

    def test_a_dead_end_below_what_never_ran_is_still_built_on(self) -> None:
        assert after(Node("broken", None), Node("a", "broken", 0.1, failures=3)) == "a"

    def test_the_better_of_several_roots_is_built_on(self) -> None:
        assert after(Node("a", None), Node("b", None, 0.1), Node("c", None, 0.4)) == "c"


class Outcome:
    """The final bests of both policies, on seeds by which no number of theirs was chosen."""

    def __init__(self, refactoring: Refactoring) -> None:
        seeds = range(50)
        self.greedy = [final_best(Greedy(), refactoring, seed) for seed in seeds]
        self.mcts = [final_best(SEARCH, refactoring, seed) for seed in seeds]
        gains = [m - g for m, g in zip(self.mcts, self.greedy, strict=True)]
        self.wins = sum(gain > DRAW for gain in gains)
        self.losses = sum(gain < -DRAW for gain in gains)
        self.ratio = mean(self.mcts) / mean(self.greedy)


class TestSimulatedTasks:
    def test_mcts_leaves_a_local_optimum_where_greedy_stays(self) -> None:
        outcome = Outcome(redesign(slowest=0.67, fastest=1.0))
        assert outcome.ratio > 1.05
        assert outcome.wins > outcome.losses

    def test_mcts_keeps_up_where_new_designs_often_pay_at_once(self) -> None:
        assert Outcome(redesign(slowest=0.8, fastest=1.1)).ratio > 0.95

    def test_mcts_loses_little_where_greedy_is_optimal(self) -> None:
        outcome = Outcome(polish)
        assert min(outcome.mcts) > 0
        assert 0.9 < outcome.ratio <= 1
