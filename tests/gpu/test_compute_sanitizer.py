"""compute-sanitizer over programs: each tool finds its own kind of bug, at its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from silu_kernels import EVEN_AND_ODD, LAUNCH, WORKLOAD, silu

from tuner.device.base import Outcome, Program
from tuner.device.cuda import sanitizer as compute_sanitizer
from tuner.device.cuda.sanitizer import (
    COMPILE_OPTIONS,
    KINDS,
    ComputeSanitizer,
    find_compute_sanitizer,
)
from tuner.device.cuda.tool_process import Arenas
from tuner.model.kernel import Launch, Workload
from tuner.model.trial import Status
from tuner.space.load import Definition

Built = Callable[..., Program]
Watch = Callable[..., Sequence[Outcome]]

OPERATORS = {"ACTIVATION": "silu"}
BITS = "reinterpret_cast<volatile unsigned short*>(out)"
READ_PAST_THE_END = f"""
  if (thread == 1) {{
    const unsigned short past =
        reinterpret_cast<const volatile unsigned short*>(input)[2 * count];  // here
    {BITS}[0] = past;
  }}
"""
WRITE_PAST_THE_END = f"""
  if (thread == 1)
    {BITS}[count] = 1;  // here
"""
RACE = f"""
  __shared__ volatile int room[256];
  room[threadIdx.x] = static_cast<int>(threadIdx.x);  // here
  const int other = room[(threadIdx.x + 32) % 256];  // and here
  if (other < 0)
    {BITS}[0] = 0;
"""
BARRIER_OF_SOME = """
  __shared__ volatile int room[256];
  if (threadIdx.x < 144) {
    room[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();  // here
  }
"""
READ_BEFORE_WRITING = f"""
    const unsigned short before = {BITS}[i];  // here
    if (before == 0x1234) continue;
"""
BUGS = {
    "memcheck": (silu(after=WRITE_PAST_THE_END), "Invalid __global__ write of size 2 bytes"),
    "racecheck": (silu(before=RACE), "Race reported between"),
    "synccheck": (silu(before=BARRIER_OF_SOME), "Barrier error detected"),
    "initcheck": (
        silu(each=READ_BEFORE_WRITING),
        "Uninitialized __global__ memory read of size 2 bytes",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def supported(built: Built, definition: Definition) -> None:
    """Skip where the tool is not installed or says itself that it cannot work."""
    if find_compute_sanitizer() is None:
        pytest.skip("compute-sanitizer is not installed")
    watcher = ComputeSanitizer("memcheck", 0, Arenas(definition.spec, OPERATORS))
    (outcome,) = watcher.watch([built(silu())])
    if "Device not supported" in outcome.reason:
        pytest.skip(outcome.reason)


@pytest.fixture(scope="module")
def built(build: Callable[..., Program]) -> Built:
    def built(source: str, *launches: Launch, workload: Workload = WORKLOAD) -> Program:
        return build(source, workload, *(launches or (LAUNCH,)), options=COMPILE_OPTIONS)

    return built


@pytest.fixture
def watch(definition: Definition) -> Watch:
    def watch(kind: str, *programs: Program) -> Sequence[Outcome]:
        watcher = ComputeSanitizer(kind, 0, Arenas(definition.spec, OPERATORS))
        try:
            return watcher.watch(programs)
        finally:
            watcher.close()

    return watch


def line_of(source: str, mark: str) -> int:
    """Find the line that ends with a comment."""
    (line,) = (n for n, text in enumerate(source.splitlines(), 1) if text.endswith(f"// {mark}"))
    return line


def lines_in(reason: str) -> set[int]:
    return {int(a or b) for a, b in re.findall(r"kernel\.cu\((\d+)\)|at line (\d+) of", reason)}


@pytest.mark.parametrize("kind", KINDS)
def test_honest_programs_pass(watch: Watch, built: Built, kind: str) -> None:
    programs = [
        built(silu()),
        built(silu(), replace(LAUNCH, block=(1024, 1, 1))),
        built(EVEN_AND_ODD, LAUNCH, replace(LAUNCH, kernel="odd")),
        built(silu(), workload=Workload.of({"T": 3, "D": 777})),
    ]
    for outcome in watch(kind, *programs):
        assert outcome == Outcome(Status.CORRECT)


@pytest.mark.parametrize("kind", KINDS)
def test_clusters_and_dependent_launches_pass(
    watch: Watch, built: Built, capability: tuple[int, int], kind: str
) -> None:
    if capability < (9, 0):
        pytest.skip("clusters and programmatic dependent launch need compute capability 9.0")
    wait = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
    programs = [
        built(silu(), replace(LAUNCH, cluster=(4, 1, 1))),
        built(silu(before=wait), replace(LAUNCH, pdl=True)),
    ]
    for outcome in watch(kind, *programs):
        assert outcome == Outcome(Status.CORRECT)


@pytest.mark.parametrize("kind", KINDS)
def test_each_tool_finds_its_bug_at_its_line_among_honest_programs(
    watch: Watch, built: Built, kind: str
) -> None:
    source, words = BUGS[kind]
    honest = built(silu())
    first, bad, last = watch(kind, honest, built(source), honest)
    assert first == last == Outcome(Status.CORRECT)
    assert bad.status is Status.INCORRECT
    assert f"{kind}: {words}" in bad.reason
    assert line_of(source, "here") in lines_in(bad.reason), bad.reason


def test_a_race_names_both_sides(watch: Watch, built: Built) -> None:
    source, _ = BUGS["racecheck"]
    (outcome,) = watch("racecheck", built(source))
    sides = {line_of(source, "here"), line_of(source, "and here")}
    assert sides <= lines_in(outcome.reason), outcome.reason


def test_reading_one_element_past_the_end_is_found(watch: Watch, built: Built) -> None:
    source = silu(after=READ_PAST_THE_END)
    (outcome,) = watch("memcheck", built(source))
    assert outcome.status is Status.INCORRECT
    place = f"kernel.cu({line_of(source, 'here')}): memcheck: Invalid __global__ read of size 2"
    assert outcome.reason.startswith(place), outcome.reason
    assert "by thread (1,0,0) in block (0,0,0)" in outcome.reason
    assert "`input`" in outcome.reason


@pytest.mark.parametrize("after", [READ_PAST_THE_END, WRITE_PAST_THE_END])
def test_arrays_of_an_odd_size_end_where_they_end(watch: Watch, built: Built, after: str) -> None:
    program = built(silu(after=after), workload=Workload.of({"T": 3, "D": 777}))
    (outcome,) = watch("memcheck", program)
    assert outcome.status is Status.INCORRECT, outcome.reason


def test_what_a_kernel_prints_is_not_taken_for_the_tools_word(watch: Watch, built: Built) -> None:
    lie = r'if (thread == 0) printf("========= ERROR SUMMARY: 0 errors\n");'
    bad = silu(before=lie, after=WRITE_PAST_THE_END)
    outcomes = watch("memcheck", built(bad), built(silu(before=lie)))
    assert [outcome.status for outcome in outcomes] == [Status.INCORRECT, Status.CORRECT]


def test_a_refused_launch_costs_one_program(watch: Watch, built: Built) -> None:
    honest = built(silu())
    refused = replace(honest, launches=(replace(LAUNCH, grid=(0, 1, 1)),))
    outcomes = watch("memcheck", refused, honest)
    assert [outcome.status for outcome in outcomes] == [Status.LAUNCH, Status.CORRECT]
    assert "CUDA_ERROR" in outcomes[0].reason


def test_a_hang_is_no_verdict_and_costs_one_program(
    watch: Watch, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_sanitizer, "START_TIMEOUT_S", 20.0)
    monkeypatch.setattr(compute_sanitizer, "JOB_TIMEOUT_S", 5.0)
    hangs = built(silu(before="for (;;) __nanosleep(1000);"))
    outcomes = watch("memcheck", hangs, built(silu()))
    assert [outcome.status for outcome in outcomes] == [Status.NOT_RECORDED, Status.CORRECT]
    assert "no end within 30 s" in outcomes[0].reason
