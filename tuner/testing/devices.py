"""What every device does, for who writes one: derive from `DeviceContract` in a pytest module.

    class TestMine(DeviceContract):
        @pytest.fixture
        def device(self): ...      # an open device
        @pytest.fixture
        def working(self): ...     # programs of one workload, two or more, that it runs
        @pytest.fixture
        def failing(self): ...     # one of the same workload that fails, or is wrong

A device derives from `tuner.device.base.Device`, and names in `capabilities` what it can do besides
running, verifying and comparing. The suite tries what it names and asks it to refuse the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tuner.device.base import Capability, Device, Program
from tuner.model.errors import DeviceError
from tuner.model.hardware import limits_for
from tuner.model.trial import Status

# Asked of a device that lacks a capability, with a program.
REFUSED: Mapping[Capability, Callable[[Device, Program], object]] = {
    "bits": lambda device, program: device.bits(program),
    "rank": lambda device, program: device.rank([program] * 2, rounds=1),
    "recording": lambda device, _: device.recording,
    "compiler": lambda device, _: device.compiler(1),
    "callables": lambda device, _: device.call_compiler(1),
    "sanitizer": lambda device, _: device.watchers(),
    "counters": lambda device, _: device.counters(),
    "energy": lambda device, _: device.require_energy(),
}


class DeviceContract:
    """Subclasses give the fixtures `device`, `working` (two programs or more) and `failing`."""

    @pytest.mark.parametrize("asked", REFUSED)
    def test_what_it_cannot_do_is_an_error(
        self, device: Device, working: list[Program], asked: Capability
    ) -> None:
        if asked not in device.capabilities:
            with pytest.raises(DeviceError):
                REFUSED[asked](device, working[0])

    def test_it_names_hardware_that_is_known(self, device: Device) -> None:
        info = device.info
        assert info.name
        if info.own_limits is None:
            assert info.architecture.startswith(f"sm_{info.compute_capability[0]}")
            assert info.limits == limits_for(info.compute_capability)
        assert info.limits.warps_per_multiprocessor > 0
        assert min(info.multiprocessors, info.l2_bytes, info.streaming_gbps) > 0

    @pytest.mark.parametrize("full_verification", [False, True])
    def test_a_working_program_has_times(
        self, device: Device, working: list[Program], full_verification: bool
    ) -> None:
        for program in working:
            outcome = device.run(program, full_verification=full_verification)
            assert outcome.status is Status.CORRECT, outcome.reason
            assert outcome.measurement is not None
            assert all(time > 0 for time in outcome.measurement.times_us)
            assert outcome.measurement.calls_per_replay >= 1
            assert outcome.measurement.buffer_sets >= 1

    def test_a_failing_program_has_a_reason_and_no_time(
        self, device: Device, failing: Program
    ) -> None:
        outcome = device.run(failing)
        assert outcome.status is not Status.CORRECT
        assert outcome.reason
        assert outcome.measurement is None

    def test_a_failure_costs_only_itself(
        self, device: Device, working: list[Program], failing: Program
    ) -> None:
        statuses = [device.run(program).status for program in (working[0], failing, working[0])]
        assert [status is Status.CORRECT for status in statuses] == [True, False, True]

    def test_compared_programs_have_a_column_each(
        self, device: Device, working: list[Program]
    ) -> None:
        for program in working:
            device.run(program)
        rounds = device.compare(working, rounds=7)
        assert rounds.times_us
        assert {len(row) for row in rounds.times_us} == {len(working)}
        assert all(time > 0 for row in rounds.times_us for time in row)
        assert len(rounds.isolated_us) == len(working)

    def test_a_verdict_has_no_time(
        self, device: Device, working: list[Program], failing: Program
    ) -> None:
        asked = [*working, failing]
        outcomes = list(device.verify_together(asked))
        assert len(outcomes) == len(asked)
        outcomes += map(device.verify, asked)
        assert all(outcome.measurement is None for outcome in outcomes)
        right = [True] * len(working) + [False]
        if "verify" in device.capabilities:
            assert [outcome.status is Status.CORRECT for outcome in outcomes] == right * 2
        else:
            assert {outcome.status for outcome in outcomes} <= {Status.NOT_RECORDED}

    def test_a_program_makes_its_own_bits(self, device: Device, working: list[Program]) -> None:
        if "bits" in device.capabilities:
            outcomes = [device.bits(working[0], 7) for _ in range(2)]
            assert outcomes[0] == outcomes[1]
            assert outcomes[0].status is Status.CORRECT

    def test_a_recording_holds_what_it_answers(
        self, device: Device, working: list[Program]
    ) -> None:
        if "recording" in device.capabilities:
            assert device.recording.path.is_file()
            assert device.recording.created
            assert device.recording.holds(working[0].workload)

    def test_ranked_programs_have_a_time_each(self, device: Device, working: list[Program]) -> None:
        if "rank" in device.capabilities:
            rows = device.rank(working, rounds=4)
            assert [len(row) for row in rows] == [len(working)] * 4
            assert all(time is not None and time > 0 for row in rows for time in row)

    def test_a_comparison_with_a_failing_program_is_an_error(
        self, device: Device, working: list[Program], failing: Program
    ) -> None:
        device.run(working[0])
        with pytest.raises(DeviceError):
            device.compare([working[0], failing], rounds=7)
        assert device.run(working[0]).status is Status.CORRECT

    def test_an_incumbent_ends_nothing_but_the_sampling(
        self, device: Device, working: list[Program]
    ) -> None:
        assert device.run(working[0], incumbent_us=1e-3).status is Status.CORRECT
        assert device.run(working[0], incumbent_us=1e6).status is Status.CORRECT
