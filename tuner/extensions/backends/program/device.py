"""The `command` device: a program of the user's says how fast a source is, and whether right."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from threading import Lock
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tuner.compiler.base import Compiler, PassingCompiler
from tuner.compiler.includes import OWN
from tuner.device.base import ComparisonRounds, Device, Outcome, Program
from tuner.device.families import Listed
from tuner.extensions.backends.program.command import (
    EXAMPLE,
    Answer,
    ArgumentMessage,
    CommandFailed,
    Described,
    EvaluatorCommand,
    LaunchMessage,
    ProgramMessage,
    Purpose,
    Request,
)
from tuner.model.errors import DeviceError
from tuner.model.expressions import Value
from tuner.model.kernel import Argument, KernelSpec, Launch, Tolerance, Workload
from tuner.model.trial import Correctness, Measurement, Status

DESCRIBE_TIMEOUT_S = 60.0
# An evaluator that fails so often, one after the other, is broken: no config is to blame.
MOST_FAULTS = 3
# Where it cannot compare, each program is asked for so many times in turn. Each request gives one
# time: those within a request share a machine and a moment, and prove nothing of the next.
ALTERNATIONS = 8
ANSWER_LETTERS = 200

M = TypeVar("M", bound=BaseModel)


class EvaluatorDevice(Device):
    """Ask a command for everything. `run` may be called from threads.

    Raises `DeviceError` where the command does not describe its hardware, and once it has failed
    `MOST_FAULTS` times in a row. A single failure is the outcome of what was asked.
    """

    capabilities = frozenset({"compiler", "resources"})

    def __init__(self, text: str, spec: KernelSpec, operators: Mapping[str, str]) -> None:
        if any(launch.maps for launch in (*spec.baseline, *spec.launch)):
            raise DeviceError(
                "an evaluator is told of no tensor maps, and a launch of this kernel takes some",
                path=spec.path,
                remedy="use --device cuda or host",
            )
        self._spec, self._operators, self._text = spec, dict(operators), text
        self._command = EvaluatorCommand(text)
        self._faults, self._lock = 0, Lock()
        self._described = self._describe()
        self.info = self._described.info(text)
        if self._described.verifies:
            self.capabilities |= {"verify"}

    def compiler(self, jobs: int | None) -> PassingCompiler:
        return PassingCompiler(self._text)

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        if program.peer:
            return Outcome(Status.NOT_RECORDED, "an evaluator times sources, no peers")
        late: Purpose = "finals" if full_verification else "search"
        purpose: Purpose = "baseline" if program.config is None else late
        answer = self._ask(self._request(purpose, (program,), incumbent_us=incumbent_us))
        if isinstance(answer, Outcome) or not answer.is_correct:
            return _as_outcome(answer)
        measurement = Measurement(answer.times_us, 1, 1, answer.stopped_early)
        correctness = Correctness(True, (f"by {self._text}",)) if answer.verified else None
        resources = answer.resources.made() if answer.resources else None
        return Outcome(Status.CORRECT, "", measurement, correctness, resources)

    def verify(self, program: Program) -> Outcome:
        """Ask for a verdict alone, where the evaluator gives any."""
        unverified = Outcome(Status.NOT_RECORDED, f"{self._text} does not verify")
        if program.peer or not self.info.verifies:
            return unverified
        answer = self._ask(self._request("verify", (program,)))
        if isinstance(answer, Outcome) or not answer.is_correct:
            return _as_outcome(answer)
        return Outcome(Status.CORRECT) if answer.verified else unverified

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        """Leave the comparison to an evaluator that can; else time all in turn, unpaired."""
        if self._described.compares:
            answer = self._insist(self._request("compare", programs, rounds=rounds))
            return ComparisonRounds(answer.rounds_us, True, (None,) * len(programs))
        count = len(programs)
        turns = [range(count)[:: 1 - 2 * (turn % 2)] for turn in range(min(rounds, ALTERNATIONS))]
        pool = ThreadPoolExecutor(self.info.parallel)
        try:
            times = [*pool.map(self._time_us, (programs[k] for turn in turns for k in turn))]
        finally:
            # An interruption waits for no request: `close` ends those under way.
            pool.shutdown(wait=False, cancel_futures=True)
        rows = (times[start : start + count] for start in range(0, len(times), count))
        table = tuple(
            tuple(time for _, time in sorted(zip(turn, row, strict=True)))
            for turn, row in zip(turns, rows, strict=True)
        )
        return ComparisonRounds(table, False, (None,) * count)

    def close(self) -> None:
        self._command.close()

    def _time_us(self, program: Program) -> float:
        purpose: Purpose = "baseline" if program.config is None else "finals"
        return median(self._insist(self._request(purpose, (program,))).times_us)

    def _insist(self, request: Request) -> Answer:
        """Ask again where the evaluator itself has failed, and raise where the answer is no."""
        for _ in range(MOST_FAULTS):
            answer = self._ask(request)
            if isinstance(answer, Answer) and answer.is_correct:
                return answer
            if isinstance(answer, Answer):
                break
        raise DeviceError(
            f"a program that was timed before failed when timed again: {answer.status}: "
            f"{answer.reason}",
            remedy="the run can be resumed",
        )

    def _ask(self, request: Request) -> Answer | Outcome:
        """Return an answer that fits the request, or an outcome where there was none."""
        status = Status.LAUNCH
        try:
            timeout_s = self._described.timeout_s
            answer = self._read(Answer, self._command.ask(request.model_dump_json(), timeout_s))
            if lacking := answer.lacks(
                request.purpose,
                len(request.programs),
                verifies=self.info.verifies,
                rounds=request.rounds,
            ):
                raise CommandFailed(f"left something out: {lacking}")
        except CommandFailed as error:
            reason = f"the evaluator {error}"
            status = Status.TIMEOUT if error.late else status
        else:
            with self._lock:
                self._faults = 0
            return answer
        with self._lock:
            self._faults += 1
            broken = self._faults >= MOST_FAULTS
        if broken:
            raise DeviceError(
                f"{self._text} failed {MOST_FAULTS} times in a row; the last time {reason}",
                remedy=f"mend it and go on with --resume: what was measured is kept; {EXAMPLE}",
            )
        return Outcome(status, reason)

    def _describe(self) -> Described:
        request = Request(
            purpose="describe", kernel=self._spec.name, language=self._spec.language.name
        )
        try:
            return self._read(
                Described, self._command.ask(request.model_dump_json(), DESCRIBE_TIMEOUT_S)
            )
        except CommandFailed as error:
            raise DeviceError(
                f"{self._text} does not describe its hardware: the evaluator {error}",
                remedy='to {"purpose": "describe", ...} on its standard input it has to write, '
                f'say, {{"version": 1, "name": "a GPU", "streaming_gbps": 900}}; {EXAMPLE}',
            ) from error

    def _read(self, model: type[M], text: str) -> M:
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            wrong = f"{place}: {first['msg']}" if place else first["msg"]
            shown = " ".join(text.split())[:ANSWER_LETTERS] or "nothing"
            raise CommandFailed(f"answered what cannot be read ({wrong}): {shown}") from error

    def _request(
        self,
        purpose: Purpose,
        programs: Sequence[Program],
        *,
        incumbent_us: float | None = None,
        rounds: int | None = None,
    ) -> Request:
        spec, workload = self._spec, programs[0].workload
        defines = (f"-D{name}={value}" for name, value in self._operators.items())
        return Request(
            purpose=purpose,
            kernel=spec.name,
            language=spec.language.name,
            operators=self._operators,
            workload=workload.values,
            programs=tuple(self._program(program, workload) for program in programs),
            options=(*spec.compile_options, *defines),
            include_dirs=(*map(str, spec.include_dirs), str(OWN)),
            reference=str(spec.reference),
            seed=secrets.randbits(32),
            incumbent_us=incumbent_us,
            rounds=rounds,
        )

    def _program(self, program: Program, workload: Workload) -> ProgramMessage:
        shapes = {sized.name: sized.shape for sized in program.scratch}
        taken = [a for a in self._spec.arguments if not self._spec.is_sized(a) or a.name in shapes]
        taken += [sized.argument for sized in program.scratch if sized.argument is not None]
        return ProgramMessage(
            source=program.cubin.decode(),
            config=None if program.config is None else dict(program.config),
            launches=tuple(map(self._launch, program.launches)),
            arguments=tuple(self._argument(argument, workload, shapes) for argument in taken),
        )

    def _launch(self, launch: Launch) -> LaunchMessage:
        return LaunchMessage(
            kernel=launch.kernel,
            grid=launch.grid,
            block=launch.block,
            shared_bytes=launch.shared_bytes,
            cluster=launch.cluster,
            pdl=launch.pdl,
            arguments=launch.arguments
            or tuple(argument.name for argument in self._spec.arguments if not argument.added),
        )

    def _argument(
        self, argument: Argument, workload: Workload, shapes: Mapping[str, tuple[int, ...]]
    ) -> ArgumentMessage:
        names: Mapping[str, Value] = {**workload.values, **self._operators}
        value = None if argument.value is None else argument.value.evaluate(names)
        tolerance = self._spec.tolerances.get(argument.name)
        bounds = ", ".join(str(bound.evaluate(names)) for bound in argument.fill_bounds)
        return ArgumentMessage(
            name=argument.name,
            dtype=argument.dtype,
            shape=shapes.get(argument.name)
            or (() if argument.is_scalar else argument.dimensions(names)),
            role=argument.role,
            value=value if not isinstance(value, str) else None,
            fill=f"{argument.fill}({bounds})" if bounds else argument.fill,
            zeroed=argument.zeroed,
            tolerance=None if tolerance is None or tolerance.measured else _tolerance(tolerance),
        )


def _tolerance(tolerance: Tolerance) -> dict[str, float]:
    known = {"relative": tolerance.relative, "absolute": tolerance.absolute}
    return known if tolerance.codes is None else {**known, "codes": tolerance.codes}


def _as_outcome(answer: Answer | Outcome) -> Outcome:
    if isinstance(answer, Outcome):
        return answer
    return Outcome(Status(answer.status), answer.reason)


class ProgramFamily:
    """`--device command:PROGRAM`; implements `DeviceFamily`."""

    listed_as = ""

    def open(self, detail: str, spec: KernelSpec, operators: Mapping[str, str]) -> Device:
        return EvaluatorDevice(detail, spec, operators)

    def compiler(self, jobs: int | None, target: str) -> Compiler:
        return PassingCompiler(target)

    def list_here(self) -> tuple[Listed, ...]:
        return ()


COMMAND = ProgramFamily()
