"""What happens in a session besides trials: one type an event, on disk as soon as it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le, Predicate

from tuner.analysis.base import Bottleneck, Degree
from tuner.model.bounds import Count, FileName, Finite, Microseconds, Ratio
from tuner.model.expressions import Value
from tuner.model.trial import Finding, Result

Attempt = Annotated[int, Ge(1), Le(1_000_000)]


def is_answer(name: str) -> bool:
    """Tell whether an answer may have this name: one letter, or none where it is alone."""
    return not name or (len(name) == 1 and "a" <= name <= "z")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a round with an agent; round 0 is the run before all of them."""

    round: Annotated[int, Ge(0), Le(1_000_000)]


@dataclass(frozen=True, slots=True)
class AnswerEvent(Event):
    """Something about an answer of a round; `answer` names it where there are several."""

    answer: Annotated[str, Predicate(is_answer)] = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the agent may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What should move, and by how much: `factor` is the new value over the base's.

    `metric` is `time_us` or a name of `analysis.base.METRICS`; `workload` is a `Workload.key`, ""
    for all tuned ones.
    """

    metric: str
    factor: Finite
    workload: str = ""


@dataclass(frozen=True, slots=True)
class Idea:
    """The plan of a round; `reference` is a second candidate to take from, "" for none.

    `insist`: what is written is searched however slow its default config is.
    """

    base: str
    hypothesis: str
    change: str
    expectations: tuple[Expectation, ...] = ()
    reference: str = ""
    insist: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """One expectation and what came of it; `actual` is None where one side was not measured."""

    metric: str
    workload: str
    predicted: Finite
    actual: Finite | None


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """How a candidate did, by the times of its search; all mappings are by `Workload.key`.

    `speedup` is the geometric mean over the tuned workloads of the baseline's time over the best,
    `over_base` of the base's best over it; both None where the candidate has no correct config.
    `best_us` lacks the workloads without one. `default_us` is the time of the space's default,
    None where it was not tried or not correct: what rewriting alone gives.
    """

    speedup: Ratio | None
    over_base: Ratio | None
    moved: tuple[Moved, ...] = ()
    best_us: Mapping[str, Microseconds] = field(default_factory=dict)
    default_us: Mapping[str, Microseconds | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolsDeclared(Event):
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class Said(Event):
    """An entry of the round's transcript, of plain JSON values; its `type` says what it is."""

    entry: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Planned(AnswerEvent):
    idea: Idea


@dataclass(frozen=True, slots=True)
class DefaultTimed(AnswerEvent):
    """An answer's default config, tried before all else, beside its base's best there."""

    workload: str
    time_us: Microseconds
    base_us: Microseconds

    @property
    def factor(self) -> float:
        return self.time_us / self.base_us


@dataclass(frozen=True, slots=True)
class AnswerAccepted(AnswerEvent):
    """The gate let an answer pass; `attempt` counts from 1."""

    attempt: Attempt
    template: str
    space: str


@dataclass(frozen=True, slots=True)
class CandidateMade(AnswerEvent):
    """A candidate was added; `problems` say why each answer before it was refused."""

    name: FileName
    attempt: Attempt
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundEnded(AnswerEvent):
    """How a round came out; `phases_s` is what it took here, as far as one run saw it.

    Without a candidate, the default config was too slow to search further.
    """

    outcome: RoundOutcome
    phases_s: Mapping[str, Finite] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundRefused(AnswerEvent):
    """A round gave nothing to search; `candidate` is one whose search had begun, "" for none."""

    base: str
    problems: tuple[str, ...]
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class AgentIdle(Event):
    """The agent had nothing left to try on the base that was chosen, None where it chooses."""

    base: str | None


@dataclass(frozen=True, slots=True)
class LaunchFigures:
    """One launch of a profiled call, and what it uses of the hardware.

    `resident` is how many of its blocks a multiprocessor holds at a time, and `limiter` what limits
    that; `counted_us` what the launch took under the profiler, None where nothing was counted: it
    says how the launches share a call, and not how long one takes.
    """

    kernel: str
    blocks: Count
    threads: Count
    registers: Count | None
    shared_bytes: Count
    resident: Count | None
    limiter: str
    counted_us: Finite | None = None


@dataclass(frozen=True, slots=True)
class Profiled(Event):
    """What a profile said of one trial; `reason` says why it lacks counters that it could have."""

    candidate: str
    workload: str
    config: Mapping[str, Value]
    degree: Degree
    kind: Bottleneck
    metrics: Mapping[str, Finite]
    findings: tuple[Finding, ...]
    reason: str = ""
    launches: tuple[LaunchFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of source whose machine code differs: its numbers, and its opcodes with their counts.

    A number is None where that source has no such line.
    """

    text: str
    line_before: Count | None
    line_after: Count | None
    before: Mapping[str, Count]
    after: Mapping[str, Count]


@dataclass(frozen=True, slots=True)
class MachineCodeCompared(Event):
    """The machine code of a winner beside the baseline's: the lines that differ most, and all.

    `instructions` counts those of the baseline and of the winner.
    """

    candidate: str
    workload: str
    config: Mapping[str, Value]
    architecture: str
    instructions: tuple[Count, Count]
    lines: tuple[CodeLine, ...]

    def is_of(self, result: Result) -> bool:
        """Tell whether it is of what serves a workload, and not of what did before."""
        own = result.candidate, result.workload.key, dict(result.config)
        return (self.candidate, self.workload, dict(self.config)) == own


@dataclass(frozen=True, slots=True)
class SearchEnded(Event):
    """A search ended before its budget: its searcher expected too little, or it was `late`."""

    candidate: str
    workload: str
    trials: Count
    expected_gain: Finite | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class LeftUndecided(Event):
    """Why a workload was given up: a later run may have decided it since.

    `candidate` is whose search found no memory there, "" where its finals gave it up.
    """

    workload: str
    reason: str
    candidate: str = ""


@dataclass(frozen=True, slots=True)
class SpacePruned(Event):
    """How many `valid` configs a workload has, and how many of them `prune` leaves to search.

    `recorded` is how many of those a recording holds, None where all can be measured.
    """

    candidate: str
    workload: str
    valid: Count
    searched: Count
    recorded: Count | None = None


@dataclass(frozen=True, slots=True)
class WarmSeed:
    """A config that was fast before, on a device and a workload by its key."""

    config: Mapping[str, Value]
    device: str
    workload: str


@dataclass(frozen=True, slots=True)
class WarmStarted(Event):
    """What a candidate's search tries first, by `Workload.key`."""

    candidate: str
    seeds: Mapping[str, tuple[WarmSeed, ...]]


@dataclass(frozen=True, slots=True)
class HomesChosen(Event):
    """Which of several devices times each workload, by its key; the last one recorded counts.

    `factors` adjusts the times of workloads that another device began with, and `lost` says of
    devices why they are no longer asked.
    """

    members: tuple[str, ...]
    homes: Mapping[str, str]
    factors: Mapping[str, Finite] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReferenceTimed(Event):
    """What devices took for the same kernel, the baseline on a workload: by name, in us."""

    workload: str
    times_us: Mapping[str, Finite]


@dataclass(frozen=True, slots=True)
class BitsKept(Event):
    """The class that was chosen: the bits of rows by `Workload.key`; what has others is out."""

    bits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TimeSpent(Event):
    """The seconds of one run by phase, and of its searches what all `lanes` spent on what.

    `device_s` is verifying and timing, `compiler_s` waiting for a compilation; the rest of the
    search a lane waited for a proposal. `starts` counts the processes that were started in each
    phase, by their names; None where nobody counted. `inside_s` has what the seconds of a phase
    went to, of all threads together, as `tuner.process.tally` names it.
    """

    phases_s: Mapping[str, Finite]
    lanes: Count
    device_s: Finite
    compiler_s: Finite
    starts: Mapping[str, Mapping[str, Count]] | None = None
    inside_s: Mapping[str, Mapping[str, Finite]] = field(default_factory=dict)


EVENTS: Mapping[str, type[Event]] = {
    "tools": ToolsDeclared,
    "said": Said,
    "plan": Planned,
    "default": DefaultTimed,
    "answer": AnswerAccepted,
    "candidate": CandidateMade,
    "outcome": RoundEnded,
    "refused": RoundRefused,
    "idle": AgentIdle,
    "profile": Profiled,
    "machine code": MachineCodeCompared,
    "search ended": SearchEnded,
    "undecided": LeftUndecided,
    "space pruned": SpacePruned,
    "warm start": WarmStarted,
    "homes": HomesChosen,
    "reference": ReferenceTimed,
    "bits": BitsKept,
    "time": TimeSpent,
}
