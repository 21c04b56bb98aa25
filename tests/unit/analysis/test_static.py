"""Profiles without counters, and with those that something counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulated_device import H200_LIKE
from tuner.analysis import sass
from tuner.analysis.base import Degree, ProfileSubject
from tuner.analysis.metrics import DURATION, counters_for, executed_mix
from tuner.analysis.sass import disassemble
from tuner.compiler.base import CompileRequest
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Counted, LaunchCounts, Program
from tuner.extensions.agents.profiling import Profiler
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Resources

SOURCE = """\
extern "C" __global__ void first(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x]; }
template <int N> __global__ void second(float* y) {
  y[threadIdx.x] *= N;
}
"""
LAUNCHES = tuple(Launch(name, (1, 1, 1), (32, 1, 1)) for name in ("second<2>", "first"))


@pytest.fixture(scope="module")
def subject(compiler: NvrtcPool) -> ProfileSubject:
    request = CompileRequest(SOURCE, ("first", "second<2>"), "sm_90a", ("-lineinfo",))
    result = compiler.submit(request).result(60)
    assert result.ok, result.error
    call = (*LAUNCHES, LAUNCHES[0])
    program = Program("key", Workload.of({"N": 32}), call, result.cubin, result.lowered)
    return ProfileSubject(program, (11, 12, 13, 14), Resources(8), None, 5.0, 256)


class FakeCounters:
    """Counters of which a test says what they give."""

    def __init__(self, counted: Counted, refusal: str = "") -> None:
        self.counted, self.why = counted, refusal
        self.asked: Sequence[str] = ()
        self.closed = False

    def refusal(self) -> str:
        return self.why

    def count(self, program: Program, names: Sequence[str]) -> Counted:
        self.asked = names
        return self.counted

    def close(self) -> None:
        self.closed = True


def test_the_code_of_every_kernel_is_counted_once(subject: ProfileSubject) -> None:
    profile = Profiler(H200_LIKE).profile(subject)
    assert profile.degree is Degree.TIMING
    assert [code.kernel for code in profile.codes] == ["second<2>", "first"]
    assert profile.count("global_load") == 2
    assert profile.line_of("fp32") == 13
    assert (profile.counters, profile.hot_lines, profile.reason) == ({}, (), "")


def unreadable(program: Program) -> list[Program]:
    return [
        replace(program, cubin=b""),
        replace(program, cubin=b"\x7fELF and no more"),
        replace(program, cubin=program.cubin[: len(program.cubin) // 2]),
        replace(program, cubin=Path(sass.__file__).read_bytes()),
        replace(program, lowered={}),
        replace(program, lowered={"first": "first", "second<2>": "no_such_symbol"}),
    ]


def test_code_that_cannot_be_read_is_no_code(subject: ProfileSubject) -> None:
    profiler = Profiler(H200_LIKE)
    for program in unreadable(subject.program):
        assert profiler.profile(replace(subject, program=program)).codes == ()


def put_tool(monkeypatch: pytest.MonkeyPatch, path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: path)


def test_a_disassembler_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(monkeypatch, tmp_path / "tool", "exec sleep 600")
    started = time.monotonic()
    assert disassemble(b"\x7fELF", timeout_s=0.2) == ""
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("script", ["echo text; exit 1", "head -c 4096 /dev/zero"])
def test_a_failure_or_too_much_text_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(sass, "MAX_BYTES", 1024)
    put_tool(monkeypatch, tmp_path / "tool", script)
    assert disassemble(b"\x7fELF") == ""


def test_without_a_disassembler_there_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    assert disassemble(b"\x7fELF") == ""


def counts(kernel: str, duration: float, **samples: int) -> LaunchCounts:
    offsets = {int(name.removeprefix("at"), 16): count for name, count in samples.items()}
    return LaunchCounts(kernel, {DURATION: duration}, offsets)


def test_the_launch_that_took_longest_gives_the_counters_and_the_hot_lines(
    subject: ProfileSubject,
) -> None:
    launches = (
        counts("second<2>", 1.0),
        counts("first", 9.0, at0=3, at10=1),
        counts("second<2>", 2.0),
    )
    counters = FakeCounters(Counted(launches))
    profile = Profiler(H200_LIKE, counters).profile(subject)
    assert profile.degree is Degree.COUNTERS
    assert profile.counters == {DURATION: 9.0}
    assert [values[DURATION] for values in profile.launch_counters] == [1.0, 9.0, 2.0]
    assert profile.hot_lines == ((11, 1.0),)
    assert len(profile.codes) == 2
    assert counters.asked == counters_for(H200_LIKE.compute_capability)


def test_of_several_launches_the_longest_is_diagnosed_and_all_executions_count(
    subject: ProfileSubject,
) -> None:
    ran = LaunchCounts("first", {DURATION: 1.0}, executed={0: 5})
    longest = LaunchCounts("second<2>", {DURATION: 9.0}, executed={0: 7})
    uses = tuple((Resources(registers), None) for registers in (8, 65, 8))
    counters = FakeCounters(Counted((ran, longest, ran)))
    profile = Profiler(H200_LIKE, counters).profile(replace(subject, uses=uses))
    assert (profile.subject.main, profile.subject.resources.registers) == (1, 65)
    assert profile.subject.launch is profile.subject.program.launches[1]
    assert sum(executed_mix(profile).values()) == 5 + 7 + 5


def test_a_refusal_is_told_with_every_profile(subject: ProfileSubject) -> None:
    counters = FakeCounters(Counted(reason="no permission"), refusal="no permission")
    profiler = Profiler(H200_LIKE, counters)
    assert profiler.degree is Degree.TIMING
    for profile in (profiler.profile(subject), profiler.profile(subject)):
        assert profile.degree is Degree.TIMING
        assert profile.reason == "no permission"
        assert profile.codes


def test_one_program_that_cannot_be_counted_costs_its_own_counters(subject: ProfileSubject) -> None:
    counters = FakeCounters(Counted(reason="no end within 120 s"))
    profiler = Profiler(H200_LIKE, counters)
    profile = profiler.profile(subject)
    assert (profile.degree, profile.reason) == (Degree.TIMING, "no end within 120 s")
    assert profiler.degree is Degree.COUNTERS


@pytest.mark.parametrize(
    ("on_cpu", "timed", "with_counters", "degree"),
    [
        (True, True, False, Degree.STATIC),
        (False, False, True, Degree.STATIC),
        (False, True, False, Degree.TIMING),
        (False, True, True, Degree.COUNTERS),
    ],
)
def test_a_profiler_knows_as_much_as_the_device_and_its_times_allow(
    on_cpu: bool, timed: bool, with_counters: bool, degree: Degree
) -> None:
    counters = FakeCounters(Counted()) if with_counters else None
    device = replace(H200_LIKE, on_cpu=on_cpu)
    assert Profiler(device, counters, timed=timed).degree is degree


def test_closing_a_profiler_closes_its_counters() -> None:
    counters = FakeCounters(Counted())
    Profiler(H200_LIKE, counters).close()
    assert counters.closed
