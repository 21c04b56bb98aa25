"""Further checks of configs that may win: who fails one is out, and the next best wins."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.device.sizes import near_workloads
from tuner.model.config import Config
from tuner.model.errors import KernelError
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL, Status, Variant
from tuner.tuning.evaluator import Candidates, evaluator_of
from tuner.tuning.verification import COMPARE, EDGE_CASES, MACHINE_CODE, Verification, Watch

EDGE_CASES_WORKLOAD = Workload.of({"N": 127})


def by_block(program) -> float:
    return 10.0 + program.launches[0].threads / 64


def block_of(program) -> int:
    return program.launches[0].threads


class OddDevice(SimulatedDevice):
    """Fail the small blocks on the edge case, or once they have been compared."""

    def __init__(self, *, wrong_below: int = 0, faulty_below: int = 0) -> None:
        super().__init__(by_block)
        self.wrong_below, self.faulty_below = wrong_below, faulty_below
        self.verified = []

    def verify(self, program):
        self.verified.append((program.workload, program.source_key))
        if program.workload == EDGE_CASES_WORKLOAD and block_of(program) < self.wrong_below:
            return Outcome(Status.INCORRECT, "out[126] is 0, expected 1")
        return super().verify(program)

    def compare(self, programs, *, rounds):
        faults = ("is 0" if block_of(p) < self.faulty_below else "" for p in programs)
        return replace(super().compare(programs, rounds=rounds), faults=tuple(faults))


class Picky:
    """A tool that finds something in small blocks, at a line of the rendered source."""

    kind = "memcheck"

    def __init__(self, wrong_below: int) -> None:
        self.wrong_below = wrong_below
        self.watched = 0

    def watch(self, programs):
        self.watched += len(programs)
        return [
            Outcome(Status.INCORRECT, "kernel.cu(6): memcheck: invalid read")
            if block_of(program) < self.wrong_below
            else Outcome(Status.CORRECT)
            for program in programs
        ]

    def close(self) -> None: ...


@pytest.fixture
def plan(make_plan, project):
    space = project / "scale.yaml"
    declared = "held_out: [{N: 3000}], edge_cases: [{N: 127}]}"
    space.write_text(space.read_text().replace("held_out: [{N: 3000}]}", declared))
    return make_plan()


@pytest.fixture
def run(plan, compiler, listener):
    """Tune in a session; return the blocks that won, one a workload."""

    def run(session, device, tool=None, largest_bytes=1 << 30):
        evaluator = partial(evaluator_of, compiler=compiler, device=device)
        watches = [Watch(tool, evaluator, largest_bytes)] if tool else []
        options = {"compiler": compiler, "listener": listener, "watches": watches}
        results = tune(plan, session=session, device=device, **options)
        return [result.config["block"] for result in results]

    return run


def test_a_config_that_is_wrong_on_an_edge_case_does_not_win(plan, make_session, run):
    with make_session(plan) as session:
        assert set(run(session, OddDevice(wrong_below=64))) == {64}
        failed = [check for check in session.checks() if check.passed is False]
    assert {(check.kind, check.config["block"]) for check in failed} == {(EDGE_CASES, 32)}
    assert failed[0].reason == "out[126] is 0, expected 1"


def test_a_finalist_that_no_held_out_workload_has_room_for_fails_there_once(
    make_plan, make_session, project, compiler, listener
):
    space = project / "scale.yaml"
    block, asked = "block: [block]", 'block: [block], shared_memory: "100 * N if N == 3000 else 0"'
    space.write_text(asked.join(space.read_text().rsplit(block, 1)))
    plan = make_plan()
    (held_out,) = plan.held_out
    options = {"device": OddDevice(), "compiler": compiler, "listener": listener}
    with make_session(plan) as session:
        for _ in range(2):
            results = tune(plan, session=session, **options)
        assert {one.workload for one in results} == {*plan.tuned}
        assert not session.trials(workload=held_out)
        (trial,) = session.trials(workload=held_out, stage="finals")
        assert trial.status is Status.RESOURCE_LIMIT


def test_one_that_hangs_on_a_held_out_workload_serves_nowhere(plan, make_session, run):
    class Hanging(OddDevice):
        def run(self, program, **options):
            if program.workload.held_out and block_of(program) == 32:
                return Outcome(Status.TIMEOUT, "no answer within 10 s")
            return super().run(program, **options)

    with make_session(plan) as session:
        assert set(run(session, Hanging())) == {64}
        assert {one.workload for one in session.results()} == {*plan.tuned, *plan.held_out}
        assert run(session, Hanging()) == [64] * 3, "a resumed run finds the same"


class Together(OddDevice):
    """Verifies programs of a workload together, and finds these blocks wrong there."""

    capabilities = OddDevice.capabilities | {"verify_together"}

    def __init__(self, *wrong: int) -> None:
        super().__init__()
        self.wrong, self.together, self.in_full = wrong, [], []

    def run(self, program, *, incumbent_us=None, full_verification=False):
        if full_verification:
            self.in_full.append((program.workload, block_of(program)))
        return super().run(program, incumbent_us=incumbent_us, full_verification=full_verification)

    def verify_together(self, programs):
        self.together.append((programs[0].workload, tuple(map(block_of, programs))))
        wrong = Outcome(Status.INCORRECT, "out[0] is 0, expected 1")
        return [wrong if block_of(one) in self.wrong else self.verify(one) for one in programs]


def test_finalists_that_the_search_has_timed_are_verified_together_untimed(plan, make_session, run):
    device = Together(32)
    with make_session(plan) as session:
        assert set(run(session, device)) == {64}
        finals = session.trials(stage="finals")
        assert all(len(blocks) > 1 for _, blocks in device.together)
        # What was wrong on one workload is not tried on the other.
        for workload, expected in zip(plan.tuned, ({32, 64}, {64}), strict=True):
            blocks = {one for where, of in device.together if where == workload for one in of}
            known = {t.config["block"]: t for t in finals if t.workload == workload}
            assert blocks == known.keys() == expected
            assert all(trial.measurement is None for trial in known.values())
            assert known[64].correctness is not None
            assert 32 not in known or known[32].reason == "out[0] is 0, expected 1"
        tuned = [workload for workload, _ in device.in_full if not workload.held_out]
        assert tuned == list(plan.tuned), "the baseline alone is timed with all checks"
        (held_out,) = plan.held_out
        assert [t.measurement is None for t in finals if t.workload == held_out] == [False]
        before = len(device.together)
        run(session, device)
        assert len(device.together) == before, "a resumed run repeats nothing"


def test_edge_cases_of_finalists_are_begun_once(plan, make_session, run, monkeypatch):
    begun, made, start = [], set(), Verification._start

    def started(self, workload, variant):
        made.add(self)
        begun.append((workload, variant))
        return start(self, workload, variant)

    monkeypatch.setattr(Verification, "_start", started)
    with make_session(plan) as session:
        run(session, OddDevice())
        checks = [check for check in session.checks() if check.kind == EDGE_CASES]
    of_edges = [variant for workload, variant in begun if workload == EDGE_CASES_WORKLOAD]
    assert {check.variant for check in checks} <= set(of_edges)
    most = max(Counter(of_edges).values())
    assert most <= len(plan.tuned), "once where it may be a finalist"
    (verification,) = made
    assert not verification._begun, "what nobody asked for is forgotten"
    assert not verification._reading


def test_verdicts_are_kept_when_a_later_workload_is_interrupted(plan, make_session, compiler):
    class Interrupted(OddDevice):
        def verify(self, program):
            if program.workload == plan.tuned[1]:
                raise KeyboardInterrupt
            return super().verify(program)

    device = Interrupted()
    with make_session(plan) as session:
        candidates = Candidates(plan, compiler, device)
        verification = Verification(plan, session, candidates)
        one = Variant(INITIAL, Config.of({"block": 64, "items": 1}))
        with pytest.raises(KeyboardInterrupt):
            verification.verify((workload, one) for workload in plan.tuned)
        assert [check.workload for check in session.checks()] == [plan.tuned[0]]


def test_a_winner_that_a_tool_finds_fault_with_gives_way_everywhere(plan, make_session, run):
    device, tool = OddDevice(), Picky(wrong_below=64)
    with make_session(plan) as session:
        won = run(session, device, tool)
        assert won == [64] * len(plan.config.workloads), "the held-out one got another too"
        told = next(check.reason for check in session.checks() if check.passed is False)
        assert told.startswith(f"{plan.template.path}:6: memcheck"), "in the template's lines"
        watched = tool.watched
        run(session, device, tool)
        assert tool.watched == watched, "a resumed run repeats nothing"


def test_a_tool_is_spared_large_workloads(plan, make_session, run):
    with make_session(plan) as session:
        run(session, OddDevice(), Picky(wrong_below=0), largest_bytes=100_000)
        watched = {c.workload.values["N"] for c in session.checks() if c.kind == "memcheck"}
    assert watched == {127, 1000, 3000}


def test_a_finalist_that_is_wrong_after_the_comparison_does_not_win(plan, make_session, run):
    with make_session(plan) as session:
        assert set(run(session, OddDevice(faulty_below=64))) == {64}
        kinds = {check.kind for check in session.checks() if check.passed is False}
        assert all(v.config["block"] >= 64 for c in session.comparisons() for v in c.finalists)
    assert kinds == {COMPARE}


@pytest.mark.parametrize(
    ("faults", "said", "searched"),
    [
        ({"faulty_below": 256}, "once it has been timed", True),
        ({"wrong_below": 256}, "the baseline is wrong against its reference on N=127", False),
    ],
    ids=["after the comparison", "on an edge case"],
)
def test_a_baseline_that_is_wrong_is_the_users_mistake(
    plan, make_session, run, faults, said, searched
):
    with make_session(plan) as session:
        with pytest.raises(KernelError, match=said):
            run(session, OddDevice(**faults))
        assert bool(session.trials()) is searched


def test_repeating_asks_again_and_large_workloads_are_left_out(plan, make_session, compiler):
    device = OddDevice()
    candidates = Candidates(plan, compiler, device)
    config = plan.space.default
    pairs = [(workload, Variant(INITIAL, config)) for workload in plan.tuned]
    with make_session(plan) as session:
        for _ in range(2):
            verification = Verification(
                plan, session, candidates, repeat=True, largest_bytes=100_000
            )
            verification.verify(pairs)
            assert {check.passed for check in verification.made} == {True, None}
        assert len(device.verified) == 2
        Verification(plan, session, candidates).verify(pairs[:1])
        assert len(device.verified) == 2, "the session holds it"


def test_a_verdict_stands_where_its_workload_is_now_too_large(plan, make_session, compiler):
    device = OddDevice()
    candidates = Candidates(plan, compiler, device)
    pairs = [(plan.tuned[0], Variant(INITIAL, plan.space.default))]
    with make_session(plan) as session:
        Verification(plan, session, candidates).verify(pairs)
        later = Verification(plan, session, candidates, largest_bytes=1)
        later.verify(pairs)
        assert not later.made
        assert [check.passed for check in session.checks()] == [True]


def test_a_recording_is_asked_for_nothing(plan, make_session, compiler):
    device = OddDevice()
    device.capabilities = frozenset({"recording"})
    with make_session(plan) as session:
        verification = Verification(plan, session, Candidates(plan, compiler, device))
        verification.on_edge_cases([Variant(INITIAL, plan.space.default)])
        assert not session.checks()


PROGRAMMATIC = """
extern "C" __global__ void scale(float* out, const float* in, int N) {
  const int i = blockIdx.x * @{ block }@ + threadIdx.x;
//% if block < 64
  const float x = i < N ? in[i] : 0.0f;
  asm volatile("griddepcontrol.wait;" ::: "memory");
//% else
  asm volatile("griddepcontrol.wait;" ::: "memory");
  const float x = i < N ? in[i] : 0.0f;
//% endif
  if (i < N) out[i] = (@{ items }@ / @{ items }@) * 2.0f * x;
}
"""


@pytest.fixture
def programmatic(plan, make_plan, project):
    (project / "scale.cu.j2").write_text(PROGRAMMATIC)
    space = project / "scale.yaml"
    text = space.read_text().replace("block: [block]}]", "block: [block], pdl: true}]")
    # Reading the machine code of a config takes a second.
    text = text.replace("[32, 64, 128, 256, 512]", "[32, 64, 128]")
    space.write_text(text.replace("items: [1, 2, 4, 8]", "items: [1]"))
    return make_plan()


@pytest.fixture
def read(compiler, listener, make_session):
    """Tune a plan; return the blocks that won, and the checks of machine code."""

    def read(plan):
        options = {"compiler": compiler, "listener": listener, "device": SimulatedDevice(by_block)}
        with make_session(plan) as session:
            results = tune(plan, session=session, **options)
            checks = [check for check in session.checks() if check.kind == MACHINE_CODE]
        return {result.config["block"] for result in results}, checks

    return read


def test_a_config_that_reads_before_its_wait_does_not_win(programmatic, read):
    won, checks = read(programmatic)
    assert won == {64}
    failed = {check.config["block"]: check.reason for check in checks if check.passed is False}
    assert failed.keys() == {32}
    assert "LDG" in failed[32]
    assert {check.config["block"] for check in checks if check.passed} >= {64}


def test_machine_code_that_cannot_be_read_is_not_called_right(programmatic, read, monkeypatch):
    monkeypatch.setattr("tuner.analysis.waits.find_nvdisasm", lambda: None)
    _, checks = read(programmatic)
    assert {check.passed for check in checks} == {None}
    assert {check.reason for check in checks} == {
        "not read: nvdisasm was not found (pip install nvidia-cuda-nvdisasm)"
    }


def test_reads_before_the_wait_are_left_open_where_an_input_is_constant(programmatic, read):
    arguments = [
        replace(one, constant=one.role == "input" and not one.is_scalar)
        for one in programmatic.spec.arguments
    ]
    spec = replace(programmatic.spec, arguments=tuple(arguments))
    _, checks = read(replace(programmatic, spec=spec))
    left_open = {check.config["block"]: check.reason for check in checks if check.passed is None}
    assert left_open.keys() == {32}
    assert "reads before the wait: whether only of" in left_open[32]
    assert not [check for check in checks if check.passed is False]


def test_launches_that_are_not_programmatic_have_no_machine_code_read(plan, make_session, run):
    with make_session(plan) as session:
        run(session, OddDevice())
        assert MACHINE_CODE not in {check.kind for check in session.checks()}


def test_sizes_near_the_tuned_ones_are_edge_cases_where_the_baseline_is_right(
    make_plan, make_session, project, compiler, listener
):
    space = project / "scale.yaml"
    declared = "held_out: [{N: 3000}], edge_cases: near}"
    space.write_text(space.read_text().replace("held_out: [{N: 3000}]}", declared))
    plan = make_plan()
    near = near_workloads(plan.spec)
    refused = near[0]

    class Refusing(OddDevice):
        def verify(self, program):
            if program.workload == refused:
                return Outcome(Status.LAUNCH, "no such size")
            return super().verify(program)

    with make_session(plan) as session:
        tune(plan, session=session, device=Refusing(), compiler=compiler, listener=listener)
        made = {check.workload for check in session.checks() if check.kind == EDGE_CASES}
    assert plan.spec.edge_cases == ()
    assert made == {*near} - {refused} != set()


def test_a_baseline_that_may_take_too_long_is_still_not_wrong(plan, compiler):
    for status in (Status.TIMEOUT, Status.INCORRECT):
        device = SimulatedDevice(lambda program, status=status: status)
        evaluator = evaluator_of(plan, compiler, device)
        with pytest.raises(KernelError, match="the baseline"):
            evaluator.verify_baseline(plan.tuned[0])
        with nullcontext() if status is Status.TIMEOUT else pytest.raises(KernelError):
            evaluator.verify_baseline(plan.tuned[0], may_last=True)
