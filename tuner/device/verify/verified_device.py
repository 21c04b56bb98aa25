"""What every device with a verifier does: verify, time, verify again, never in one process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Any, TypeVar

from tuner.device.base import (
    BITS_DIFFER,
    DIFFERS,
    TOO_FAST,
    ComparisonRounds,
    Device,
    DeviceInfo,
    Outcome,
    Program,
    RankedRounds,
    largest_scratch,
)
from tuner.device.inputs import (
    EXTREME,
    EXTREMES,
    LEFT_OUT,
    NONFINITE,
    NORMAL,
    ORDINARY,
    input_kinds_for,
    limit_extremes,
    split_kind,
)
from tuner.device.layout import UNCHANGED, Arena, Layout, Patch, lay_out
from tuner.device.timing import SEARCH, WALL_RATIO, Stretch, draws, draws_in, stretches_of
from tuner.device.verify.accuracy import draws_of
from tuner.device.verify.bits import count_turns, join_digests
from tuner.device.verify.outputs import is_inexact, merge_passes, merge_peer_verdicts
from tuner.device.verify.restarting_worker import Judge, RestartingWorker, Rows, RunFailedError
from tuner.device.verify.verifier import Whose
from tuner.model.errors import DeviceError, OutOfMemory, WorkerError
from tuner.model.kernel import ChosenScratch, KernelSpec, Workload
from tuner.model.trial import Correctness, Status
from tuner.process.child import Child, ChildDiedError, ChildTimeoutError
from tuner.process.tally import spent_on

VERIFIER_TIMEOUT_S = 120.0
CLOSING_TIMEOUT_S = 10.0
# What the seconds of a device go to (`tuner.process.tally`).
MEMORY, VERIFIER, RUNS, TIMING, VERDICTS = "memory", "verifier", "runs", "timing", "verdicts"
# How far extremes go, the farthest first; "" are none.
_REACHES = (EXTREME, *map(limit_extremes, EXTREMES), "")
_T = TypeVar("_T")


class VerifiedDevice(Device):
    """Verify and time programs of one kernel: no candidate's code runs in the verifier process."""

    capabilities = frozenset({"verify", "verify_together", "bits", "rank", "machine_code"})

    # Where accesses are judged, every program gets the extremes on which it is right itself.
    fits_all = False

    def __init__(
        self, info: DeviceInfo, spec: KernelSpec, verifier: Child, runner: RestartingWorker[Any]
    ) -> None:
        self.info = info
        self._spec, self._verifier, self._runner = spec, verifier, runner
        _, *self._other_kinds = input_kinds_for(spec)
        # How far extremes go on a workload where the baseline is wrong beyond; "" where it is
        # wrong with any.
        self._extremes: dict[Workload, str] = {}
        self._tells = False
        self._opened: Workload | None = None
        self._arena: Arena | None = None
        # Bytes that there are for scratch whose size a config chooses.
        self._rooms: dict[str, int] = {}
        # What the last program that brought any on this workload brought: its place stays, so that
        # memory is laid out seldom.
        self._scratch: dict[str, ChosenScratch] = {}
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

    def verify_together(self, programs: Sequence[Program]) -> Sequence[Outcome]:
        """Verify programs of one workload, each kind of input drawn once for all of them.

        They take turns in an order drawn for each kind: none can count on what another one left.
        Alone stay peers, which keep another contract, and who chooses the size of its scratch: the
        memory would be laid out anew for each turn.
        """
        together = {k: p for k, p in enumerate(programs) if not (p.peer or p.scratch)}
        failed: dict[int, Outcome] = {}
        passed: dict[int, list[Correctness]] = {index: [] for index in together}
        orders = {index: self._runner.orders() for index in together}

        def check(index: int, kind: str, seed: int) -> Correctness:
            self._enter(programs[index])
            return self._verify_kind(programs[index], orders[index], kind, seed)

        for kind in self._kinds(programs[0].workload):
            seed, turns = fresh_seed(), [index for index in together if index not in failed]
            secrets.SystemRandom().shuffle(turns)
            for index in turns:
                verdict = self._outcome_of(programs[index], partial(check, index, kind, seed))
                if isinstance(verdict, Outcome):
                    failed[index] = verdict
                elif verdict.passed:
                    passed[index].append(verdict)
                else:
                    failed[index] = _outcome(verdict)
        right = {k: _outcome(merge_passes(all_)) for k, all_ in passed.items() if k not in failed}
        alone = {k: self.verify(program) for k, program in enumerate(programs) if k not in together}
        outcomes = failed | right | alone
        return [outcomes[index] for index in range(len(programs))]

    def bits(self, program: Program, seed: int | None = None) -> Outcome:
        def attempt() -> Outcome:
            self._enter(program)
            kinds = (NORMAL,) if seed is None else self._kinds(program.workload)
            digests: list[str] = []
            for kind, other in zip(kinds, (*kinds[1:], kinds[0]), strict=True):
                bits, fault = self._digest(program, kind, other, seed)
                if fault:
                    return Outcome(Status.NOT_INVARIANT, fault)
                digests.append(bits)
            return _outcome(Correctness(True, kinds, bits=" ".join(digests)))

        return self._outcome_of(program, attempt)

    def place_inputs(self, program: Program) -> Arena | Outcome:
        """Draw a program's arrays where another process can copy them until the next run."""

        def attempt() -> Arena:
            self._enter(program)
            self._ask("prepare", program.workload, NORMAL, fresh_seed())
            assert self._arena is not None
            return self._arena

        try:
            return self._outcome_of(program, attempt)
        except OutOfMemory as error:
            return Outcome(Status.RESOURCE_LIMIT, str(error))

    def compare(self, programs: Sequence[Program], *, rounds: int) -> ComparisonRounds:
        """Time programs interleaved, in stretches of a random number of rounds.

        Each stretch has new inputs, and the output of each program's last call in it is judged;
        where they have no variants, that of calls on other inputs in the end. Where inputs decide
        how much there is to do, a row is the mean of a stretch, there are half as many, and one in
        four is judged. One program alone runs in a fresh process: nobody else is to blame there.
        """
        workload = programs[0].workload
        if len(programs) == 1:
            self._runner.start_afresh()

        def attempt() -> ComparisonRounds:
            cut = draws_in if self._draws_each_row else stretches_of
            rows, faults, varied = self._time_alternately(programs, cut(rounds), again=True)
            around = self._spec.surroundings_of(workload)
            traffic = 0 if around else self._spec.min_bytes.integer(workload.values)
            for index, us in enumerate(map(median, zip(*rows, strict=True))):
                too_fast = self.info.is_too_fast(us, traffic, hot=self.info.on_cpu)
                if too_fast and not programs[index].peer:
                    faults.setdefault(index, TOO_FAST)
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
                unvaried=not varied,
            )

        return self._attempt_or_raise(workload, attempt)

    def rank(self, programs: Sequence[Program], *, rounds: int) -> RankedRounds:
        """Time programs interleaved, in one stretch, and judge what their last calls left.

        Where inputs decide how much there is to do, each row has inputs of its own.
        """

        def attempt() -> RankedRounds:
            stretches = draws(rounds) if self._draws_each_row else [Stretch(rounds)]
            rows, faults, _ = self._time_alternately(programs, stretches)
            return [tuple(None if k in faults else us for k, us in enumerate(row)) for row in rows]

        return self._attempt_or_raise(programs[0].workload, attempt)

    def _time_alternately(
        self, programs: Sequence[Program], stretches: Iterable[Stretch], *, again: bool = False
    ) -> tuple[Rows, dict[int, str], bool]:
        """Give the times of all rounds, what was wrong with whose results, and if inputs varied.

        Those without variants of their inputs are verified `again` at the end, on other ones.
        """
        self._enter(*programs)
        rows: list[tuple[float, ...]] = []
        faults: dict[int, str] = {}
        judge, varied = self._judge(faults, programs), False
        for stretch in stretches:
            self._ask("prepare", programs[0].workload, NORMAL, fresh_seed())
            patch: Patch = self._ask("alternate") if stretch.judged else UNCHANGED
            varied = varied or bool(patch.changes)
            judging = judge if stretch.judged else None
            with spent_on(TIMING):
                timed = self._runner.compare(programs, stretch.rounds, patch, judging)
            if self._draws_each_row:
                timed = [tuple(map(fmean, zip(*timed, strict=True)))]
            rows += timed
        if again and not varied:
            left = {k: p for k, p in enumerate(programs) if k not in faults and not p.peer}
            faults |= self._faults_on_others(left)
        return rows, faults, varied

    @property
    def _draws_each_row(self) -> bool:
        """Tell whether each row gets inputs of its own; a CPU's times say too little for that."""
        return self._spec.work_depends_on_inputs and not self.info.on_cpu

    def _faults_on_others(self, programs: Mapping[int, Program]) -> dict[int, str]:
        """Verify compared programs on other inputs, which are drawn once where none spoils them."""
        faults: dict[int, str] = {}
        anew = True
        for index, program in programs.items():
            try:
                fault = self._verify_again(program, anew=anew).reason
            except RunFailedError as error:
                if error.killed:
                    raise
                fault = str(error)
            if fault:
                faults[index] = fault
            anew = bool(fault)
        return faults

    def close(self) -> None:
        self._runner.close()
        with suppress(ChildTimeoutError, ChildDiedError):  # memory may outlive a killed verifier
            self._verifier.call("close_arena", timeout_s=CLOSING_TIMEOUT_S)
        self._verifier.kill()

    def _outcome_of(self, program: Program, attempt: Callable[[], _T]) -> _T | Outcome:
        try:
            return self._with_a_second_attempt(program.workload, attempt)
        except RunFailedError as error:
            return Outcome(error.status, str(error))

    def _attempt_or_raise(self, workload: Workload, attempt: Callable[[], _T]) -> _T:
        try:
            return self._with_a_second_attempt(workload, attempt)
        except RunFailedError as error:
            message = f"a verified program failed when timed again: {error}"
            if error.status is Status.RESOURCE_LIMIT:
                raise OutOfMemory(message, workload.key) from error
            raise DeviceError(message) from error

    def _with_a_second_attempt(self, workload: Workload, attempt: Callable[[], _T]) -> _T:
        """Try again where memory ended, or may have: then without what is only kept for later."""
        try:
            try:
                return attempt()
            except RunFailedError as error:
                if not error.killed:
                    raise
            except MemoryError:
                pass
            self._runner.detach()
            self._ask("let_go")
            return attempt()
        except MemoryError as error:
            raise OutOfMemory(
                f"not enough memory for {workload}: {error}",
                workload.key,
                remedy="leave the workload out, or free the memory: checking it takes its "
                "arguments up to three times and float64 copies of them",
            ) from error

    def _run(
        self, program: Program, incumbent_us: float | None, full_verification: bool
    ) -> Outcome:
        self._enter(program)
        before = self._verdict(program, full_verification)
        if not before.passed:
            return _outcome(before)
        patch: Patch = self._ask("alternate")
        faults: dict[int, str] = {}
        judge = self._judge(faults, (program,))
        with spent_on(TIMING):
            measurement = self._runner.time(program, SEARCH, incumbent_us, patch, judge)
        fault = faults.get(0, "")
        if not fault and full_verification and not patch.changes:
            fault = self._verify_again(program).reason
        if fault and whose_is(program) == "baseline" and self._ask("leave_given"):
            return self._run(program, incumbent_us, full_verification)
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
            bits, fault = self._digest(program, NORMAL, NORMAL, None)
            if fault and whose_is(program) == "config":
                return Outcome(Status.NOT_INVARIANT, fault, measurement, before)
            before = replace(before, bits=bits)
        return Outcome(Status.CORRECT, "", measurement, before)

    def _verdict(self, program: Program, full_verification: bool) -> Correctness:
        if program.peer:
            return self._peer_verdict(program)
        if not full_verification:
            return self._quick_verdict(program)
        if not self._tells:  # what no input can show is not to be called right
            self._ask("require_telling")
            self._tells = True
        verdicts, orders = list[Correctness](), self._runner.orders()
        is_baseline = whose_is(program) == "baseline"
        # What others may be off by is as good as the baseline's sample is large.
        draws = draws_of(self._spec, program.workload) if is_baseline else 1
        for kind in self._kinds(program.workload):
            for _ in range(draws):
                verdict = self._verify_fitting(program, orders, kind)
                if not verdict.passed:
                    return verdict
                verdicts.append(verdict)
        return merge_passes(verdicts)

    def _kinds(self, workload: Workload) -> tuple[str, ...]:
        """List the kinds of input for a workload; last come those that are timed."""
        reach = self._extremes_on(workload)
        fitted = (reach if kind == EXTREME else kind for kind in self._other_kinds)
        return (*filter(None, fitted), NORMAL)

    def _extremes_on(self, workload: Workload) -> str:
        """Say how far extremes go; at first as far as where the baseline takes the smallest.

        On a small problem it may be right by chance with what it is wrong with on a large one.
        """
        narrowest = max(self._extremes.values(), key=_REACHES.index, default=EXTREME)
        return self._extremes.get(workload, narrowest)

    def _verify_fitting(self, program: Program, orders: Iterator[int], kind: str) -> Correctness:
        """Verify one kind of input; of extremes give a baseline smaller ones where it is wrong.

        Where float32 itself overflows no kernel passes. All that come later on this workload get
        the extremes on which the baseline is right, or none. What it does besides being inexact
        stays.
        """
        if split_kind(kind)[0] != EXTREME:
            return self._verify_kind(program, orders, kind, fresh_seed())
        known = self._extremes_on(program.workload)
        for reach in filter(None, _REACHES[_REACHES.index(known) :]):
            verdict = self._verify_kind(program, orders, reach, fresh_seed())
            fits = self.fits_all or whose_is(program) == "baseline"
            if not fits or not is_inexact(verdict):
                self._extremes[program.workload] = reach
                return verdict
        self._extremes[program.workload] = ""
        return Correctness(True, (f"{EXTREME}{LEFT_OUT}",))

    def _quick_verdict(self, program: Program) -> Correctness:
        """Check one kind of input, drawn at random, and then `normal`, whose inputs are timed."""
        workload, orders = program.workload, self._runner.orders()
        *others, _ = self._kinds(workload)
        kind = secrets.choice(others)
        known: bool = self._ask("prepare", workload, kind, fresh_seed(), True)
        said = self._run_with_reference(program, next(orders), known, nan=kind != NONFINITE)
        seed = self._shared_seed(workload, NORMAL)
        verdict: Correctness
        verdict, known = self._ask("check_then_prepare", workload, NORMAL, seed)
        if not verdict.passed:
            return replace(verdict, reason=verdict.reason + said)
        said = self._run_with_reference(program, next(orders), known)
        last: Correctness = self._ask("check")
        if last.passed:
            return merge_passes((verdict, last))
        self._note_told(workload)
        return replace(last, reason=last.reason + said)

    def _verify_kind(
        self, program: Program, orders: Iterator[int], kind: str, seed: int
    ) -> Correctness:
        """Verify what it makes of one set of inputs; of `normal` ones twice, for equal bits."""
        known = self._ask("prepare", program.workload, kind, seed)
        said = self._run_with_reference(program, next(orders), known, nan=kind != NONFINITE)
        verdict: Correctness = self._ask("check", kind == NORMAL, None, whose_is(program))
        if verdict.passed and kind == NORMAL:
            self._ask("poison")
            said = self._run_once(program, next(orders))
            again: Correctness = self._ask("check_again")
            verdict = merge_passes((verdict, again)) if again.passed else again
        return verdict if verdict.passed else replace(verdict, reason=verdict.reason + said)

    def _digest(self, program: Program, kind: str, other: str, seed: int | None) -> tuple[str, str]:
        """Digest what it makes of inputs that others get too; the last part is what varies.

        Of invariant rows that is what several turns made of the same ones: in the first half of
        them beside rows of the same kind, then beside those of an `other`.
        """
        workload, orders, rows = program.workload, self._runner.orders(), self._spec.invariant
        digests: dict[int, tuple[str, int]] = {}
        turns = count_turns(rows, self._spec, workload) if rows else 1
        for turn in range(turns):
            beside = kind if 2 * turn < turns else other
            places = self._ask("prepare_same", workload, kind, seed, turn, beside)
            self._run_once(program, next(orders), nan=NONFINITE not in (kind, beside))
            for probe, bits in self._ask("digest"):
                before, place = digests.setdefault(probe, (bits, places.get(probe, 0)))
                if before != bits and rows:
                    where = f"row {places[probe]} of {workload.values[rows.axis]}"
                    return "", f"{where} {BITS_DIFFER} than as row {place}, beside other rows"
        whole = [digests[probe][0] for probe in sorted(digests)]
        return (join_digests(whole) if rows else whole[0]), ""

    def _peer_verdict(self, program: Program) -> Correctness:
        """Check a peer with every kind of input; only ordinary ones decide, the rest is told.

        Peers are not out to deceive: they may share inputs, and need not repeat their bits.
        """
        verdicts: list[Correctness] = []
        for order, kind in enumerate(self._kinds(program.workload)):
            seed = self._shared_seed(program.workload, kind)
            known = self._ask("prepare", program.workload, kind, seed, True)
            said = self._run_with_reference(program, order, known, nan=kind != NONFINITE)
            verdict: Correctness = self._ask("check", False, None, "peer")
            if not verdict.passed and kind in ORDINARY:
                self._note_told(program.workload)
                return replace(verdict, reason=verdict.reason + said)
            verdicts.append(verdict)
        return merge_peer_verdicts(verdicts)

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
            with spent_on(VERDICTS):
                verdict: Correctness = self._call(
                    "check", False, variant, whose_is(programs[index])
                )
            fault = verdict.reason or ("" if repeats else DIFFERS)
            # What is wrong says more than that something is.
            if fault and faults.get(index, DIFFERS) == DIFFERS:
                faults[index] = fault

        return judge

    def _verify_again(self, program: Program, *, anew: bool = True) -> Correctness:
        """Verify what calls like timed ones leave of slightly other inputs: results may be kept.

        Not `anew` they are those that the arena holds.
        """
        self._ask("touch" if anew else "poison")
        with spent_on(RUNS):
            self._runner.rerun(program)
        verdict: Correctness = self._ask("check", False, None, whose_is(program))
        return verdict

    def _ask(self, method: str, *arguments: Any) -> Any:
        with spent_on(VERIFIER):
            return self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        with _blamed_on_verifier():
            return self._verifier.call(method, *arguments, timeout_s=VERIFIER_TIMEOUT_S)

    def _enter(self, *programs: Program) -> None:
        """Open the memory of a workload, or lay it out anew for scratch that these programs size.

        Programs that are compared have the largest of each: they take turns, and what one left
        there is spoiled before the next.
        """
        workload, anew = programs[0].workload, self._opened != programs[0].workload
        if anew:
            self._rooms, self._scratch = {}, {}
        scratch = largest_scratch(programs)
        added = {name: sized for name, sized in scratch.items() if sized.added}
        self._scratch = added or self._scratch
        layout = lay_out(
            self._spec,
            workload.values,
            by_pages=self._runner.by_pages,
            scratch={**self._scratch, **scratch},
            rooms=self._rooms,
        )
        with spent_on(MEMORY):
            if anew or self._arena is None or layout.total_bytes != self._arena.layout.total_bytes:
                self._open(workload, layout)
            elif layout != self._arena.layout:
                self._arena = self._call("fit", layout)
            assert self._arena is not None
            self._runner.attach(self._arena, self._spec.surroundings_of(workload))

    def _open(self, workload: Workload, layout: Layout) -> None:
        sized = {slot.name: slot.size_bytes for slot in layout.slots if slot.sized}
        needed = {name: max(size, self._rooms.get(name, 0)) for name, size in sized.items()}
        grown, self._opened, self._rooms = self._opened == workload, None, {}
        # The worker lets go first: the verifier may not free what another process has mapped.
        self._runner.detach()
        try:
            self._arena = self._call("open_arena", workload, layout)
            if sized:  # see now whether there is room beside it
                self._call("prepare", workload, NORMAL, fresh_seed())
        except MemoryError as error:
            if not sized or not (grown or self._has_room(workload)):
                raise
            reason = f"its scratch of {sum(sized.values()):,} bytes finds no room: {error}"
            raise RunFailedError(Status.RESOURCE_LIMIT, reason) from error
        self._opened, self._rooms = workload, needed

    def _has_room(self, workload: Workload) -> bool:
        """Tell whether there is room where a config asks for next to no scratch."""
        smallest = lay_out(self._spec, workload.values, by_pages=self._runner.by_pages)
        try:
            self._call("open_arena", workload, smallest)
            self._call("prepare", workload, NORMAL, fresh_seed())
        except MemoryError:
            return False
        return True


def whose_is(program: Program) -> Whose:
    if program.peer:
        return "peer"
    return "baseline" if program.config is None else "config"


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


def _outcome(verdict: Correctness) -> Outcome:
    status = Status.CORRECT if verdict.passed else Status.INCORRECT
    return Outcome(status, verdict.reason, correctness=verdict)
