"""`invariant`: one class of configs for all numbers of rows, the one that costs least over them."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from tests.support.simulated_device import H200_LIKE, SimulatedDevice
from tuner.app.record import record
from tuner.app.run import tune
from tuner.app.verify import Verification
from tuner.device.base import Outcome, device_names
from tuner.device.group import group_of
from tuner.device.recorded.recording import RecordedDevice, save_recording
from tuner.dispatch.table import SessionDispatch, SetSelection
from tuner.model.errors import DeviceError, KernelError
from tuner.model.kernel import Workload
from tuner.model.trial import Correctness, Status
from tuner.report.data import from_session
from tuner.report.sections.bits import bits_json, bits_lines
from tuner.search.pool import Pool
from tuner.tuning.evaluator import Candidates
from tuner.tuning.keep_bits import cost_of, group_classes, list_class_members
from tuner.tuning.verification import BITS, ROWS

SMALL, LARGE = Workload.of({"N": 1000}), Workload.of({"N": 100_000})
NUMBERS = device_names(H200_LIKE.limits, H200_LIKE.multiprocessors)


def rows_of(program) -> int:
    return program.workload.values["N"]


def faster_with_few_items_on_few_rows(program) -> float:
    """Most items cost least over both sizes, and one item on few rows alone."""
    items = 1 if program.config is None else program.config["items"]
    if rows_of(program) < 50_000:
        return {1: 10.0, 2: 12.0, 4: 13.0, 8: 11.0}[items]
    return {1: 40.0, 2: 30.0, 4: 24.0, 8: 20.0}[items]


class RowsDevice(SimulatedDevice):
    """The bits depend on the items; `bits_of` tells others, of a program and a seed."""

    capabilities = SimulatedDevice.capabilities | {"bits"}

    def __init__(self, answer=faster_with_few_items_on_few_rows, bits_of=lambda *_: "") -> None:
        super().__init__(answer)
        self.bits_of, self.looked = bits_of, []

    def run(self, program, **options):
        outcome = super().run(program, **options)
        if outcome.correctness is None:
            return outcome
        return replace(outcome, correctness=self.bits(program).correctness)

    def bits(self, program, seed=None):
        self.looked.append((program.workload, program.config, seed))
        items = 1 if program.config is None else program.config["items"]
        bits = f"{items}{self.bits_of(program, seed)}"
        if "!" in bits:
            return Outcome(Status.NOT_INVARIANT, "row 1 of 8 gives other bits")
        return Outcome(Status.CORRECT, correctness=Correctness(True, ("normal",), bits=bits))


@pytest.fixture
def space(project):
    """A space whose rows are to be invariant."""
    path = project / "scale.yaml"
    path.write_text(path.read_text() + "invariant: {N: [out]}\n")
    return path


@pytest.fixture
def run(space, make_plan, make_session, compiler, listener):
    """Tune; give what `of` reads of the session then."""

    def run(device, of=lambda session: session.results(), **changes):
        plan = make_plan(**{"trials": 20, "searcher": "exhaustive", **changes})
        with make_session(plan) as session:
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            return of(session)

    return run


def test_the_class_that_costs_least_over_all_sizes_serves_them(run):
    results = run(RowsDevice())
    assert len(results) == 3
    assert {one.config["items"] for one in results} == {8}


@pytest.mark.parametrize("said", [False, True])
def test_parameters_that_are_said_to_decide_bits_part_classes_that_no_run_shows(run, space, said):
    """All configs make the same bits; of 32 threads is the fastest on few rows, of 64 on many."""

    def threads(program):
        few = rows_of(program) < 50_000
        return 10.0 + abs(program.launches[0].threads - (32 if few else 64)) * (1 if few else 2)

    class Narrow(RowsDevice):
        def bits(self, program, seed=None):
            kinds = ("normal",)
            return Outcome(Status.CORRECT, correctness=Correctness(True, kinds, bits="5a"))

    if said:
        space.write_text(space.read_text().replace("[out]}", "[out], by: [block]}"))
    data = run(Narrow(threads), from_session, workloads=(SMALL, LARGE))
    assert {one.config["block"] for one in data.results} == ({64} if said else {32, 64})
    assert {*data.kept_rows.values()} == {"5a, block=64" if said else "5a"}
    assert bits_lines(data)[-1].endswith("with block (72), items (54) no pair of trials differs")


def test_what_runs_show_beyond_them_is_told(run, space):
    space.write_text(space.read_text().replace("[out]}", "[out], by: [block]}"))
    last = bits_lines(run(RowsDevice(), from_session))[-1]
    assert "bits differ with items; `by` of the search space does not name items; with" in last


def test_what_it_costs_is_said_of_all_sizes(run):
    device = RowsDevice()
    data = run(device, from_session)
    assert data.kept_rows.keys() == {"N=1000", "N=100000", "N=3000"}
    first, *lines = bits_lines(data)
    assert first == "what reproducibility costs here: 4.9%; most on N=1000: 10.0%"
    assert lines[0].startswith("N=1000: 19 configs in 4 classes; 4 in the chosen class")
    assert bits_json(data)["rows_kept"] is True
    assert bits_json(data)["cost"] == pytest.approx(0.0488, abs=1e-4)
    counts = data.counts()
    assert counts[Status.OTHER_BITS] == 2 * 15


def test_it_costs_what_a_config_would_be_faster_by_whose_rows_vary(run):
    def bits_of(program, _):
        varies = program.config is not None and program.config["items"] == 8
        return "!" if varies else ""

    def of(session):
        trials = session.trials()
        return from_session(session), [t for t in trials if t.status is Status.NOT_INVARIANT]

    class Timed(RowsDevice):
        def run(self, program, **options):
            outcome = SimulatedDevice.run(self, program, **options)
            return replace(self.bits(program), measurement=outcome.measurement)

    data, varying = run(Timed(bits_of=bits_of), of)
    assert {one.config["items"] for one in varying} == {8}
    # 13 us and 24 us are left of 10 and 20: two sizes, as the search has timed them.
    first, second, *_ = bits_lines(data)
    assert first == "what reproducibility costs here: 24.9%; most on N=1000: 30.0%"
    assert second.startswith("of 4 configs rows are not invariant, so of block=")


def test_no_config_is_judged_by_the_best_of_another_class(run):
    class Stopping(RowsDevice):
        def run(self, program, *, incumbent_us=None, **options):
            assert incumbent_us is None
            return super().run(program, **options)

    assert len(run(Stopping())) == 3


def test_a_search_that_tries_few_measures_the_chosen_class_at_every_size(run):
    def fewest_threads(program):
        return faster_with_few_items_on_few_rows(program) + program.launches[0].threads / 1e4

    results = run(RowsDevice(fewest_threads), trials=6, searcher="random")
    assert len({one.config["items"] for one in results}) == 1
    assert len(results) == 3


def test_sizes_that_nobody_lists_are_asked_and_have_a_status_of_their_own(run):
    def bits_of(program, _):
        odd = program.config is not None and program.config["items"] == 8
        return "x" if odd and rows_of(program) == 33 else ""

    trials = run(RowsDevice(bits_of=bits_of), lambda session: session.trials())
    wrong = [one for one in trials if one.config["items"] == 8]
    assert {one.status for one in wrong} == {Status.NOT_INVARIANT}
    assert {one.reason for one in wrong} == {
        f"a row gives other bits on N={n} than on N=33" for n in (1000, 100_000)
    }
    assert {one.config["items"] for one in trials if one.status is Status.CORRECT} == {4}


def test_a_config_is_asked_once_at_each_size(run):
    device = RowsDevice()
    run(device)
    asked = [(w, c) for w, c, seed in device.looked if c and seed is None and w.values["N"] in ROWS]
    assert len(asked) == len({*asked}) == 19 * len(ROWS)


def test_the_finals_look_again_at_rows_that_nobody_has_seen(run):
    def bits_of(program, seed):
        unlike = program.config is not None and program.config["block"] == 64
        return "x" if seed is not None and unlike and rows_of(program) in ROWS else ""

    def of(session):
        return session.results(), session.checks()

    def threads(program):
        return 10.0 + abs(program.launches[0].threads - 64)

    device = RowsDevice(threads, bits_of)
    results, checks = run(device, of)
    assert 64 not in {one.config["block"] for one in results}
    failed = [one for one in checks if one.kind == BITS and one.passed is False]
    assert {one.config["block"] for one in failed} == {64}
    assert "than the class that was chosen" in failed[0].reason
    drawn = {w.values["N"] for w, _, seed in device.looked if seed is not None}
    assert drawn > {1000, 100_000, 3000, *ROWS}
    before = len(device.looked)
    run(device, of)
    assert not [one for one in device.looked[before:] if one[2] is not None]


def test_a_config_whose_rows_vary_only_there_is_out_as_well(run):
    def bits_of(program, seed):
        return "!" if seed is not None and program.config["block"] == 32 else ""

    results, checks = run(RowsDevice(bits_of=bits_of), lambda s: (s.results(), s.checks()))
    assert 32 not in {one.config["block"] for one in results}
    assert any("not_invariant: on N=" in one.reason for one in checks)


def test_a_resumed_run_keeps_the_class_that_was_chosen(run):
    class Interrupted(RowsDevice):
        def compare(self, programs, **options):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted())
    results = run(RowsDevice(lambda program: 10.0))
    assert {one.config["items"] for one in results} == {8}


def test_a_class_serves_where_the_baseline_is_faster(run):
    def slow(program):
        return 5.0 if program.config is None else faster_with_few_items_on_few_rows(program)

    def of(session):
        return session.results(), SessionDispatch(session, SetSelection(), NUMBERS).table

    for changes in ({}, {"max_variants": 1}):
        results, table = run(RowsDevice(slow), of, **changes)
        assert not any(one.baseline_wins for one in results)
        assert table.keeps_rows
        assert all(entry.kernel is not None for entry in table.entries)
        assert None not in {kernel for _, kernel in table.points}
        assert not any(one.refuted for one in table.held_out)


def test_several_gpus_choose_one_class(run):
    members = {name: RowsDevice() for name in ("GPU 0", "GPU 1")}
    results = run(group_of(members))
    assert {one.config["items"] for one in results} == {8}
    assert all(one.looked for one in members.values())


def test_a_space_of_which_nothing_holds_is_one_error(run, space):
    with pytest.raises(KernelError, match="no config keeps it on N=1000, of") as raised:
        run(RowsDevice(bits_of=lambda program, _: "" if program.config is None else "!"))
    assert raised.value.path == space.resolve()
    assert raised.value.line == len(space.read_text().splitlines())
    assert raised.value.exit_code == 2


def test_a_device_that_tells_no_bits_says_so_before_anything_is_tried(run):
    device = SimulatedDevice(lambda program: 10.0)
    with pytest.raises(DeviceError, match="`invariant`: simulated H200 says times, but no bits"):
        run(device)
    assert {program.config for program in device.ran} == {None}


@pytest.fixture
def recorded(space, make_plan, make_session, compiler, listener, tmp_path):
    """Record a device's measurements and open them."""

    def recorded(device, surveyed=18):
        plan = make_plan()
        changes = {"workloads": plan.spec.tuned, "surveyed": surveyed}
        plan = replace(plan, config=replace(plan.config, **changes))
        with make_session(plan, "recording") as session:
            made = record(
                plan, session=session, device=device, compiler=compiler, listener=listener
            )
            assert bool(session.kept_rows) is (surveyed is None)
        path = tmp_path / "scale.json.xz"
        save_recording(made, path)
        return RecordedDevice(path, "scale", {})

    return recorded


@pytest.mark.parametrize("surveyed", [18, None])
def test_a_recording_keeps_digests_and_statuses(recorded, run, make_plan, surveyed, space):
    space.write_text(space.read_text().replace("[out]}", "[out], by: [items]}"))

    def bits_of(program, _):
        four = program.config is not None and program.config["items"] == 4
        return "x" if four and rows_of(program) == 8 else ""

    device = recorded(RowsDevice(bits_of=bits_of), surveyed)
    trials = run(device, lambda s: s.trials(), workloads=make_plan().spec.tuned)
    of = {n: {one.status for one in trials if one.config["items"] == n} for n in (1, 2, 4, 8)}
    assert of[4] == {Status.NOT_INVARIANT}
    assert of[8] == {Status.CORRECT}
    assert of[1] == of[2] == {Status.OTHER_BITS}
    assert {one.bits for one in trials if one.status is Status.CORRECT} == {"8, items=8"}


def test_a_recording_without_digests_says_what_to_do(recorded, run, make_plan, space):
    class Silent(SimulatedDevice):
        capabilities = SimulatedDevice.capabilities | {"bits"}

        def bits(self, program, seed=None):
            return Outcome(Status.CORRECT, correctness=Correctness(True, ("normal",)))

    device = recorded(Silent(faster_with_few_items_on_few_rows))
    with pytest.raises(DeviceError, match=r"holds no bits of .* `invariant` compares") as raised:
        run(device, workloads=make_plan().spec.tuned)
    assert "`tune record`" in raised.value.remedy


@pytest.mark.parametrize("rows", [False, True])
def test_digests_of_rows_and_of_whole_outputs_are_not_taken_for_each_other(
    recorded, run, make_plan, space, rows
):
    declared = space.read_text()
    without = declared.replace("invariant: {N: [out]}\n", "")
    space.write_text(without if rows else declared)
    device = recorded(RowsDevice())
    assert device.has_bits_of_rows is not rows
    space.write_text(declared if rows else without)
    what = "rows, which `invariant`" if rows else "whole outputs, which --keep-bits"
    with pytest.raises(DeviceError, match=f"holds no bits of {what} compares"):
        run(device, keep_bits=not rows, workloads=make_plan().spec.tuned)


def test_where_no_config_of_a_class_may_run_the_nearest_is_tried(run, make_plan):
    """Another size takes none of the class's configs, as of tiles for few rows."""
    trials, plan = run(RowsDevice(), lambda s: s.trials(), workloads=(SMALL,)), make_plan()
    of_one = [one for one in trials if one.config["items"] == 1 and one.workload == SMALL]
    other = Pool.of(plan.space.parameters, [{"block": b, "items": 8} for b in (64, 256)])
    named = [*list_class_members(of_one, {LARGE: other}, plan.spec, 2)]
    assert named
    assert {workload for workload, _ in named} == {LARGE}
    assert {config["items"] for _, config in named} == {8}
    assert other.nearest({"block": 256, "items": 1}) == other[1]
    assert Pool.of(plan.space.parameters, []).nearest({"block": 64, "items": 1}) is None


def test_a_class_of_a_mix_costs_what_all_its_sizes_take(run, make_plan):
    """Twice the best on a size that takes next to nothing costs next to nothing."""
    trials, spec = run(RowsDevice(), lambda s: s.trials()), make_plan().spec
    (problem,) = group_classes(trials, spec).values()
    for sizes in problem.values():
        rows = {w: of[0].time_us for w, of in sizes.items()}
        least = {w: min(of[w][0].time_us for of in problem.values() if w in of) for w in rows}
        assert cost_of(sizes, problem, spec, mix=True) == pytest.approx(
            log(sum(rows.values()) / sum(least.values()))
        )


def test_a_size_counts_by_its_weight(run, space):
    """One item is best on few rows, and costs twice the best on many."""
    text = space.read_text()
    weighted = text.replace("{N: 3000}]", "{N: 3000}], weight: 8 if N < 50000 else 1")
    assert weighted != text
    space.write_text(weighted)
    assert {one.config["items"] for one in run(RowsDevice())} == {1}


def test_classes_of_two_problems_have_nothing_to_do_with_each_other(make_plan, space, run):
    trials, spec = run(RowsDevice(), lambda s: s.trials()), make_plan().spec
    kept = [one for one in trials if one.status is Status.CORRECT]
    (problem,) = group_classes(kept, spec)
    assert problem == Workload(())
    apart = replace(spec, invariant=None)
    assert {*group_classes(kept, apart)} == {SMALL, LARGE}


def test_verifying_a_session_asks_for_the_class_again(run, make_plan, make_session, compiler):
    run(RowsDevice())
    plan = make_plan(trials=20, searcher="exhaustive")
    device = RowsDevice()
    with make_session(plan) as session:
        again = Verification(plan, session, Candidates(plan, compiler, device), repeat=True)
        again.try_near()
        again.keep_bits((one.workload, one.variant) for one in session.results())
    assert [one.passed for one in again.made] == [True] * 3
    assert {w.values["N"] for w, _, _ in device.looked} > {*ROWS}
