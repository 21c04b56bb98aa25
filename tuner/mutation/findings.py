"""What a run of mutants found, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.mutation.examining import Fate, Verdict
from tuner.mutation.marks import entry
from tuner.mutation.score import Score
from tuner.mutation.subject import Subject

_REASON = "why no result can differ"


@dataclass(frozen=True, slots=True)
class Findings:
    """The verdicts on the chosen mutants; `complete` is False where the run was interrupted.

    `marks` is the file in which equivalent mutants are marked, whether it exists or not.
    `unsanitized` says why survivors were not put to the sanitizers, if they were not.
    """

    subject: Subject
    score: Score
    verdicts: tuple[Verdict, ...]
    marks: Path
    seconds: float
    complete: bool
    unsanitized: str = ""

    @property
    def survivors(self) -> tuple[Verdict, ...]:
        """The verdicts on mutants that the check did not catch."""
        return tuple(v for v in self.verdicts if v.fate is Fate.SURVIVED)


def as_object(found: Findings) -> dict[str, object]:
    """Make the object that `--json` prints."""
    subject, score = found.subject, found.score
    return {
        "kernel": score.kernel,
        "space": str(subject.spec.path),
        "source": str(subject.path),
        "subject": score.subject,
        "device": score.device,
        "complete": found.complete,
        "share": score.share,
        "mutants": score.mutants,
        "examined": score.examined,
        "counts": {
            "killed": score.killed,
            "survived": score.survived,
            "equivalent": score.equivalent,
            "stillborn": score.stillborn,
        },
        "workloads": [workload.values for workload in subject.workloads],
        "unsanitized": found.unsanitized,
        "seconds": round(found.seconds, 1),
        "wrong_marks": [str(v.mutant.identity) for v in found.verdicts if v.mark_is_wrong],
        "survivors": [
            {**_mutant(verdict, subject), "diff": subject.diff(verdict.mutant)}
            for verdict in found.survivors
        ],
        "verdicts": [
            {
                **_mutant(verdict, subject),
                "fate": verdict.fate,
                "reason": verdict.reason,
                "marked": verdict.mark is not None,
                "workload": verdict.workload.values if verdict.workload else None,
            }
            for verdict in found.verdicts
        ],
    }


def as_text(found: Findings) -> Iterator[str]:
    """Lay the findings out for a terminal: the survivors first, the share at the end."""
    subject = found.subject
    for verdict in found.survivors:
        mutant = verdict.mutant
        why = f" ({verdict.reason})" if verdict.reason else ""
        yield f"survived: {_place(verdict, subject)}: {mutant.identity.operator}{why}"
        yield subject.diff(mutant)
        yield f"If no result can differ, put this under `{_group(subject)}:` in {found.marks}:"
        yield f"{entry(mutant.identity, _REASON)}\n"
    for verdict in found.verdicts:
        if verdict.mark_is_wrong:
            yield f"marked equivalent, but caught: {verdict.mutant.identity}\n  {verdict.reason}"
    yield from _summary(found)


def share_text(score: Score) -> str:
    """Write the share: `97.1 %`; never 100 % where a mutant survived."""
    if score.share is None:
        return "no share"
    return f"{min(100 * score.share, 99.9) if score.survived else 100:.1f} %"


def _summary(found: Findings) -> Iterator[str]:
    subject, score = found.subject, found.score
    what = "the baseline" if subject.config is None else f"the template at {subject.name}"
    caught = f"{score.killed} of {score.killed + score.survived} mutants caught"
    yield f"{score.kernel}, {what}, on the host device: {caught} ({share_text(score)})"
    yield (
        f"{score.killed} killed, {score.survived} survived, {score.equivalent} equivalent, "
        f"{score.stillborn} do not compile; {score.examined} of {score.mutants} mutants in "
        f"{found.seconds:.0f} s"
    )
    yield "verified on " + ", ".join(map(str, subject.workloads))
    if found.unsanitized:
        yield f"survivors were not run under the sanitizers: {found.unsanitized}"


def _group(subject: Subject) -> str:
    return "baseline" if subject.config is None else "template"


def _place(verdict: Verdict, subject: Subject) -> str:
    return f"{subject.path}:{subject.place(verdict.mutant)}"


def _mutant(verdict: Verdict, subject: Subject) -> dict[str, object]:
    mutant = verdict.mutant
    return {
        "id": str(mutant.identity),
        "operator": mutant.identity.operator,
        "line": subject.place(mutant),
        "column": mutant.column,
        "before": mutant.before,
        "after": mutant.after,
    }
