"""Mutants of a reduction, compiled and verified for real on the `host` device."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tuner.compiler.cache import Cache
from tuner.compiler.pool import NvrtcPool
from tuner.device.base import Outcome, Program
from tuner.extensions.cpu.compiler import SANITIZERS, HostCompiler, preload
from tuner.extensions.cpu.device import HostDevice
from tuner.extensions.study.mutation.examine import (
    NOT_ON_HOST,
    SAME_CODE,
    Bench,
    Examiner,
    Judgement,
    MutantVerdict,
)
from tuner.extensions.study.mutation.subject import MutationSubject
from tuner.model.errors import DeviceError, KernelError, SpaceError
from tuner.model.trial import Status

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
MakeSubject = Callable[..., MutationSubject]
MakeExaminer = Callable[..., Examiner]


@pytest.fixture
def make_examiner(host_compiler: HostCompiler, compiler: NvrtcPool) -> Iterator[MakeExaminer]:
    opened: list[HostDevice | HostCompiler] = []

    def bench(subject: MutationSubject, compiler: HostCompiler, **more: object) -> Bench:
        device = HostDevice(subject.spec, {}, run_timeout_s=2.0, **more)
        opened.append(device)
        return Bench(subject, device, compiler, subject.workloads)

    def watched(subject: MutationSubject) -> Bench:
        cache = Cache()
        opened.append(HostCompiler(sanitizers=SANITIZERS, cache=cache))
        return bench(subject, opened[-1], environment=preload(SANITIZERS))

    def absent() -> Bench:
        raise DeviceError("g++ came without them")

    def make(subject: MutationSubject, *, sanitized: bool = False) -> Examiner:
        plain = bench(subject, host_compiler)
        make_bench = partial(watched, subject) if sanitized else absent
        return Examiner(subject, plain, compiler, make_bench)

    yield make
    for each in opened:
        each.close()


def fates(
    subject: MutationSubject, examiner: Examiner, *changes: str, marked: str = ""
) -> dict[str, MutantVerdict]:
    chosen = [m for m in subject.reached if m.identity.change in changes]
    marks = {m: "a reason" for m in chosen if m.identity.change == marked}
    found = list(examiner.examine(chosen, marks))
    assert {v.mutant.identity.change for v in found} == set(changes)
    return {str(v.mutant.identity): v for v in found}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_broken_reductions_are_caught(make_subject: MakeSubject, make_examiner) -> None:
    subject = make_subject()
    examiner = make_examiner(subject)
    examiner.require_correct()
    found = fates(
        subject, examiner, "__syncthreads(); -> ;", "+ -> -", "+= -> -=", "i -> i + 64", "64 -> 63"
    )
    assert len(found) == 10
    lost = (Judgement.KILLED, Judgement.STILLBORN)
    survived = [name for name, v in found.items() if v.verdict not in lost]
    assert survived == []


def test_a_mutant_that_never_ends_costs_one_time_limit(make_subject, make_examiner) -> None:
    subject = make_subject()
    mutants = [m for m in subject.reached if m.identity.change == "+= -> ="]
    endless = [m for m in mutants if m.identity.line.startswith("for (int i")]
    (verdict,) = make_examiner(subject).examine(endless, {})
    assert verdict.verdict is Judgement.KILLED
    assert verdict.reason.startswith("timeout: ")


def test_a_guard_is_caught_only_by_a_size_that_needs_it(
    folder: Path, make_subject, make_examiner
) -> None:
    source = folder / "row_sums.cu"
    edit(source, "i < N; i += 64", "i - threadIdx.x < N; i += 64")
    edit(source, "sum +=", "if (i < N) sum +=")
    subject = make_subject()
    assert [str(w) for w in subject.workloads] == ["T=3 N=100", "T=4 N=256"]
    (verdict,) = fates(subject, make_examiner(subject), "i < N -> true").values()
    assert (verdict.verdict, str(verdict.workload)) == (Judgement.KILLED, "T=3 N=100")

    edit(folder / "row_sums.yaml", ", held_out: [{T: 3, N: 100}]", "")
    subject = make_subject()
    (verdict,) = fates(subject, make_examiner(subject), "i < N -> true").values()
    assert (verdict.verdict, verdict.reason) == (Judgement.SURVIVED, "")


def test_reading_past_the_end_is_caught_by_the_sanitizers(
    folder: Path, make_subject, make_examiner
) -> None:
    source = folder / "row_sums.cu"
    edit(source, "i < N; i += 64", "i - threadIdx.x < N; i += 64")
    guarded = "float x = 0.0f; if (i < N) x = in[row * N + i]; if (i < N) sum += x;"
    edit(source, "sum += in[row * N + i];", guarded)
    subject = make_subject()
    mutants = [m for m in subject.reached if m.identity.change == "i < N -> true"]
    plain, sanitized = make_examiner(subject), make_examiner(subject, sanitized=True)
    sanitized.require_correct()
    assert [v.verdict for v in plain.examine(mutants, {})] == [
        Judgement.SURVIVED,
        Judgement.SURVIVED,
    ]
    assert plain.unsanitized == "g++ came without them"
    past_the_end, needless = sanitized.examine(mutants, {})
    assert (past_the_end.verdict, needless.verdict) == (Judgement.KILLED, Judgement.SURVIVED)
    assert past_the_end.reason.startswith("launch: ")


def test_edge_cases_are_verified_too(folder: Path, make_subject) -> None:
    edit(folder / "row_sums.yaml", "held_out:", "edge_cases: [{T: 1, N: 63}], held_out:")
    assert [str(w) for w in make_subject().workloads] == ["T=1 N=63", "T=3 N=100", "T=4 N=256"]


def test_the_same_machine_code_is_equivalent(folder: Path, make_subject, make_examiner) -> None:
    edit(folder / "row_sums.cu", "float sum = 0.0f;", "float sum = 0.0f; int spare = 3;")
    subject = make_subject()
    found = fates(subject, make_examiner(subject), "3 -> 4", "3 -> 0")
    assert {(v.verdict, v.reason) for v in found.values()} == {(Judgement.EQUIVALENT, SAME_CODE)}


def test_code_that_only_a_gpu_runs_is_not_taken_for_equivalent(
    folder: Path, make_subject, make_examiner
) -> None:
    only = "\n#ifndef __CUDA_ON_HOST__\n  sum = sum * 7;\n#endif\n"
    edit(folder / "row_sums.cu", "float sum = 0.0f;", f"float sum = in[0];{only}sum = 0;")
    edit(folder / "row_sums.cu", "out[row] = parts[0]", "out[row] = parts[0] ONLY_GPU(+ 9)")
    define = "#ifdef __CUDA_ON_HOST__\n#define ONLY_GPU(x)\n#else\n#define ONLY_GPU(x) x\n#endif\n"
    path = folder / "row_sums.cu"
    path.write_text(define + path.read_text(encoding="utf-8"), encoding="utf-8")
    subject = make_subject()
    found = fates(subject, make_examiner(subject), "7 -> 8", "9 -> 10")
    assert [(v.verdict, v.reason) for v in found.values()] == [
        (Judgement.EQUIVALENT, SAME_CODE),
        (Judgement.SURVIVED, NOT_ON_HOST),
    ]


def test_a_mark_makes_a_survivor_equivalent_but_no_victim(
    folder: Path, make_subject, make_examiner
) -> None:
    edit(folder / "row_sums.cu", "i += 64) {", "i += 64) {\n    if (i < 7) sum += 0.0f;")
    subject = make_subject()
    examiner = make_examiner(subject)
    (right,) = fates(subject, examiner, "7 -> 8", marked="7 -> 8").values()
    assert (right.verdict, right.reason) == (Judgement.EQUIVALENT, "a reason")
    assert not right.mark_is_wrong
    (wrong,) = fates(subject, examiner, "i -> i + 64", marked="i -> i + 64").values()
    assert (wrong.verdict, wrong.mark_is_wrong) == (Judgement.KILLED, True)


def test_a_template_is_mutated_where_it_is_rendered_for_each_workload(
    make_subject, make_examiner, folder: Path
) -> None:
    subject = make_subject(threads=32)
    examiner = make_examiner(subject)
    examiner.require_correct()
    first, last = subject.workloads
    (mutant,) = [m for m in subject.reached if m.identity.change == "1 -> 2"]
    assert "kWidth = 100" in subject.mutate(first, mutant)
    assert "kWidth = 256" in subject.mutate(last, mutant)
    assert all("int k = 2;" in subject.mutate(w, mutant) for w in (first, last))
    (verdict,) = examiner.examine([mutant], {})
    assert verdict.verdict is Judgement.KILLED
    rows = (folder / "row_sums.cu.j2").read_text().splitlines()
    assert "for (int k = 1; k < kThreads; ++k)" in rows[subject.place(mutant) - 1]


def test_a_kernel_that_is_wrong_unchanged_has_no_score(
    folder: Path, make_subject, make_examiner
) -> None:
    edit(folder / "row_sums.cu", "= parts[0]", "= parts[1]")
    with pytest.raises(KernelError, match="fails unchanged on T=3 N=100: incorrect: ") as caught:
        make_examiner(make_subject()).require_correct()
    assert caught.value.path == folder / "row_sums.cu"


def test_a_space_without_a_small_workload_says_so(folder: Path, make_subject) -> None:
    edit(folder / "row_sums.yaml", "{T: 4, N: 256}, ", "")
    edit(folder / "row_sums.yaml", ", held_out: [{T: 3, N: 100}]", "")
    with pytest.raises(SpaceError, match="small enough for the `host` device"):
        _ = make_subject().workloads


def test_a_config_that_is_valid_nowhere_is_told_its_constraint(folder: Path, make_subject) -> None:
    edit(folder / "row_sums.yaml", "default:", "constraints: [threads >= 64]\ndefault:")
    with pytest.raises(SpaceError, match="threads=32 breaks `threads >= 64` on T=4 N=256"):
        _ = make_subject(threads=32).workloads


class Witness:
    """Calls everything right, and notes what is said to be the baseline."""

    def __init__(self) -> None:
        self.as_baseline: list[bool] = []

    def verify(self, program: Program) -> Outcome:
        self.as_baseline.append(program.config is None)
        return Outcome(Status.CORRECT)


def test_a_mutant_is_judged_as_a_config_is(
    make_subject: MakeSubject, host_compiler: HostCompiler
) -> None:
    subject, witness = make_subject(), Witness()
    bench = Bench(subject, witness, host_compiler, subject.workloads[:1])
    bench.verify_original(subject.workloads[0])
    (mutant, *_) = (one for one in subject.reached if one.identity.change == "+= -> -=")
    bench.verdict(mutant)
    assert witness.as_baseline == [True, False]
