"""Further checks of configs that may win: edge cases, and tools that watch every access."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tuner.analysis.sass import disassemble, read
from tuner.analysis.unwritten import describe_unwritten, find_unwritten
from tuner.analysis.waits import before_wait, unread_because
from tuner.device.base import (
    Outcome,
    Program,
    Watcher,
    verify_all,
)
from tuner.device.sizes import choose_near
from tuner.device.verify.bits import draw_sizes
from tuner.dispatch.evidence import find_wrong_variants
from tuner.model.errors import InputError
from tuner.model.kernel import Invariance, Workload
from tuner.model.trial import Check, Status, Trial, Variant
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.device_queues import serve_queue_of
from tuner.tuning.evaluator import Candidates, Evaluator, Pending, other_bits, refuse_model

VERIFY, EDGE_CASES, COMPARE, MACHINE_CODE = "verify", "edge_cases", "compare", "machine_code"
BITS = "bits"
# On a CPU a large problem takes seconds, and most of what is found there shows in a small one.
LARGEST_HOST_BYTES = 16 << 20
# A baseline need not take such sizes, nor end with them.
NEAR_LIMIT_S = 2.0
# What says nothing of a kernel: the config is not for this workload, or it cannot be had here.
_NOT_MEANT = frozenset({Status.CONSTRAINT, Status.RESOURCE_LIMIT})
_NOT_RUN = frozenset({Status.COMPILE, Status.NOT_RECORDED})

# Each waits for a disassembler, which takes a core.
READERS = 4
# How many rows a config is tried with whose rows are to be invariant, one more than a tile has
# among them. Of others, few and many rows alike, only the finals know (`draw_sizes`).
ROWS = (1, 8, 32, 33, 256, 2048)

Pair = tuple[Workload, Variant]


@dataclass(frozen=True, slots=True)
class Watch:
    """A tool, what compiles a candidate for it, and the largest arrays that it is given."""

    watcher: Watcher
    evaluator_of: Callable[[Plan], Evaluator]
    largest_bytes: int


@dataclass(eq=False)
class Verification:
    """Check variants of one run's candidates and keep the verdicts in its session.

    A variant that fails anywhere is out everywhere. What the session holds already is not run
    again, unless `repeat` asks for it; a workload over `largest_bytes` is not run at all.
    """

    plan: Plan
    session: Session
    candidates: Candidates
    watches: Sequence[Watch] = ()
    repeat: bool = field(default=False, kw_only=True)
    largest_bytes: int | None = field(default=None, kw_only=True)
    made: list[Check] = field(default_factory=list, init=False)
    near: tuple[Workload, ...] = field(default=(), init=False)

    # What the first made of a problem, by kind of input, and the seeds of its inputs.
    _bits: dict[Workload, dict[str, str]] = field(default_factory=dict, init=False)
    _seeds: dict[Workload, int] = field(default_factory=dict, init=False)
    # Of invariant rows: the further sizes of each problem, and who was looked at on all of them.
    _sizes: dict[Workload, list[Workload]] = field(default_factory=dict, init=False)
    _seen: dict[Pair, Outcome] = field(default_factory=dict, init=False)

    # What was begun before it is asked for.
    _begun: dict[Pair, Pending | Outcome] = field(default_factory=dict, init=False)
    _reading: dict[Pair, Future[Outcome | None]] = field(default_factory=dict, init=False)
    _readers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READERS, "machine code"), init=False
    )

    def __post_init__(self) -> None:
        self.device = self.candidates.device
        known = () if self.repeat else self.session.checks()
        self._known = {(check.kind, check.workload, check.variant) for check in known}
        decided = () if self.repeat else self.session.trials(stage="finals")
        self._failed = set(find_wrong_variants(decided, known))

    @property
    def edge_cases(self) -> tuple[Workload, ...]:
        """The file's own, and those of `try_near`."""
        return (*self.plan.spec.edge_cases, *self.near)

    def failed(self, variant: Variant) -> bool:
        """Tell whether a variant has failed a check."""
        return variant in self._failed

    def begin(self, pairs: Iterable[Pair]) -> None:
        """Start what finalists need no device for: compiling for edge cases, reading their code.

        Not on a CPU, where compilers would take the cores from what is timed.
        """
        wanted = dict.fromkeys(pairs)
        if self._verifies and not self.device.info.on_cpu:
            edges = self._edge_case_pairs({variant: None for _, variant in wanted})
            left = [edge for edge in edges if (EDGE_CASES, *edge) not in self._known]
            self._begun |= {one: self._start(*one) for one in left if one not in self._begun}
        self._begin_reading(wanted)

    def drop(self, workload: Workload) -> None:
        """Forget what was begun for a workload and nobody has asked for.

        Of edge cases, which are everybody's, all: who wants one begins it again, and the compiler
        has it by then.
        """
        self._begun.clear()
        for pair in [one for one in self._reading if one[0] == workload]:
            if reading := self._reading.pop(pair, None):
                reading.cancel()

    def close(self) -> None:
        """End what is still read."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    @property
    def _verifies(self) -> bool:
        return "verify" in self.device.capabilities

    def verify(self, pairs: Iterable[Pair], kind: str = VERIFY) -> None:
        """Verify variants with every kind of input and twice, untimed, where the device does."""
        if not self._verifies:
            return
        wanted = [pair for pair in dict.fromkeys(pairs) if (kind, *pair) not in self._known]
        begun = {pair: self._begun.pop(pair, None) for pair in wanted}
        started = {pair: one or self._start(*pair) for pair, one in begun.items()}
        for workload in dict.fromkeys(workload for workload, _ in wanted):
            made = {p: self._ready(p[1], one) for p, one in started.items() if p[0] == workload}
            outcomes = self._verify_programs(made.values())
            for (pair, program), outcome in zip(made.items(), outcomes, strict=True):
                # Of few results a measured tolerance is now and then none: a second draw decides.
                doubtful = workload in self.near and outcome.status is Status.INCORRECT
                if doubtful and isinstance(program, Program):
                    self._keep(kind, *pair, self.device.verify(program))
                else:
                    self._keep(kind, *pair, outcome)

    def _verify_programs(self, made: Iterable[Program | Outcome]) -> Iterator[Outcome]:
        """Verify what is a program, in one go; what stands against one is its outcome."""
        listed = list(made)
        verified = iter(
            verify_all(self.device, [one for one in listed if isinstance(one, Program)])
        )
        return (one if isinstance(one, Outcome) else next(verified) for one in listed)

    def _start(self, workload: Workload, variant: Variant) -> Pending | Outcome:
        most = self.largest_bytes
        if most is not None and self.plan.spec.footprint_bytes(workload) > most:
            return Outcome(Status.NOT_RECORDED, "too large to be run on a CPU")
        try:
            return self.candidates.evaluator(variant.candidate).start(workload, variant.config)
        except InputError as error:
            # A template or a launch may fail on the sizes of this workload alone.
            return Outcome(Status.INCORRECT, str(error))

    def finalists(self, workload: Workload, variants: Sequence[Variant]) -> list[Trial]:
        """Verify in full what the session does not know yet; give the trials of what is right.

        What the search has timed here, with all that is checked only then, is verified together,
        each kind of input drawn once for all: the comparison times it as well. On a CPU it is
        timed once more: a comparison has few calls there, and who keeps results may do so after
        more.
        """
        session, device = self.session, self.device
        of = {variant: self.candidates.evaluator(variant.candidate) for variant in variants}
        known = {
            variant: session.trial(variant.candidate, workload, variant.config, stage="finals")
            for variant in variants
        }
        left = [variant for variant, trial in known.items() if trial is None]
        together: list[Variant] = []
        if "verify_together" in device.capabilities and not device.info.on_cpu:
            for variant in left:
                searched = session.trial(variant.candidate, workload, variant.config)
                is_timed = searched is not None and searched.status is Status.CORRECT
                if is_timed and not of[variant].tells_bits:
                    together.append(variant)
        if len(together) > 1:
            begun = [of[variant].start(workload, variant.config) for variant in together]
            ready = [of[variant].ready(it) for variant, it in zip(together, begun, strict=True)]
            outcomes = zip(together, begun, self._verify_programs(ready), strict=True)
            for variant, pending, outcome in outcomes:
                known[variant] = trial = of[variant].judge(pending, outcome)
                session.record(trial)
        for variant in left:
            if known[variant] is None:
                pending = of[variant].start(workload, variant.config)
                known[variant] = trial = of[variant].finish(pending, stage="finals")
                session.record(trial)
        trials = [trial for trial in known.values() if trial is not None]
        self._failed |= find_wrong_variants(trials, ())
        return [trial for trial in trials if trial.status is Status.CORRECT]

    def try_near(self) -> None:
        """Take the sizes near the tuned ones on which the baseline is right for edge cases.

        Only where the file asks for it: a kernel need not take sizes that nobody lists. Invariant
        rows are asked of at these numbers of them, and in the finals at newly drawn ones.
        """
        evaluator = self.candidates.evaluator(self.plan.candidate)

        def takes(workload: Workload) -> bool:
            serve_queue_of(self.device, workload)
            with self.device.limiting_runs(NEAR_LIMIT_S):
                return evaluator.takes(workload)

        if self._verifies:
            self.near = choose_near(self.plan.spec, takes)
        if "bits" in self.device.capabilities and (rows := self.plan.spec.invariant):
            self._choose_sizes(rows, takes)

    def _choose_sizes(self, rows: Invariance, takes: Callable[[Workload], bool]) -> None:
        """Take further numbers of rows for each problem, of those that are listed and beyond."""
        spec, on_cpu, kept = self.plan.spec, self.device.info.on_cpu, self.candidates.kept
        listed = (*self.plan.config.workloads, *spec.edge_cases)
        by_rows = sorted(listed, key=lambda workload: workload.values[rows.axis])
        for problem, largest in {
            spec.problem_of(workload): workload for workload in by_rows
        }.items():
            own = {n.values[rows.axis] for n in listed if spec.problem_of(n) == problem}
            known = own | {n for n in ROWS if n <= max(own)}
            drawn = draw_sizes(known, secrets.SystemRandom())
            sizes = [rows.sized(largest, n) for n in sorted({*known, *drawn})]
            if on_cpu:
                sizes = [w for w in sizes if spec.footprint_bytes(w) <= LARGEST_HOST_BYTES]
            taken = [workload for workload in sizes if workload in listed or takes(workload)]
            self._sizes[problem] = taken
            kept.sizes[problem] = tuple(
                workload for workload in taken if workload.values[rows.axis] in ROWS
            )

    def on_edge_cases(self, variants: Iterable[Variant]) -> None:
        """Verify variants on every edge case that they may run on."""
        self.verify(self._edge_case_pairs(variants), EDGE_CASES)

    def watch(self, pairs: Iterable[Pair]) -> None:
        """Run variants under every tool, on their own and on the edge cases."""
        wanted = dict.fromkeys(pairs)
        variants = dict.fromkeys(variant for _, variant in wanted)
        # Not where only the baseline's results are known to be right: it may read too far there.
        wanted |= {(w, one): None for one in variants for w in self.plan.spec.edge_cases}
        jobs = [(watch, self._watched_programs(watch, wanted)) for watch in self.watches]
        # None of them is timed: the tools may share the device.
        with ThreadPoolExecutor(max(1, len(jobs)), thread_name_prefix="watch") as pool:
            try:
                under_way = [
                    (watch, programs, pool.submit(watch.watcher.watch, list(programs.values())))
                    for watch, programs in jobs
                    if programs
                ]
                for watch, programs, outcomes in under_way:
                    for pair, outcome in zip(programs, outcomes.result(), strict=True):
                        self._keep(watch.watcher.kind, *pair, outcome)
            except BaseException:
                for watch in self.watches:
                    watch.watcher.close()
                raise

    def read_machine_code(self, pairs: Iterable[Pair]) -> None:
        """Follow what is launched programmatically up to its wait, where it is for a GPU."""
        wanted = dict.fromkeys(pairs)
        self._begin_reading(wanted)
        for pair in wanted:
            if (reading := self._reading.pop(pair, None)) and (outcome := reading.result()):
                self._keep(MACHINE_CODE, *pair, outcome)

    def _begin_reading(self, pairs: Iterable[Pair]) -> None:
        """Read in threads: the disassembler takes as long for a cubin as finals for a config."""
        if "machine_code" not in self.device.capabilities:
            return
        left = [one for one in pairs if (MACHINE_CODE, *one) not in self._known]
        started = {one: self._start(*one) for one in left if one not in self._reading}
        for pair, one in started.items():
            ready = self._ready(pair[1], one)
            if isinstance(ready, Program):
                self._reading[pair] = self._readers.submit(
                    judge_machine_code, ready, self.plan.spec.constants
                )

    def keep_bits(self, pairs: Iterable[Pair]) -> None:
        """Verify that variants make the bits that are kept, where that is asked for.

        With inputs of every kind, drawn anew. The default config's are made there and on the edge
        cases that both may run on; invariant rows at all sizes of a problem, listed or drawn.
        """
        plan, rows = self.plan, bool(self.session.kept_rows)
        default = plan.space.default if plan.config.keep_bits else None
        if not (default or rows) or "bits" not in self.device.capabilities:
            return
        model = Variant(plan.candidate, default) if default else None
        wanted = dict.fromkeys(pair for pair in pairs if pair[1] != model)
        if not rows:
            edges = self._edge_case_pairs({variant: None for _, variant in wanted})
            wanted |= dict.fromkeys(edges)
        for workload, variant in wanted:
            if (BITS, workload, variant) in self._known:
                continue
            if model and not self._know_bits(workload, model):
                continue
            seen = plan.spec.problem_of(workload), variant
            if not (rows and seen in self._seen):
                self._seen[seen] = self._compare_bits(workload, variant)
            self._keep(BITS, workload, variant, self._seen[seen])

    def _know_bits(self, workload: Workload, model: Variant) -> bool:
        """Have the default config's bits told; False where it cannot run on an edge case.

        Raises `KernelError` where it runs and is wrong: its bits are worth nothing.
        """
        if self.plan.spec.problem_of(workload) in self._bits:
            return True
        like = self._ready(model, self._start(workload, model))
        if isinstance(like, Outcome):
            return False
        outcome = self.device.verify(like)
        if outcome.status is Status.CORRECT:
            outcome = self._compare_bits(workload, model)
        if outcome.status is not Status.CORRECT:
            tried = model.candidate, workload, model.config, outcome.status, outcome.reason
            raise refuse_model(self.plan.spec, Trial(*tried))
        return True

    def _compare_bits(self, workload: Workload, variant: Variant) -> Outcome:
        """Compare its bits with those that others made of the same inputs, and with its own.

        Who is the first of a problem, and agrees with itself at all sizes, is whom others follow.
        """
        spec = self.plan.spec
        problem, sizes = spec.problem_of(workload), [workload]
        if spec.invariant:
            listed = (*self.plan.config.workloads, *spec.edge_cases)
            sizes += [one for one in listed if spec.problem_of(one) == problem]
            sizes += self._sizes.get(problem, ())
        seed = self._seeds.setdefault(problem, secrets.randbits(62))
        bits_by_kind = dict(self._bits.get(problem, {}))
        for size in dict.fromkeys(sizes):
            made = self._ready(variant, self._start(size, variant))
            if isinstance(made, Outcome) and size != workload:
                continue  # it serves nothing there
            outcome = made if isinstance(made, Outcome) else self.device.bits(made, seed)
            if outcome.status is not Status.CORRECT or outcome.correctness is None:
                return replace(outcome, reason=f"on {size}: {outcome.reason}")
            verdict = outcome.correctness
            for kind, bits in zip(verdict.input_kinds, verdict.bits.split(), strict=True):
                if bits_by_kind.setdefault(kind, bits) != bits:
                    reason = f"on {size}, with inputs '{kind}' (seed {seed}): {other_bits(spec)}"
                    return Outcome(Status.INCORRECT, reason)
        self._bits[problem] = bits_by_kind
        return Outcome(Status.CORRECT)

    def _ready(self, variant: Variant, started: Pending | Outcome) -> Program | Outcome:
        if isinstance(started, Outcome):
            return started
        return self.candidates.evaluator(variant.candidate).ready(started)

    def _edge_case_pairs(self, variants: Iterable[Variant]) -> Iterable[Pair]:
        return ((w, variant) for variant in variants for w in self.edge_cases)

    def _watched_programs(self, watch: Watch, pairs: Iterable[Pair]) -> dict[Pair, Program]:
        evaluators = {p.candidate: watch.evaluator_of(p) for p in self.candidates.plans}
        size, kind = self.plan.spec.footprint_bytes, watch.watcher.kind
        under_way = {
            (workload, variant): evaluators[variant.candidate].start(workload, variant.config)
            for workload, variant in pairs
            if (kind, workload, variant) not in self._known
            and size(workload) <= watch.largest_bytes
        }
        made = ((pair, evaluators[pair[1].candidate].ready(p)) for pair, p in under_way.items())
        return {pair: ready for pair, ready in made if not isinstance(ready, Outcome)}

    def fail(self, kind: str, workload: Workload, variant: Variant, reason: str) -> None:
        """Note that a variant was found wrong elsewhere."""
        self._keep(kind, workload, variant, Outcome(Status.INCORRECT, reason))

    def _keep(self, kind: str, workload: Workload, variant: Variant, outcome: Outcome) -> None:
        if outcome.status in _NOT_MEANT:
            return
        passed = None if outcome.status in _NOT_RUN else outcome.status is Status.CORRECT
        evaluator = self.candidates.evaluator(variant.candidate)
        try:
            reason = evaluator.in_template(workload, variant.config, outcome.reason)
        except InputError:
            # It does not render: its reason is in lines of the template already.
            reason = outcome.reason
        if passed is False and outcome.status is not Status.INCORRECT:
            reason = f"{outcome.status}: {reason}"
        created = datetime.now(UTC).isoformat(timespec="seconds")
        name, config = self.device.info.name, variant.config
        check = Check(kind, workload, config, passed, reason, name, created, variant.candidate)
        self.session.append(check)
        self._known.add((kind, workload, variant))
        self.made.append(check)
        if passed is False:
            self._failed.add(variant)


def judge_machine_code(program: Program, constants: Sequence[str]) -> Outcome | None:
    """Judge what the compiler made of programmatic launches; None where there are none.

    Others are not read: a disassembler takes as long as their finals. Where some inputs are
    constant, reads before the wait may be of these: of which they are, the code does not say.
    """
    kernels = dict.fromkeys(launch.kernel for launch in program.launches if launch.pdl)
    if not kernels:
        return None
    unread = unread_because(program.cubin)
    functions = read("" if unread else disassemble(program.cubin))
    for kernel in () if unread else kernels:
        symbol = program.lowered[kernel]
        if symbol in functions and (wrong := find_unwritten(functions[symbol])):
            return Outcome(Status.INCORRECT, f"{kernel}: {describe_unwritten(wrong)}")
        wait = before_wait(functions, symbol)
        if wait is None:
            unread = "not read: nvdisasm gave no text"
        elif problem := wait.problem_beside_constants if constants else wait.problem:
            return Outcome(Status.INCORRECT, f"{kernel}: {problem}")
        elif wait.accesses:
            unread = f"{wait.accesses[0].opcode} at {wait.accesses[0].offset:#x} reads before "
            unread += f"the wait: whether only of {', '.join(constants)}, the code does not say"
        elif wait.unclear:
            unread = f"not read to the end: {wait.unclear[0].opcode} jumps to an unknown place"
    return Outcome(Status.NOT_RECORDED, unread) if unread else Outcome(Status.CORRECT)
