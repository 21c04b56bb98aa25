"""--keep-bits: only what has the bits of the default config may win."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.record import record
from tuner.app.run import tune
from tuner.device.base import Outcome
from tuner.device.group import group_of
from tuner.device.recorded.recording import RecordedDevice, save_recording
from tuner.model.config import Config
from tuner.model.errors import DeviceError, KernelError, SpaceError
from tuner.model.trial import INITIAL, Correctness, Status, Variant
from tuner.tuning.keep_bits import require_bits
from tuner.tuning.verification import BITS
from tuner.tuning.warm_start import _remembered_configs

DEFAULT = Config.of({"block": 128, "items": 1})


class BitsDevice(SimulatedDevice):
    """The bits depend on the items, or there are none; the fewest threads are the fastest.

    `unlike` are the blocks whose bits are others on inputs that no trial has seen.
    """

    capabilities = SimulatedDevice.capabilities | {"bits"}

    def __init__(
        self,
        answer=lambda program: 10.0 + program.launches[0].threads / 64,
        *,
        unlike: frozenset[int] = frozenset(),
        silent: bool = False,
    ) -> None:
        super().__init__(answer)
        self.unlike, self.silent = unlike, silent
        self.compared = []

    def run(self, program, **options):
        outcome = super().run(program, **options)
        if outcome.correctness is None or self.silent:
            return outcome
        items = 1 if program.config is None else program.config["items"]
        return replace(outcome, correctness=replace(outcome.correctness, bits=f"bits{items}"))

    def bits(self, program, seed=None):
        self.compared.append(program.workload)
        bits = f"{program.workload.key}-{seed}-{program.config['block'] in self.unlike}"
        return Outcome(Status.CORRECT, correctness=Correctness(True, ("x3",), bits=bits))


def by_items(program) -> float:
    return 20.0 - (program.config or DEFAULT)["items"]


@pytest.fixture
def run(make_plan, make_session, compiler, listener):
    """Tune with bits kept; give the plan and what the session then holds."""

    def run(device, **changes):
        plan = make_plan(**{"keep_bits": True, **changes})
        with make_session(plan) as session:
            tune(plan, session=session, device=device, compiler=compiler, listener=listener)
            return session.results(), session.trials(), session.checks()

    return run


def test_only_configs_with_the_defaults_bits_win_however_fast_others_are(run):
    results, trials, _ = run(BitsDevice(by_items))
    assert len(results) == 3, "the held-out one too"
    assert {one.config["items"] for one in results} == {1}
    others = [trial for trial in trials if trial.config["items"] > 1]
    assert {trial.status for trial in others} == {Status.OTHER_BITS}
    assert all(one.time_us is None and one.measurement is not None for one in others)
    assert others[0].reason == "gives other bits than the default config"


def test_several_gpus_keep_them_together(run):
    members = {name: BitsDevice(by_items) for name in ("GPU 0", "GPU 1")}
    results, _, checks = run(group_of(members))
    assert len(results) == 3
    assert {one.config["items"] for one in results} == {1}
    assert {check.kind for check in checks} == {BITS}
    assert all(one.compared for one in members.values())


def test_what_was_tuned_says_so(make_session, make_plan):
    for keep_bits in (True, False):
        name = f"kept-{keep_bits}"
        plan = make_plan(keep_bits=keep_bits)
        with make_session(plan, name) as session:
            path = session.write_variant(plan.tuned[0], Variant(INITIAL, DEFAULT), "source")
        first = path.read_text().splitlines()[0]
        assert first.endswith(", with the bits of the default config") is keep_bits


def test_without_the_option_the_fastest_wins_and_its_bits_are_known(run):
    results, trials, _ = run(BitsDevice(by_items), keep_bits=False)
    assert {one.config["items"] for one in results} == {8}
    assert {one.status for one in trials} == {Status.CORRECT}
    assert {one.correctness.bits for one in trials} == {f"bits{n}" for n in (1, 2, 4, 8)}


def test_a_finalist_with_other_bits_on_other_inputs_gives_way(run, make_session, make_plan):
    device = BitsDevice(unlike=frozenset({32}))
    results, _, checks = run(device)
    assert {one.config["block"] for one in results} == {64}
    failed = [check for check in checks if check.passed is False]
    assert {(check.kind, check.config["block"]) for check in failed} == {(BITS, 32)}
    assert failed[0].reason.startswith("on N=")
    assert "with inputs 'x3' (seed " in failed[0].reason
    assert failed[0].reason.endswith("gives other bits than the default config")
    compared = len(device.compared)
    run(device)
    assert len(device.compared) == compared, "a resumed run repeats nothing"
    with make_session(make_plan(keep_bits=True)) as session:
        known = _remembered_configs(session, "initial", session.results()[0].workload)
    assert Status.INCORRECT not in {one.status for one in known}, "it is no fault for others"


def test_the_default_wins_where_no_other_keeps_its_bits_on_every_input(run):
    results, _, _ = run(BitsDevice(unlike=frozenset({32, 64, 256, 512})))
    tuned = [one for one in results if not one.workload.held_out]
    assert {one.config["block"] for one in tuned} == {128}


def test_edge_cases_are_compared_too(run, project):
    space = project / "scale.yaml"
    declared = "held_out: [{N: 3000}], edge_cases: [{N: 127}]}"
    space.write_text(space.read_text().replace("held_out: [{N: 3000}]}", declared))
    device = BitsDevice()
    _, _, checks = run(device)
    assert {one.values["N"] for one in device.compared} == {1000, 100_000, 3000, 127}
    assert {check.kind for check in checks} == {"edge_cases", BITS}


def test_a_default_that_is_not_right_is_no_model(run):
    device = BitsDevice(lambda p: 9.0 if p.config is None else Status.INCORRECT)
    with pytest.raises(KernelError, match=r"the default config \(block=128 items=1\) is no model"):
        run(device)


def test_a_device_that_tells_no_bits_says_so(run):
    with pytest.raises(DeviceError, match="simulated H200 says times, but no bits of outputs"):
        run(BitsDevice(silent=True))


def test_a_space_has_to_say_whose_bits(make_plan):
    plan = make_plan()
    with pytest.raises(SpaceError, match="the space has none") as raised:
        require_bits(plan.spec, replace(plan.space, default=None))
    assert raised.value.path == plan.spec.path
    assert "default: {" in raised.value.remedy
    first, *others = plan.spec.arguments
    varying = replace(plan.spec, arguments=(replace(first, deterministic=False), *others))
    with pytest.raises(SpaceError, match="the bits of out may differ from call to call"):
        require_bits(varying, plan.space)
    assert require_bits(plan.spec, plan.space) == DEFAULT


@pytest.fixture
def recorded(make_plan, make_session, compiler, listener, tmp_path):
    """Record a device's measurements and open them."""

    def recorded(device):
        plan = make_plan()
        plan = replace(plan, config=replace(plan.config, workloads=plan.spec.tuned))
        with make_session(plan, "recording") as session:
            made = record(
                plan, session=session, device=device, compiler=compiler, listener=listener
            )
        path = tmp_path / "scale.json.xz"
        save_recording(made, path)
        return RecordedDevice(path, "scale", {})

    return recorded


def test_a_recording_keeps_the_bits(recorded, run, make_plan):
    device = recorded(BitsDevice(by_items))
    workloads = make_plan().spec.tuned
    results, trials, _ = run(device, workloads=workloads)
    assert {one.config["items"] for one in results} == {1}
    assert {one.status for one in trials} == {Status.CORRECT, Status.OTHER_BITS}


def test_a_recording_without_bits_says_what_to_do(recorded, run, make_plan):
    device = recorded(BitsDevice(silent=True))
    with pytest.raises(DeviceError, match="holds no bits of the default config") as raised:
        run(device, workloads=make_plan().spec.tuned)
    assert raised.value.path == device.path
    assert "`tune record`" in raised.value.remedy
