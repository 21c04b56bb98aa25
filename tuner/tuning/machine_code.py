"""Which lines of source became more or less machine code in a winner than in the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from tuner.analysis.sass import disassemble, find_nvdisasm, opcodes_by_line
from tuner.device.base import Program
from tuner.model.errors import TunerError
from tuner.model.hardware import is_amd
from tuner.model.languages import CUDA
from tuner.model.trial import Result
from tuner.session.events import CodeLine, MachineCodeCompared
from tuner.session.session import Session
from tuner.tuning.evaluator import Candidates, evaluator_of
from tuner.tuning.run import Run

# The code is the same; reports can name lines only where the compiler wrote them down.
COMPILE_OPTIONS = ("-lineinfo",)
# A report shows fewer.
MOST_LINES = 40
# What a line of both sources has become, and its numbers there.
Pair = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Built:
    """A program, and the text that it was compiled from with the numbers of its lines."""

    source: str
    program: Program

    def opcodes(self) -> Mapping[int, Counter[str]]:
        text = disassemble(self.program.cubin)
        return opcodes_by_line(text, dict.fromkeys(self.program.lowered.values()))


def build_pair(candidates: Candidates, result: Result) -> tuple[Built, Built]:
    """Compile the baseline and a winner for its workload; raise `KernelError` where one fails."""
    made = []
    for name in (candidates.plans[0].candidate, result.candidate):
        plan = candidates.plan(name)
        options = (*plan.spec.compile_options, *COMPILE_OPTIONS)
        plan = replace(plan, spec=replace(plan.spec, compile_options=options))
        made.append(evaluator_of(plan, candidates.compiler, candidates.device))
    baseline, winner = made
    workload, config = result.workload, result.config
    compiling = winner.start(workload, config)  # beside the baseline
    return (
        Built(baseline.baseline_request(workload).source, baseline.baseline_program(workload)),
        Built(winner.request(workload, config).source, winner.program_of(compiling)),
    )


def compare_code(before: Built, after: Built) -> tuple[tuple[int, int], tuple[CodeLine, ...]]:
    """Count the instructions of both, and list the lines that differ, by how much they do.

    A line that both sources have, but for white space, is compared with itself.
    """
    texts = [built.source.splitlines() for built in (before, after)]
    counts = before.opcodes(), after.opcodes()
    lines = []
    for place in _pair_lines(*texts):
        old, new = (
            counted.get(n, Counter()) if n else Counter[str]()
            for counted, n in zip(counts, place, strict=True)
        )
        if old != new:
            text = next(rows[n - 1].strip() for rows, n in zip(texts, place, strict=True) if n)
            lines.append(CodeLine(text, *place, dict(old), dict(new)))
    lines.sort(key=lambda line: -abs(sum(line.after.values()) - sum(line.before.values())))
    first, second = (sum(map(Counter.total, counted.values())) for counted in counts)
    return (first, second), tuple(lines[:MOST_LINES])


def _pair_lines(before: list[str], after: list[str]) -> Iterator[Pair]:
    ours, theirs = (["".join(line.split()) for line in lines] for lines in (before, after))
    matcher = SequenceMatcher(None, ours, theirs)
    for kind, begin, end, other_begin, other_end in matcher.get_opcodes():
        if kind == "equal":
            yield from zip(
                range(begin + 1, end + 1), range(other_begin + 1, other_end + 1), strict=True
            )
        else:
            yield from ((number, None) for number in range(begin + 1, end + 1))
            yield from ((None, number) for number in range(other_begin + 1, other_end + 1))


def keep_comparison(
    session: Session, result: Result, architecture: str, before: Built, after: Built
) -> None:
    """Note in the session how the machine code differs; nothing where it cannot be read here."""
    instructions, lines = compare_code(before, after)
    if not all(instructions):
        return
    session.record_event(
        MachineCodeCompared(
            round=0,
            candidate=result.candidate,
            workload=result.workload.key,
            config=dict(result.config),
            architecture=architecture,
            instructions=instructions,
            lines=lines,
        )
    )


def compare_winner(run: Run) -> None:
    """Compare the winner that serves most workloads, where a GPU ran it and its code can be read.

    A recording's configs are compiled nowhere: `tune ncu` compares them when it is asked.
    """
    info, spec = run.device.info, run.plan.spec
    elsewhere = info.on_cpu or info.recorded or info.evaluator or is_amd(info.architecture)
    if elsewhere or spec.is_callable or spec.language is not CUDA or find_nvdisasm() is None:
        return
    results = [one for one in run.session.results() if not one.baseline_wins]
    if not results:
        return
    served = Counter(one.variant for one in results)
    result = max(results, key=lambda one: served[one.variant])
    if not any(event.is_of(result) for event in run.session.events(MachineCodeCompared)):
        with suppress(TunerError):  # what compiled before and does not now is no winner's fault
            built = build_pair(run.candidates, result)
            keep_comparison(run.session, result, info.architecture, *built)
