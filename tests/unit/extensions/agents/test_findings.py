"""What a search says, and what the constraints rule out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from feedback_samples import grid

from tuner.extensions.agents.findings import Observed, search_findings, value_costs
from tuner.model.expressions import Expression
from tuner.model.kernel import LaunchSpec, Workload
from tuner.model.trial import Finding, Occupancy, Status
from tuner.space.template import Template

FEW, MANY = Workload.of({"T": 1, "D": 64}), Workload.of({"T": 4096, "D": 64})


def told(findings: tuple[Finding, ...]) -> str:
    return "\n\n".join(
        f"{one.topic} (weight {one.weight:.3f}, value {one.value:.3g} {one.unit}, line {one.line}, "
        f"parameter {one.parameter or '-'})\n{one.text}\n{one.advice}"
        for one in findings
    )


def test_findings_of_a_real_space(silu, golden):
    found = search_findings(silu.space, silu.trials, silu.template)
    golden("search.txt", told(found))


def found_in(small, time_of, *, space=None):
    trials = {workload: grid(small, workload, time_of(workload)) for workload in (FEW, MANY)}
    findings = search_findings(space or small.space, trials, small.template)
    return {one.topic: one for one in findings}


def the_more_items_the_better(workload):
    return lambda block, items, fast: 10 + 4 / items + abs(block - 128) / 128


def test_a_value_that_wins_at_the_end_of_its_range_is_told_with_its_line(small):
    found = found_in(small, the_more_items_the_better)
    assert not found.keys() & {"dispatch"}, "sizes agree, and it is steep"
    edge = found["edge"]
    assert (edge.parameter, edge.value, edge.line) == ("items", 4, 2)
    assert edge.advice == "Add 8 to `items`."
    assert edge.weight == pytest.approx(1 - 11 / 12)


@pytest.mark.parametrize(
    "time_us",
    [
        pytest.param(lambda size, items: 10 + abs(items - 2), id="inside its range"),
        pytest.param(lambda size, items: 10 + items, id="a count of one"),
        pytest.param(lambda size, items: 10 - items / 100, id="hardly wins"),
        pytest.param(lambda size, items: 10 + abs(items - (4 if size == MANY else 2)),
                     id="on one of two workloads"),
    ],
)  # fmt: skip
def test_what_is_no_clear_edge_is_not_told(small, time_us):
    assert "edge" not in found_in(
        small, lambda size: lambda block, items, fast: time_us(size, items) + abs(block - 128)
    )


def test_a_constraint_that_forbids_the_next_value_is_named(small):
    space = replace(small.space, constraints=(Expression.parse("block * items <= D * 8"),))
    edge = found_in(small, the_more_items_the_better, space=space)["edge"]
    assert edge.advice == "Add 8 to `items`, and loosen `block * items <= D * 8`, which forbids it."


def test_no_value_is_told_with_which_a_block_has_too_many_threads(small):
    def launched(*block):
        return (LaunchSpec("k", (Expression.parse("D"),), tuple(map(Expression.parse, block))),)

    trials = {size: grid(small, size, the_more_items_the_better(size)) for size in (FEW, MANY)}
    asked = small.space, trials, small.template
    for launches, told in (
        (launched("items * 256"), False),
        (launched("items * 16", "items"), True),
        (launched("items * max_threads"), True),
    ):
        assert told == any(one.topic == "edge" for one in search_findings(*asked, launches))


def test_a_constraint_on_the_device_is_not_judged_without_one(small):
    space = replace(small.space, constraints=(Expression.parse("items <= max_threads // 256"),))
    assert found_in(small, the_more_items_the_better, space=space)["edge"].advice == (
        "Add 8 to `items`."
    )


def test_each_value_has_its_best_and_median_time_over_all_trials_and_its_failures(small):
    def time_of(block, items, fast):
        return None if items == 4 and fast else 10.0 * items + (block == 64)

    seen = [Observed.of(w, grid(small, w, time_of)) for w in (FEW, MANY)]
    told = dict(value_costs(small.space, seen, small.template))
    assert (
        told["items"] == "1 x1.00/1.00 of 16; 2 x2.00/2.00 of 16; 4 x4.00/4.00 of 16 (8 incorrect)"
    )
    assert told["block"].startswith("64 x1.10/2.10 of 12 (2 incorrect); 128 x1.00/2.00")
    assert told["fast"] == "false x1.00/2.00 of 24; true x1.00/1.55 of 24 (8 incorrect)"


def test_what_changes_nothing_is_named_once_and_has_no_figures(small):
    seen = [Observed.of(FEW, grid(small, FEW, lambda block, items, fast: 10.0 * items))]
    told = dict(value_costs(small.space, seen, small.template))
    assert told["block, fast"] == "all values are as fast"
    assert [*told] == ["items", "block, fast"]


@pytest.mark.parametrize(("limiter", "told"), [("warps", False), ("registers", True)])
def test_the_least_blocks_of_launch_bounds_are_told_where_registers_limit(small, limiter, told):
    text = "__global__ void __launch_bounds__(@{ block }@, @{ items }@) k() {}"
    template = Template.from_text(text, Path("t.cu.j2"))
    trials = [
        replace(trial, occupancy=Occupancy(1.0, 8, limiter))
        for trial in grid(small, FEW, lambda block, items, fast: 10.0 + block * items)
    ]
    costs = dict(value_costs(small.space, [Observed.of(FEW, trials)], template))
    assert costs["items"].startswith("1 x1.00" if told else "registers limit nothing")


def test_a_value_that_nobody_tried_costs_nothing_and_a_lone_one_is_not_told(small):
    trials = [small.trial(FEW, 9.0, block=64, items=items, fast=True) for items in (1, 2)]
    trials.append(small.trial(FEW, None, block=64, items=4, fast=True))
    (told,) = value_costs(small.space, [Observed.of(FEW, trials)], small.template)
    assert told == ("items", "1 x1.00/1.00 of 1; 2 x1.00/1.00 of 1; 4 of 1 (1 incorrect)")


def test_one_config_for_all_sizes_costs_and_the_axis_is_named(small):
    def time_of(workload):
        best = 512 if workload == MANY else 64
        return lambda block, items, fast: 10 + abs(block - best) / 128 + items + fast

    dispatch = found_in(small, time_of)["dispatch"]
    assert dispatch.parameter == "block"
    assert dispatch.value > 1.1
    assert "64 wins at T 1; 512 wins at T 4096" in dispatch.text


def test_wrong_results_come_first(small):
    def time_of(_):
        return lambda block, items, fast: None if items == 4 else 10 + block + items

    trials = {FEW: grid(small, FEW, time_of(FEW))}
    first, *_ = search_findings(small.space, trials, small.template)
    assert first.topic == "rejected"
    assert "8 of 24 tried configs compute wrong results" in first.text


def test_rows_that_vary_come_first_however_few_and_say_where(small):
    trials = list(grid(small, FEW, lambda block, items, fast: 10 + block + items))
    reason = "a row gives other bits on T=33 than on T=1"
    trials[0] = replace(trials[0], status=Status.NOT_INVARIANT, reason=reason, measurement=None)
    first, *_ = search_findings(small.space, {FEW: trials}, small.template)
    assert "1 of 24 tried configs give rows whose bits depend on how many there are" in first.text
    assert reason in first.text
    assert "without atomics" in first.advice


def test_reasons_that_differ_in_their_numbers_are_one_and_name_the_template_line(small):
    failed = [
        replace(
            small.trial(FEW, block=block, items=items, fast=False),
            status=Status.COMPILE,
            reason=f"t.cu.j2:3: error: {items} is too many",
        )
        for block in (64, 128)
        for items in (1, 2, 4)
    ]
    (finding,) = search_findings(small.space, {FEW: failed}, small.template)
    assert "6 of 6 tried configs do not compile, 6 of them for one reason" in finding.text
    assert finding.line == 3
    assert finding.value == 1.0


def test_few_rejections_of_a_limit_are_not_worth_telling(small):
    trials = list(grid(small, FEW, lambda block, items, fast: 10 + block + items))
    trials[0] = replace(trials[0], status=Status.RESOURCE_LIMIT, reason="spills", measurement=None)
    findings = search_findings(small.space, {FEW: trials}, small.template)
    assert "rejected" not in {one.topic for one in findings}


def test_four_timed_configs_say_nothing(small):
    trials = [small.trial(FEW, 10.0 * items, block=64, items=items, fast=True) for items in (1, 2)]
    trials += [small.trial(FEW, 9.0 * items, block=512, items=items, fast=True) for items in (1, 2)]
    assert search_findings(small.space, {FEW: trials}, small.template) == ()


def test_configs_that_were_stopped_early_do_not_count_as_timed(small):
    def stopped(trial):
        assert trial.measurement is not None
        return replace(trial, measurement=replace(trial.measurement, stopped_early=True))

    trials = [stopped(t) for t in grid(small, FEW, the_more_items_the_better(FEW))]
    assert search_findings(small.space, {FEW: trials}, small.template) == ()


def test_what_a_recording_does_not_have_is_not_a_rejection(small):
    missing = [
        replace(trial, status=Status.NOT_RECORDED, measurement=None)
        for trial in grid(small, FEW, the_more_items_the_better(FEW))
    ]
    assert search_findings(small.space, {FEW: missing}, small.template) == ()


def test_a_parameter_that_only_a_launch_uses_has_no_line(small):
    template = Template.from_text("//% set items = 2\n@{ block }@ @{ items }@\n", Path("t.cu.j2"))
    lines = [template.line_of(name) for name in ("block", "items", "fast")]
    assert lines == [2, None, None]
    trials = {FEW: grid(small, FEW, the_more_items_the_better(FEW))}
    found = search_findings(small.space, trials, template)
    assert {one.topic: one for one in found}["edge"].line is None
