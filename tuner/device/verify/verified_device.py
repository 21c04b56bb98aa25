"""What every device with a verifier does: verify, time, verify again; the worker's side differs."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from itertools import count, pairwise
from math import inf
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tuner.device.base import ComparisonRounds, DeviceInfo, Outcome, Program, largest_scratch
from tuner.device.inputs import NONFINITE, NORMAL, ORDINARY, input_kinds_for
from tuner.device.layout import Arena, Layout, Patch, lay_out
from tuner.device.timing import FINALS, SEARCH, WALL_RATIO, TimingPolicy
from tuner.device.verify.outputs import merged, told
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.kernel import KernelSpec, Workload
from tuner.model.surroundings import Surroundings
from tuner.model.trial import Correctness, Measurement, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.process.tally import spent_on

VERIFIER_TIMEOUT_S = 120.0
# Of a comparison: each ends with a verdict on what was timed last.
STRETCHES = 3
CLOSING_TIMEOUT_S = 10.0
# What the seconds of a device go to (`tuner.process.tally`).
MEMORY, VERIFIER, RUNS, TIMING = "memory", "verifier", "runs", "timing"


class RunFailedError(Exception):
    """A program did not end as it should; the worker works again, or will when it is asked.

    `killed` says that SIGKILL ended its process, which whoever is short of memory may have sent:
    the program is to blame only if that happens again.
    """

    def __init__(self, status: Status, reason: str, *, killed: bool = False) -> None:
        super().__init__(reason)
        self.status, self.killed = status, killed


class Killable(Protocol):
    def kill(self) -> None: ...


Rows = Sequence[tuple[float, ...]]
# Called with the result of a program's last timed call on one variant of its inputs in the arena,
# for both: the program's index, the variant, and whether timed calls on the same inputs left the
# same bits of all outputs that have to be deterministic.
Judge = Callable[[int, int, bool], None]
DIFFERS = "its output differs between timed calls on the same inputs"
_W = TypeVar("_W", bound=Killable)
_T = TypeVar("_T")


class RestartingWorker(ABC, Generic[_W]):
    """Run candidate code in a process that may die; raise `RunFailedError` where a program fails.

    The process has the verifier's memory mapped. One that died or gave no answer costs the program
    that it ran; it is replaced when the next one is asked for, and maps the memory again.
    """

    # What a reason calls the worker.
    _called: ClassVar[str]
    # Whether arrays get pages of their own, which the worker closes and protects.
    by_pages: ClassVar[bool] = False
    # What the clock varies by.
    noise_us: float = 0.0

    def __init__(self) -> None:
        self._worker: _W | None = None
        self._arena: Arena | None = None
        self._surroundings: Surroundings | None = None
        self._attached = False
        self._closed = False

    def orders(self) -> Iterator[int]:
        """Yield the orders of the runs that check one program."""
        return count()

    @abstractmethod
    def run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        """Run the program on the arena; return what to say of this run where its result is wrong.

        `order` is that of blocks and threads where the hardware leaves a choice: 0 ascending, 1
        descending, else the seed of a random one. `nan` says whether what the program has yet to
        write may hold NaN.
        """

    @abstractmethod
    def time(
        self,
        program: Program,
        policy: TimingPolicy,
        incumbent_us: float | None,
        patch: Patch,
        judge: Judge,
    ) -> Measurement:
        """Time the program on both variants of its inputs, then let the results be judged."""

    @abstractmethod
    def rerun(self, program: Program) -> None:
        """Run it as when it was timed, on what the arena holds now; leave one result there.

        Nothing that the program can observe may tell this from being timed.
        """

    @abstractmethod
    def compare(self, programs: Sequence[Program], rounds: int, patch: Patch, judge: Judge) -> Rows:
        """Time programs interleaved, in microseconds: a row a round, in the programs' order.

        Then let the results of each program be judged.
        """

    def alone_us(self, programs: Sequence[Program]) -> tuple[float, ...]:
        """Time programs without their neighbours, interleaved; medians, or () where none differ."""
        return ()

    def isolated_us(self, programs: Sequence[Program]) -> tuple[float | None, ...]:
        """Time those with programmatic dependent launch without it; None for the others."""
        return tuple(None for _ in programs)

    def attach(self, arena: Arena, surroundings: Surroundings | None = None) -> None:
        """Map the verifier's memory, unless it is mapped already; what was mapped is let go.

        `surroundings` are those of the workload whose memory it is.
        """
        if self._arena is not arena:
            if self._attached and self._arena is not None and arena.shares(self._arena):
                try:
                    self._fit(self._live_worker(), arena)
                except (ChildTimeoutError, ChildDiedError, WorkerError):
                    self._drop_worker()  # nothing ran in it: another one maps the memory
            else:
                self.detach()
            self._arena, self._surroundings = arena, surroundings
        with self._blamed_on_the_program():
            self._ready_worker()

    def detach(self) -> None:
        """Let go of the verifier's memory."""
        if self._worker is not None and self._attached:
            try:
                self._unmap(self._worker)
            except (ChildTimeoutError, ChildDiedError, WorkerError):
                self._drop_worker()  # nothing ran in it: the next program is not to blame
        self._attached, self._arena = False, None

    def close(self) -> None:
        """End the process, with it whatever runs; what another thread asks for then fails."""
        self._closed = True
        self._drop_worker()

    @abstractmethod
    def _start(self) -> _W: ...

    @abstractmethod
    def _map(self, worker: _W, arena: Arena) -> None: ...

    def _fit(self, worker: _W, arena: Arena) -> None:
        """Take another layout of what is mapped."""
        self._map(worker, arena)

    @abstractmethod
    def _unmap(self, worker: _W) -> None: ...

    @abstractmethod
    def _own_failures_blamed(self) -> AbstractContextManager[None]: ...

    @contextmanager
    def _blamed_on_the_program(self) -> Iterator[None]:
        try:
            with self._own_failures_blamed():
                yield
        except ChildTimeoutError as error:
            self._drop_worker()
            raise RunFailedError(Status.TIMEOUT, str(error)) from error
        except ChildDiedError as error:
            self._drop_worker()
            reason = f"{self._called} died (exit code {error})"
            raise RunFailedError(Status.LAUNCH, reason, killed=error.killed) from error

    def _ready_worker(self) -> _W:
        worker = self._live_worker()
        if self._arena is not None and not self._attached:
            try:
                self._map(worker, self._arena)
            except (ChildDiedError, WorkerError):
                self._drop_worker()
                raise
            self._attached = True
        return worker

    def _live_worker(self) -> _W:
        if self._worker is None:
            if self._closed:
                raise WorkerError(f"{self._called} was ended")
            self._worker = self._start()
        return self._worker

    def _drop_worker(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker, self._attached = None, False


def let_judge(worker: Child, index: int, judge: Judge, timeout_s: float) -> None:
    """Have a worker show what a program's last timed calls left, for each variant that they met."""
    for variant in (0, 1):
        repeats: bool | None = worker.call("show", index, variant, timeout_s=timeout_s)
        if repeats is not None:
            judge(index, variant, repeats)


@contextmanager
def unless_killed(
    failed: str, *causes: type[Exception], remedy: str | None = None
) -> Iterator[None]:
    """Raise `WorkerError` where a worker fails, or for one of `causes`, before it runs anything.

    `failed` says what did. One that SIGKILL ended may work when it is tried again: that stays a
    `ChildDiedError`.
    """
    failures: tuple[type[Exception], ...] = (ChildTimeoutError, ChildDiedError, *causes)
    try:
        yield
    except failures as error:
        if isinstance(error, ChildDiedError) and error.killed:
            raise
        raise WorkerError(f"{failed}: {error}", remedy=remedy) from error


class VerifiedDevice:
    """Verify and time programs of one kernel: no candidate's code runs in the verifier process."""

    def __init__(
        self, info: DeviceInfo, spec: KernelSpec, verifier: Child, runner: RestartingWorker[Any]
    ) -> None:
        self.info = info
        self._spec, self._verifier, self._runner = spec, verifier, runner
        self._input_kinds = input_kinds_for(spec)
        self._opened: Workload | None = None
        self._arena: Arena | None = None
        # Bytes that there are for scratch whose size a config chooses.
        self._rooms: dict[str, int] = {}
        # Of the inputs that a search times: what a kernel takes may depend on them, as that of an
        # MoE layer does on how many experts its tokens have, so they are the same for all configs.
        self._timed_seeds: dict[Workload, int] = {}

    def run(
        self,
        program: Program,
        *,
        incumbent_us: float | None = None,
        full_verification: bool = False,
    ) -> Outcome:
        return self._outcome_of(
            program, lambda: self._run(program, incumbent_us, full_verification)
        )

    def verify(self, program: Program) -> Outcome:
        def attempt() -> Outcome:
            self._enter(program)
            return _outcome(self._verdict(program, full_verification=True))

        return self._outcome_of(program, attempt)

    def same_bits(self, program: Program, like: Program) -> Outcome:
        def attempt() -> Outcome:
            self._enter(program, like)
            return _outcome(self._alike(program, like))

        return self._outcome_of(program, attempt)

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        """Time programs interleaved, in stretches of a random number of rounds.

        Each stretch has new inputs, and the output of each program's last call in it is judged.
        """
        workload = programs[0].workload

        def attempt() -> ComparisonRounds:
            rows, faults = self._alternated(programs, _stretches(rounds))
            around = self._spec.surroundings_of(workload)
            with spent_on(TIMING):
                isolated_us = self._runner.isolated_us(programs)
                alone_us = self._runner.alone_us(programs) if around else ()
            return ComparisonRounds(
                times_us=tuple(rows),
                paired=True,
                isolated_us=isolated_us,
                faults=tuple(faults.get(index, "") for index in range(len(programs))),
                noise_us=self._runner.noise_us,
                alone_us=alone_us,
            )

        return _tried(workload, attempt)

    def rank(self, programs: Sequence[Program], *, rounds: int) -> Sequence[Sequence[float]]:
        """Time programs interleaved, in one stretch, and judge what their last calls left."""

        def attempt() -> Rows:
            rows, faults = self._alternated(programs, [rounds])
            return [tuple(inf if k in faults else us for k, us in enumerate(row)) for row in rows]

        return _tried(programs[0].workload, attempt)

    def _alternated(
        self, programs: Sequence[Program], stretches: Iterable[int]
    ) -> tuple[Rows, dict[int, str]]:
        """Give the times of all rounds, and what was wrong with the results of which program."""
        self._enter(*programs)
        rows: list[tuple[float, ...]] = []
        faults: dict[int, str] = {}
        judge = self._judge(faults, programs)
        for stretch in stretches:
            self._ask("prepare", programs[0].workload, NORMAL, fresh_seed())
            patch = self._ask("alternate")
            with spent_on(TIMING):
                rows += self._runner.compare(programs, stretch, patch, judge)
        return rows, faults

    def close(self) -> None:
        self._runner.close()
        with suppress(ChildTimeoutError, ChildDiedError):  # memory may outlive a killed verifier
            self._verifier.call("close_arena", timeout_s=CLOSING_TIMEOUT_S)
        self._verifier.kill()

    def _outcome_of(self, program: Program, attempt: Callable[[], _T]) -> _T | Outcome:
        try:
            return _once_more_if_killed(program.workload, attempt)
        except RunFailedError as error:
            return Outcome(error.status, str(error))

    def _run(
        self, program: Program, incumbent_us: float | None, full_verification: bool
    ) -> Outcome:
        policy = FINALS if full_verification else SEARCH
        self._enter(program)
        before = self._verdict(program, full_verification)
        if not before.passed:
            return _outcome(before)
        patch: Patch = self._ask("alternate")
        faults: dict[int, str] = {}
        judge = self._judge(faults, (program,))
        with spent_on(TIMING):
            measurement = self._runner.time(program, policy, incumbent_us, patch, judge)
        fault = faults.get(0, "")
        if not fault and full_verification and not patch.offsets:
            fault = self._verified_again(program).reason
        if fault:
            self._note_told(program.workload)
            return Outcome(Status.INCORRECT, f"after timing, {fault}")
        ratio = measurement.wall_ratio
        if ratio is not None and ratio > WALL_RATIO:
            reason = (
                f"wall time is {ratio:.2f} times the event time (at most {WALL_RATIO}): "
                "work runs outside the timed stream"
            )
            return Outcome(Status.INCORRECT, reason, measurement, before)
        if program.tell_bits:
            before = replace(before, bits=self._bits_of(program))
        return Outcome(Status.CORRECT, "", measurement, before)

    def _verdict(self, program: Program, full_verification: bool) -> Correctness:
        """Check kinds of input, `normal` last so that its inputs are the ones that are timed."""
        if program.peer:
            return self._peer_verdict(program)
        others = self._input_kinds[1:]
        others = others if full_verification else (secrets.choice(others),)
        workload, cached = program.workload, not full_verification
        orders = self._runner.orders()
        known: bool = self._ask("prepare", workload, others[0], fresh_seed(), cached)
        verdict: Correctness
        verdicts: list[Correctness] = []
        for kind, following in pairwise((*others, NORMAL)):
            said = self._run_with_reference(program, next(orders), known, nan=kind != NONFINITE)
            seed = self._shared_seed(workload, following) if cached else fresh_seed()
            verdict, known = self._ask("check_then_prepare", workload, following, seed, cached)
            verdicts.append(verdict)
            if not verdict.passed:
                return replace(verdict, reason=verdict.reason + said)
        said = self._run_with_reference(program, next(orders), known)
        verdicts.append(self._ask("check", full_verification))
        if full_verification and verdicts[-1].passed:
            self._ask("poison")
            said = self._run_once(program, next(orders))
            verdicts.append(self._ask("check_again"))
        last: Correctness = verdicts[-1]
        if last.passed:
            return merged(verdicts)
        self._note_told(workload)
        return replace(last, reason=last.reason + said)

    def _alike(self, program: Program, like: Program) -> Correctness:
        """Verify two programs on the same inputs of every kind, the second by the bits of one."""
        orders, verdicts = self._runner.orders(), list[Correctness]()
        for kind in (*self._input_kinds[1:], NORMAL):
            nan = kind != NONFINITE
            known = self._ask("prepare", program.workload, kind, fresh_seed())
            said = self._run_with_reference(like, next(orders), known, nan=nan)
            verdict: Correctness = self._ask("check", True)
            if verdict.passed:
                self._ask("poison")
                said = self._run_once(program, next(orders), nan=nan)
                verdict = self._ask("check_alike")
            if not verdict.passed:
                return replace(verdict, reason=verdict.reason + said)
            verdicts.append(verdict)
        return merged(verdicts)

    def _bits_of(self, program: Program) -> str:
        """Run a program on the inputs that are the same for all, and digest what it makes."""
        self._ask("prepare_same", program.workload)
        self._run_once(program, next(self._runner.orders()))
        bits: str = self._ask("digest")
        return bits

    def _peer_verdict(self, program: Program) -> Correctness:
        """Check a peer with every kind of input; only ordinary ones decide, the rest is told.

        Peers are not out to deceive: they may share inputs, and need not repeat their bits.
        """
        verdicts: list[Correctness] = []
        for order, kind in enumerate((*self._input_kinds[1:], NORMAL)):
            seed = self._shared_seed(program.workload, kind)
            known = self._ask("prepare", program.workload, kind, seed, True)
            said = self._run_with_reference(program, order, known, nan=kind != NONFINITE)
            verdict: Correctness = self._ask("check", False, None, True)
            if not verdict.passed and kind in ORDINARY:
                self._note_told(program.workload)
                return replace(verdict, reason=verdict.reason + said)
            verdicts.append(verdict)
        return told(verdicts)

    def _shared_seed(self, workload: Workload, kind: str) -> int:
        """Give the seed of inputs that other programs may get too: for `normal` ones they do."""
        seed = fresh_seed()
        return self._timed_seeds.setdefault(workload, seed) if kind == NORMAL else seed

    def _note_told(self, workload: Workload) -> None:
        """Have other inputs timed from now on: a message tells the seed of these."""
        self._timed_seeds.pop(workload, None)

    def _run_with_reference(
        self, program: Program, order: int, known: bool, *, nan: bool = True
    ) -> str:
        if known:
            return self._run_once(program, order, nan=nan)
        with _blamed_on_verifier():
            self._verifier.send("compute_reference")
        try:
            return self._run_once(program, order, nan=nan)
        finally:
            with spent_on(VERIFIER), _blamed_on_verifier():
                self._verifier.receive(VERIFIER_TIMEOUT_S)

    def _run_once(self, program: Program, order: int, *, nan: bool = True) -> str:
        with spent_on(RUNS):
            return self._runner.run_once(program, order, nan=nan)

    def _judge(self, faults: dict[int, str], programs: Sequence[Program]) -> Judge:
        """Make what verifies a timed call's result and notes a fault of a program in `faults`."""

        def judge(index: int, variant: int, repeats: bool) -> None:
            peer = bool(programs[index].peer)
            verdict: Correctness = self._ask("check", False, variant, peer)
            fault = verdict.reason or ("" if repeats else DIFFERS)
            # What is wrong says more than that something is.
            if fault and faults.get(index, DIFFERS) == DIFFERS:
                faults[index] = fault

        return judge

    def _verified_again(self, program: Program) -> Correctness:
        """Verify what calls like timed ones leave of slightly other inputs: results may be kept."""
        self._ask("touch")
        with spent_on(RUNS):
            self._runner.rerun(program)
        verdict: Correctness = self._ask("check", False, None, bool(program.peer))
        return verdict

    def _ask(self, method: str, *arguments: Any) -> Any:
        with spent_on(VERIFIER), _blamed_on_verifier():
            return self._verifier.call(method, *arguments, timeout_s=VERIFIER_TIMEOUT_S)

    def _enter(self, *programs: Program) -> None:
        """Open the memory of a workload, or lay it out anew for scratch that these programs size.

        Programs that are compared have the largest of each: they take turns, and what one left
        there is spoiled before the next.
        """
        workload, anew = programs[0].workload, self._opened != programs[0].workload
        self._rooms = {} if anew else self._rooms
        layout = lay_out(
            self._spec,
            workload.values,
            by_pages=self._runner.by_pages,
            scratch=largest_scratch(programs),
            rooms=self._rooms,
        )
        with spent_on(MEMORY):
            if anew or self._arena is None or layout.total_bytes != self._arena.layout.total_bytes:
                self._open(workload, layout)
            elif layout != self._arena.layout:
                self._arena = self._ask("fit", layout)
            assert self._arena is not None
            self._runner.attach(self._arena, self._spec.surroundings_of(workload))

    def _open(self, workload: Workload, layout: Layout) -> None:
        sized = {slot.name: slot.size_bytes for slot in layout.slots if slot.sized}
        needed = {name: max(size, self._rooms.get(name, 0)) for name, size in sized.items()}
        grown, self._opened, self._rooms = self._opened == workload, None, {}
        # The worker lets go first: the verifier may not free what another process has mapped.
        self._runner.detach()
        try:
            self._arena = self._ask("open_arena", workload, layout)
            self._ask("prepare", workload, NORMAL, fresh_seed())
        except MemoryError as error:
            if not grown:
                raise
            reason = f"its scratch of {sum(sized.values()):,} bytes finds no room: {error}"
            raise RunFailedError(Status.RESOURCE_LIMIT, reason) from error
        self._opened, self._rooms = workload, needed


def fresh_seed() -> int:
    """Draw a seed for inputs that no candidate can know."""
    return secrets.randbits(62)


@contextmanager
def _blamed_on_verifier() -> Iterator[None]:
    """Tell the verifier's end from a candidate's: without it no verdict is possible any more."""
    try:
        yield
    except ChildTimeoutError as error:
        raise WorkerError(f"the process that verifies results gave {error}") from error
    except ChildDiedError as error:
        raise WorkerError(
            f"the process that verifies results ended (exit code {error})",
            remedy="it holds the inputs and the float64 reference of a workload: the system may "
            "have run out of memory",
        ) from error


def _tried(workload: Workload, attempt: Callable[[], _T]) -> _T:
    try:
        return _once_more_if_killed(workload, attempt)
    except RunFailedError as error:
        raise DeviceError(f"a verified program failed when timed again: {error}") from error


def _once_more_if_killed(workload: Workload, attempt: Callable[[], _T]) -> _T:
    try:
        try:
            return attempt()
        except RunFailedError as error:
            if not error.killed:
                raise
        return attempt()
    except MemoryError as error:
        raise DeviceError(
            f"not enough memory for {workload}: {error}",
            remedy="leave the workload out, or free the memory: checking it takes its arguments "
            "twice and float64 copies of them",
        ) from error


def _stretches(rounds: int) -> Sequence[int]:
    """Cut rounds into up to `STRETCHES` parts at random places, which nobody can foresee."""
    cuts = secrets.SystemRandom().sample(range(1, rounds), min(STRETCHES, rounds) - 1)
    return [end - start for start, end in pairwise((0, *sorted(cuts), rounds))]


def _outcome(verdict: Correctness) -> Outcome:
    status = Status.CORRECT if verdict.passed else Status.INCORRECT
    return Outcome(status, verdict.reason, correctness=verdict)
