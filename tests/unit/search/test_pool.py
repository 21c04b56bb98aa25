"""Pools hold exactly the configs that satisfy every constraint."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tuner.model.config import Config, SearchSpace
from tuner.model.errors import ExpressionError, SpaceError
from tuner.model.expressions import Expression, Value
from tuner.search import enumeration
from tuner.search.pool import Pool, valid_configs
from tuner.testing.searchers import make_space


def exact(value: Value) -> tuple[type, Value]:
    return type(value), value


def configs_of(pool: Pool) -> list[tuple[tuple[type, Value], ...]]:
    return [tuple(exact(value) for value in config.values()) for config in pool]


def sides_of(tree: ast.expr) -> Iterator[Expression]:
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for value in tree.values:
            yield from sides_of(value)
    else:
        yield Expression.parse(ast.unparse(tree))


def by_evaluation(
    space: SearchSpace, names: dict[str, Value]
) -> list[tuple[tuple[type, Value], ...]]:
    """Every combination that no constraint excludes; raises where one cannot be evaluated.

    Both sides of an `and` count as constraints, so that a false one excludes what the other one
    cannot be evaluated for.
    """
    valid = []
    sides = [side for constraint in space.constraints for side in sides_of(constraint.tree)]
    for values in product(*(p.values for p in space.parameters)):
        config = dict(zip(space.names, values, strict=True))
        verdicts = []
        for side in sides:
            try:
                verdicts.append(bool(side.evaluate({**names, **config})))
            except ExpressionError as error:
                verdicts.append(error)
        if False in verdicts:
            continue
        errors = [verdict for verdict in verdicts if isinstance(verdict, ExpressionError)]
        if errors:
            raise errors[0]
        valid.append(tuple(exact(value) for value in values))
    return valid


PARAMETERS: dict[str, list[Value]] = {
    "a": [1, 2, 4, -3, 0],
    "b": [False, True],
    "c": ["row", "column", "and or"],
    "d": [0.5, 1.5, -2.0],
    "block_size_x": [2048, 32],
}
LEAVES = st.sampled_from(
    [*PARAMETERS, "T", "K", "0", "1", "3", "-2", "0.5", "True", "'row'", "'and or'", "'a'"]
)


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = "+ - * // / % ** << >> & | ^ == != < <= > >= and or"
    binary = st.sampled_from(operators.split())
    function = st.sampled_from(["min", "max", "ceil_div"])
    forms: list[tuple[str, list[st.SearchStrategy[str]]]] = [
        ("({} {} {})", [inner, binary, inner]),
        ("({} if {} else {})", [inner] * 3),
        ("({} <= {} < {})", [inner] * 3),
        ("({} in ({}, {}))", [inner] * 3),
        ("{}({}, {})", [function, inner, inner]),
        ("abs({})", [inner]),
        ("(not {})", [inner]),
        ("(-{})", [inner]),
    ]
    return st.one_of(
        st.tuples(*parts).map(lambda texts, form=form: form.format(*texts)) for form, parts in forms
    )


CONSTRAINTS = st.recursive(LEAVES, grow, max_leaves=6)
NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([0.25, -1.5, True, False]))


@settings(max_examples=250, deadline=None)
@example(names=["a"], constraints=["((a + 'row') and b)"], axes={"T": 0, "K": 0}, chunk=1)
@given(
    names=st.lists(st.sampled_from(list(PARAMETERS)), min_size=1, max_size=5, unique=True),
    constraints=st.lists(CONSTRAINTS, max_size=3),
    axes=st.fixed_dictionaries({"T": NUMBERS, "K": NUMBERS}),
    chunk=st.sampled_from([1, 7, 1000]),
)
def test_holds_exactly_what_evaluating_every_constraint_leaves(
    names: list[str], constraints: list[str], axes: dict[str, Value], chunk: int
) -> None:
    others = {name: PARAMETERS[name][0] for name in PARAMETERS if name not in names}
    space = make_space({name: PARAMETERS[name] for name in names}, *constraints)
    outer = {**axes, **others}
    enumeration.enumerate_rows.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enumeration, "_CHUNK", chunk)
        try:
            expected = by_evaluation(space, outer)
        except ExpressionError:
            with pytest.raises(ExpressionError):
                valid_configs(space, outer)
            return
        pool = valid_configs(space, outer)
    assert configs_of(pool) == expected
    assert all(pool.index(pool[i]) == i for i in range(len(pool)))


class TestOrderAndAccess:
    def test_configs_come_in_the_order_of_the_file_with_the_last_parameter_fastest(self) -> None:
        pool = valid_configs(make_space({"b": [2, 1], "a": ["y", "x"]}), {})
        assert [str(config) for config in pool] == ["b=2 a=y", "b=2 a=x", "b=1 a=y", "b=1 a=x"]

    def test_encoded_rows_are_value_indices_and_cannot_be_written(self) -> None:
        pool = valid_configs(make_space({"b": [2, 1], "a": [8, 16, 32]}, "a // b >= 16"), {})
        assert pool.encoded.tolist() == [[0, 2], [1, 1], [1, 2]]
        with pytest.raises(ValueError, match="read-only"):
            pool.encoded[0, 0] = 1

    def test_a_config_is_found_whatever_the_order_of_its_names(self) -> None:
        pool = valid_configs(make_space({"a": [1, 2], "b": [1, 2]}, "a != b"), {})
        assert Config.of({"b": 1, "a": 2}) in pool
        assert pool.index({"b": 1, "a": 2}) == 1

    @pytest.mark.parametrize("config", [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 9}, {"x": 1}])
    def test_other_configs_are_not_in_it(self, config: dict[str, Value]) -> None:
        pool = valid_configs(make_space({"a": [1, 2], "b": [1, 2]}, "a != b"), {})
        assert config not in pool
        with pytest.raises(ValueError, match="not a valid config"):
            pool.index(config)

    def test_many_parameters_do_not_overflow_anything(self) -> None:
        names = [f"p{i}" for i in range(70)]
        space = make_space({name: [0, 1] for name in names}, *(f"{n} == 1" for n in names[2:]))
        pool = valid_configs(space, {})
        assert len(pool) == 4
        assert pool.index(pool[3]) == 3

    def test_no_parameters_is_one_empty_config(self) -> None:
        pool = valid_configs(make_space({}, "T > 1"), {"T": 2})
        assert [dict(config) for config in pool] == [{}]


class TestEmptyPools:
    def test_a_constraint_on_the_workload_alone_is_named(self) -> None:
        space = make_space({"a": [1, 2]}, "a > 0", "T % 2 == 0")
        pool = valid_configs(space, {"T": 3})
        assert len(pool) == 0
        assert pool.emptied_by is space.constraints[1]

    def test_a_constraint_that_excludes_every_value_is_named(self) -> None:
        space = make_space({"a": [1, 2], "b": [1, 2]}, "a >= b", "a * b > K")
        assert valid_configs(space, {"K": 3}).emptied_by is None
        assert valid_configs(space, {"K": 4}).emptied_by is space.constraints[1]

    def test_constraints_that_only_together_exclude_everything_name_none(self) -> None:
        pool = valid_configs(make_space({"a": [1, 2]}, "a > 1", "a < 2"), {})
        assert len(pool) == 0
        assert pool.emptied_by is None

    def test_a_parameter_without_values_leaves_nothing(self) -> None:
        assert len(valid_configs(make_space({"a": [1], "b": []}, "a == 1"), {})) == 0


class TestFailingConstraints:
    @pytest.mark.parametrize("guard_first", [True, False])
    def test_another_constraint_guards_it_in_either_order(self, guard_first: bool) -> None:
        texts = ["b != 0", "a % b == 0"]
        space = make_space({"a": [4, 3], "b": [2, 0]}, *(texts if guard_first else texts[::-1]))
        assert [str(config) for config in valid_configs(space, {})] == ["a=4 b=2"]

    @pytest.mark.parametrize(
        ("constraint", "message"),
        [
            ("a % b == 0", r"`a % b == 0`.*a=4 b=0"),
            ("c * a == 'xx'", "arithmetic on text"),
            ("a < U", "undefined name 'U'"),
            ("T % K == 0", "T % K"),
        ],
    )
    def test_the_error_names_the_constraint_and_the_values(
        self, constraint: str, message: str
    ) -> None:
        space = make_space({"a": [4, 8], "b": [2, 0], "c": ["x", "y"]}, constraint)
        with pytest.raises(ExpressionError, match=message):
            valid_configs(space, {"T": 1, "K": 0})


class TestTraps:
    def test_a_workload_can_give_text(self) -> None:
        space = make_space({"a": ["row", "column"]}, "a == layout")
        assert [str(c) for c in valid_configs(space, {"layout": "column"})] == ["a=column"]

    def test_texts_that_differ_in_spaces_are_different(self) -> None:
        space = make_space({"a": ["x y", "xy", "z"]}, "a != 'x y'", "a != 'xy'")
        assert [str(config) for config in valid_configs(space, {})] == ["a=z"]

    def test_equal_looking_domains_do_not_share_a_result(self) -> None:
        numbers = valid_configs(make_space({"a": [0, 1]}, "a == 1"), {})
        switches = valid_configs(make_space({"a": [False, True]}, "a == 1"), {})
        assert numbers[0]["a"] is not True
        assert switches[0]["a"] is True

    def test_parameters_may_be_named_like_anything(self) -> None:
        space = make_space(
            {"max": [1, 2], "lambda_": [3], "block_size_x": [2048]}, "max(max, 2) > 1"
        )
        assert len(valid_configs(space, {})) == 2

    def test_equal_values_are_refused(self) -> None:
        with pytest.raises(SpaceError, match="equal values 1 and true"):
            valid_configs(make_space({"a": [1, True]}), {})


class TestNeighbours:
    SPACE = make_space(
        {"a": [1, 2, 4], "b": [False, True], "c": ["x", "y", "z"]},
        "b or a < 4",
        "a != 2 or c != 'y'",
    )

    def test_they_are_the_valid_configs_with_one_other_value(self) -> None:
        pool = valid_configs(self.SPACE, {})
        for index, config in enumerate(pool):
            apart = [sum(config[name] != other[name] for name in config) for other in pool]
            expected = [i for i, count in enumerate(apart) if count == 1]
            assert sorted(pool.neighbours(index).tolist()) == expected

    def test_they_come_in_the_order_of_the_parameters_and_their_values(self) -> None:
        pool = valid_configs(self.SPACE, {})
        start = pool.index({"a": 2, "b": True, "c": "x"})
        assert [str(pool[i]) for i in pool.neighbours(start)] == [
            "a=1 b=true c=x",
            "a=4 b=true c=x",
            "a=2 b=false c=x",
            "a=2 b=true c=z",
        ]

    def test_what_constraints_tie_changes_together(self) -> None:
        parameters = {"warps": [4, 8], "down": [16, 32, 64], "stages": [2, 3], "up": [64, 32, 16]}
        pool = valid_configs(make_space(parameters, "up == down", "stages == 2 or up < 64"), {})
        start = pool.index({"warps": 4, "down": 16, "stages": 3, "up": 16})
        assert [str(pool[i]) for i in pool.neighbours(start)] == [
            "warps=8 down=16 stages=3 up=16",
            "warps=4 down=32 stages=3 up=32",
            "warps=4 down=16 stages=2 up=16",
        ]

    def test_what_is_tied_in_some_configs_alone_is_free(self) -> None:
        pool = valid_configs(make_space({"a": [1, 2], "b": [1, 2]}, "a == b or a == 1"), {})
        near = [str(pool[i]) for i in pool.neighbours(pool.index({"a": 1, "b": 1}))]
        assert near == ["a=1 b=2"]

    def test_a_config_without_any_has_none(self) -> None:
        pool = valid_configs(make_space({"a": [1, 2], "b": [1, 2]}, "a + b == 2"), {})
        assert pool.neighbours(0).tolist() == []
        assert valid_configs(make_space({}), {}).neighbours(0).tolist() == []


class TestPrune:
    SPACE = replace(
        make_space({"a": [1, 2, 4], "b": [1, 2]}, "a != 4 or b == 1"),
        prune=(Expression.parse("a > 1"), Expression.parse("b == 1 or T > 8")),
    )

    def test_no_search_proposes_what_it_leaves_out(self) -> None:
        assert [str(c) for c in valid_configs(self.SPACE, {"T": 1})] == ["a=2 b=1", "a=4 b=1"]
        assert len(valid_configs(self.SPACE, {"T": 9})) == 3

    def test_without_it_all_that_the_constraints_allow_is_there(self) -> None:
        assert len(valid_configs(self.SPACE.unpruned, {"T": 1})) == 5

    @pytest.mark.parametrize(
        ("named", "found"),
        [({"a": 1, "b": 1}, True), ({"a": 2, "b": 2}, False), ({"a": 1, "b": 2}, False)],
        ids=["by its parameters", "by the workload", "by both"],
    )
    def test_a_config_that_the_space_names_is_there_unless_the_workload_forbids(
        self, named: dict[str, Value], found: bool
    ) -> None:
        for space in (
            replace(self.SPACE, default=Config.of(named)),
            replace(self.SPACE, suggestions=(Config.of(named),)),
        ):
            pool = valid_configs(space, {"T": 1})
            assert (named in pool) is found
            assert len(pool) == 2 + found

    def test_a_named_config_that_breaks_a_constraint_is_not(self) -> None:
        space = replace(self.SPACE, default=Config.of({"a": 4, "b": 2}))
        assert space.default not in valid_configs(space, {"T": 9})

    def test_what_leaves_nothing_is_told(self) -> None:
        space = replace(self.SPACE, prune=(Expression.parse("a > 4"),))
        pool = valid_configs(space, {"T": 1})
        assert not len(pool)
        assert pool.emptied_by is space.prune[0]

    def test_a_sampled_pool_keeps_to_it_and_takes_up_what_is_named(self) -> None:
        many = make_space({f"p{i}": range(10) for i in range(12)})
        named = Config.of({f"p{i}": 0 for i in range(12)})
        space = replace(many, prune=(Expression.parse("p0 > 0"),), default=named)
        pool = valid_configs(space, {})
        assert pool.sampled
        assert [config for config in pool if config["p0"] == 0] == [named]


def test_a_pool_takes_up_what_somebody_vouches_for_once() -> None:
    pool = valid_configs(make_space({"a": [1, 2, 4]}, "a == 2"), {})
    pool.with_also([{"a": 4}, {"a": 2}, {"a": 4}, {"a": 3}])
    assert [str(config) for config in pool] == ["a=2", "a=4"]
    assert pool.index({"a": 4}) == 1


def test_a_restricted_pool_knows_how_many_there_were() -> None:
    pool = valid_configs(make_space({"a": [1, 2, 3, 4]}, "a > 1"), {})
    few = pool.restricted([Config.of({"a": 1}), Config.of({"a": 3})])
    assert [config["a"] for config in few] == [3]
    assert (pool.estimated_whole, few.estimated_whole) == (3, 3)
