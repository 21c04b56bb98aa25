"""Recordings: what was measured on a device answers for it later."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tests.support.simulated_device import SimulatedDevice
from tuner.app.open import restrict_to_recording
from tuner.app.record import record, recording_plan
from tuner.app.run import tune
from tuner.compiler.base import AnsweringCompiler, CompileRequest
from tuner.device.group import group_of
from tuner.device.recorded.recording import RecordedDevice, load_recording, save_recording
from tuner.model.errors import DeviceError, OutOfMemory
from tuner.model.trial import Status
from tuner.tuning.search import TRANSFERRED_CONFIGS

TRIALS = 4


@pytest.fixture
def measured(make_plan, make_session, compiler, listener, tmp_path):
    """The plan, the device, and the file of all that was measured on it."""
    plan = recording_plan(make_plan())
    device = SimulatedDevice(lambda program: 10.0 + program.launches[0].threads / 64)
    with make_session(plan) as session:
        made = record(plan, session=session, device=device, compiler=compiler, listener=listener)
    path = tmp_path / "scale.json.xz"
    save_recording(made, path)
    return plan, device, path


@pytest.mark.parametrize(
    ("name", "device"), [("scale.cu", "cuda"), ("scale.hip", "hip"), ("scale.cl", "opencl")]
)
def test_auto_is_what_runs_the_kernel_and_never_a_recording(make_plan, name, device):
    plan = make_plan()
    written = replace(plan, spec=replace(plan.spec, source=plan.spec.source.with_name(name)))
    assert recording_plan(written).config.device == device


def test_every_config_of_every_workload_is_in_it(measured):
    plan, _, path = measured
    kept = load_recording(path)
    assert set(kept.workloads) == {workload.key for workload in plan.config.workloads}
    # 19 of the 20 combinations satisfy the constraint; the baseline is one more.
    assert {len(one.programs) for one in kept.workloads.values()} == {20}


def test_a_run_on_the_recording_finds_what_the_device_would_have_found(
    measured, make_plan, make_session, compiler, listener
):
    _, device, path = measured
    plan = make_plan()
    found = []
    for name, one in (("live", device), ("recorded", RecordedDevice(path, "scale", {}))):
        with make_session(plan, name) as session:
            results = tune(plan, session=session, device=one, compiler=compiler, listener=listener)
        found.append([(result.workload, result.tuned_us) for result in results])
    assert found[0] == [(w, pytest.approx(us)) for w, us in found[1]]
    assert RecordedDevice(path, "scale", {}).info.recorded


def test_a_part_of_a_space_is_what_a_search_tries_and_as_many_more(
    make_plan, make_session, compiler, listener, tmp_path
):
    plan = recording_plan(make_plan(trials=4))
    device = SimulatedDevice(lambda program: 10.0 + program.launches[0].threads / 64)
    with make_session(plan) as session:
        made = record(plan, session=session, device=device, compiler=compiler, listener=listener)
    for workload in made.workloads.values():
        assert workload.configs is not None
        assert 8 <= len(workload.configs) < 19
        assert len(workload.programs) == len(workload.configs) + 1
    path = tmp_path / "scale.json.xz"
    save_recording(made, path)

    answering = RecordedDevice(path, "scale", {})
    unused = FailingCompiler()
    asking = AnsweringCompiler(answering.compiled(), "recorded", unused)
    with make_session(make_plan(), "recorded") as session:
        results = tune(
            make_plan(), session=session, device=answering, compiler=asking, listener=listener
        )
        trials = session.trials()
    # No compiler, nothing that the recording lacks, and the best of what it has.
    assert {trial.status for trial in trials} == {Status.CORRECT}
    for result in results:
        known = made.workloads[result.workload.key].programs.values()
        assert result.tuned_us <= 1.01 * min(p.outcome().measurement.median_us for p in known)


@pytest.mark.parametrize("trials", [None, TRIALS])
def test_none_is_made_without_a_workload_whose_search_found_no_memory(
    make_plan, make_session, compiler, listener, trials
):
    class Narrow(SimulatedDevice):
        def run(self, program, **options):
            if program.workload.key == "N=1000" and len(self.ran) > 6:
                raise OutOfMemory("not enough memory for N=1000", "N=1000")
            return super().run(program, **options)

    def fast(program) -> float:
        return 10.0 + program.launches[0].threads / 64

    plan = recording_plan(make_plan(trials=trials))
    of = {"compiler": compiler, "listener": listener}
    with make_session(plan) as session:
        with pytest.raises(DeviceError, match="without N=1000: not enough memory") as raised:
            record(plan, session=session, device=Narrow(fast), **of)
        assert f"--resume {session.directory}" in raised.value.remedy
        made = record(plan, session=session, device=SimulatedDevice(fast), **of)
    fewest = 20 if trials is None else 2 * trials + 1
    assert {len(one.programs) >= fewest for one in made.workloads.values()} == {True}


def test_a_part_is_measured_on_all_members_of_a_group_at_once(
    make_plan, make_session, compiler, listener
):
    class Meeting(SimulatedDevice):
        """Wait for the other member in the first trial that no search has tried."""

        def __init__(self) -> None:
            super().__init__(lambda program: 10.0 + program.launches[0].threads / 64)
            self.trials, self.met = 0, False

        def run(self, program, *, full_verification=False, **options):
            if not full_verification:
                self.trials += 1
                if self.trials > TRIALS + TRANSFERRED_CONFIGS and not self.met:
                    meeting.wait(20.0)
                    self.met = True
            return super().run(program, full_verification=full_verification, **options)

    meeting = threading.Barrier(2)
    plan = recording_plan(make_plan(trials=TRIALS))
    members = [Meeting(), Meeting()]
    group = group_of({f"GPU {number}": one for number, one in enumerate(members)})
    with make_session(plan) as session:
        made = record(plan, session=session, device=group, compiler=compiler, listener=listener)
    assert all(one.met for one in members)
    assert made.device.environment["recorded_members"] == "2"
    assert all(len(one.configs or ()) >= 2 * TRIALS for one in made.workloads.values())


def test_a_source_that_is_in_no_recording_is_compiled(compiler):
    request = CompileRequest('extern "C" __global__ void f() {}', ("f",), "sm_90a")
    asked = AnsweringCompiler({}, "recorded", compiler).submit(request)
    assert asked.result().cubin == compiler.submit(request).result().cubin


class FailingCompiler:
    """A compiler that nobody may ask."""

    version = "none"

    def submit(self, request):
        raise AssertionError("was asked to compile")

    def close(self):
        """Nothing to end."""


@pytest.mark.parametrize("lacking", [1, 2])
def test_a_run_leaves_out_what_the_recording_lacks_and_says_so(
    measured, make_plan, tmp_path, lacking
):
    _, _, path = measured
    plan = make_plan()
    out, held = plan.config.workloads[:lacking], plan.config.workloads[lacking:]
    kept = load_recording(path)
    part = kept.model_copy(update={"workloads": {one.key: kept.workloads[one.key] for one in held}})
    save_recording(part, tmp_path / "part.json.xz")
    said: list[str] = []

    changed = restrict_to_recording(
        plan, RecordedDevice(tmp_path / "part.json.xz", "scale", {}), said.append
    )

    assert changed.config.workloads == held
    # Whichever are fewer.
    named = f", not {out[0].key}" if lacking == 1 else f": {held[0].key}"
    assert said == [f"the recording holds {len(held)} of the space's 3 workloads{named}"]
    assert restrict_to_recording(plan, RecordedDevice(path, "scale", {}), said.append) is plan
    assert len(said) == 1
