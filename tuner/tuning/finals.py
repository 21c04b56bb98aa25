"""The finals: compare finalists with baseline and peers, and keep the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tuner.device.base import ComparisonRounds, Device, Outcome, Program, RankedRounds
from tuner.device.reference import load_production, peer_program
from tuner.dispatch.evidence import compare_with_baseline, find_free_program, winner_of
from tuner.model.energy import accounts
from tuner.model.errors import (
    ClusterLost,
    DeviceError,
    DeviceLost,
    KernelError,
    OutOfMemory,
    Unmeasured,
)
from tuner.model.kernel import Workload
from tuner.model.statistics import roofline_share
from tuner.model.trial import Comparison, PeerTrial, Result, Status, Trial, Variant
from tuner.process.tally import spent_on
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.finalists import SECONDS, FinalistSelection, Raced, Ranking, race
from tuner.tuning.run import Run
from tuner.tuning.verification import COMPARE

# The baseline and one more.
FEWEST_COMPARED = 2
# A CPU's times say nothing of a GPU's: enough to see what is wrong once it is timed beside others.
ROUNDS_ON_CPU = 12
# How often a comparison may fail where nobody fails alone.
MOST_UNEXPLAINED = 3


class FinalsPeers:
    """The peers of one run; what the session holds already is not verified again."""

    def __init__(self, plan: Plan, session: Session, device: Device) -> None:
        self._plan, self._session, self._device = plan, session, device

    def programs(self, workload: Workload) -> dict[str, Program]:
        """Return the peers that are right on a workload, by name, verifying those not known."""
        known = {trial.name for trial in self._session.peers(workload)}
        for name in self._plan.config.peers:
            if name not in known:
                program = peer_program(name, self._plan.spec.reference, workload)
                try:
                    with spent_on("peers"):
                        outcome = self._device.verify(program)
                except (ClusterLost, DeviceLost):
                    raise
                except DeviceError as error:
                    # The workload was run before, so that it is the peer that can't be had here.
                    outcome = Outcome(Status.LAUNCH, error.message)
                self.note(workload, name, outcome.status, outcome.reason)
        return {
            trial.name: peer_program(trial.name, self._plan.spec.reference, workload)
            for trial in self._session.peers(workload)
            if trial.status is Status.CORRECT
        }

    def production(self, workload: Workload) -> str:
        """Name the peer that production calls on a workload, "" where the reference says none."""
        spec, config = self._plan.spec, self._plan.config
        return load_production(spec.reference, workload.values, config.operators) or ""

    def note(self, workload: Workload, name: str, status: Status, reason: str) -> None:
        """Keep what became of a peer, verified now or before."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self._session.append(PeerTrial(workload, name, status, reason, created))

    def compare(
        self, programs: Sequence[Program], peers: Mapping[str, Program], rounds: int
    ) -> tuple[ComparisonRounds, tuple[str, ...]]:
        """Time programs, first the baseline, interleaved with peers; tell which peers took part."""
        baseline, left = programs[0], dict(peers)
        failed: dict[str, str] = {}
        while left:
            try:
                compared = self._device.compare([*programs, *left.values()], rounds=rounds)
                break
            except (ClusterLost, DeviceLost):
                raise
            except DeviceError as error:
                if isinstance(error, OutOfMemory) and len(programs) > FEWEST_COMPARED:
                    raise  # peers are what the winner is judged by: finalists go first
                together = error.message
            alone: dict[str, str] = {}
            for name, program in left.items():
                try:
                    self._device.compare([baseline, program], rounds=1)
                except (ClusterLost, DeviceLost):
                    raise
                except DeviceError as error:
                    alone[name] = error.message
            failed |= alone or dict.fromkeys(left, together)
            left = {name: one for name, one in left.items() if name not in failed}
        else:
            # Raises where the peers are not to blame; then nothing is said of them.
            compared = self._device.compare(programs, rounds=rounds)
        for name, why in failed.items():
            self.note(baseline.workload, name, Status.LAUNCH, why)
        return compared, (*left,)


class Finals:
    """Decide each workload among all candidates; what the session holds already stands."""

    def __init__(self, run: Run, ranked: Mapping[Workload, tuple[Variant, ...]]) -> None:
        self._run, self._ranked = run, ranked
        self._plan, self._session, self._device = run.plan, run.session, run.device
        self._candidates, self._verification = run.candidates, run.verification
        self._peers = FinalsPeers(run.plan, run.session, run.device)
        self._finalists = FinalistSelection(run, ranked)
        self._raced: dict[Workload, Mapping[Variant, Raced]] = {}

    def decide(self, workload: Workload) -> None:
        """Compare the best configs with the baseline, interleaved, and record the result.

        Where memory ends, or a cost is below what can be told, it is left undecided: what was
        searched for on the others is worth their finals.
        """
        if workload in self._run.skipped:
            return
        results = [result for result in self._session.results() if result.workload == workload]
        if results:
            # A session that was fetched from a server has its records alone.
            if not self._session.variant_path(workload).exists():
                self._write(results[0])
            return
        try:
            finalists, comparison = self._verify_and_compare(workload)
        except (OutOfMemory, Unmeasured) as error:
            self._run.skipped.give_up(workload, error)
            return
        if comparison is None:
            return
        result = self._result(
            comparison, [trial for trial in finalists if trial.variant in comparison.finalists]
        )
        self._write(result)
        # Last: a resumed run takes a result for the end of this step.
        self._session.append(result)

    def _verify_and_compare(self, workload: Workload) -> tuple[list[Trial], Comparison | None]:
        """Verify and compare those in front; where they fail, those behind them."""
        before: set[Variant] = set()
        while True:
            with spent_on("choosing"):
                chosen = self._finalists.of(workload, self._rank)
            # Of those tried before some may have found no room to be compared.
            if before == set(chosen):
                return [], None
            before = set(chosen)
            finalists = self._verify(workload, chosen)
            with spent_on("comparison"):
                comparison = self._compare(workload, [trial.variant for trial in finalists])
            if comparison is not None:
                return finalists, comparison

    def _verify(self, workload: Workload, chosen: Sequence[Variant]) -> list[Trial]:
        """Return what every check finds right, of an objective other than time its best."""
        self._verification.begin((workload, variant) for variant in chosen)
        with spent_on("finalists"):
            finalists = self._verification.finalists(workload, chosen)
        with spent_on("further checks"):
            self._verification.on_edge_cases(trial.variant for trial in finalists)
            self._verification.read_machine_code((workload, trial.variant) for trial in finalists)
            self._verification.keep_bits((workload, trial.variant) for trial in finalists)
        self._verification.drop(workload)
        finalists = [trial for trial in finalists if not self._verification.failed(trial.variant)]
        return finalists[:1] if workload in self._ranked else finalists

    def _write(self, result: Result) -> None:
        evaluator = self._candidates.evaluator(result.candidate)
        source = evaluator.render(result.workload, result.config).source
        self._session.write_variant(result.workload, result.variant, source)

    def confirm(self) -> None:
        """Watch the winners with every tool; where one fails, decide again without it."""
        while True:
            results = self._session.results()
            self._verification.watch((result.workload, result.variant) for result in results)
            out = [r.workload for r in results if self._verification.failed(r.variant)]
            if not out:
                return
            for workload in out:
                self._session.withdraw_result(workload)
            # All: a held-out one may have had nothing to inherit before.
            for workload in (*self._plan.tuned, *self._plan.held_out):
                self.decide(workload)

    def _rank(self, workload: Workload, variants: list[Variant]) -> Ranking:
        """Order by a race; as they are where that is known or can't be had."""
        unraced: Ranking = dict.fromkeys(variants)
        comparisons = [c for c in self._session.comparisons() if c.workload == workload]
        compared = {variant for comparison in comparisons for variant in comparison.finalists}
        left = [one for one in variants if one in compared]
        # A candidate that has come since may win.
        before = {name for comparison in comparisons for name in comparison.candidates}
        before |= {one.candidate for one in compared}
        if left and before.issuperset(one.candidate for one in variants):
            return dict.fromkeys(left)
        device, of = self._device, self._candidates.evaluator
        # A CPU's times say nothing of a GPU's: there a race only keeps chance from choosing.
        fewest, seconds = (self._plan.config.finalists, 0.0) if device.info.on_cpu else (1, SECONDS)
        if "rank" not in device.capabilities or len(variants) <= fewest:
            return unraced
        programs = [of(one.candidate).program(workload, one.config) for one in variants]
        # Most of those that a race chooses are the search's fastest.
        likely = variants[: self._plan.config.finalists]
        self._verification.begin((workload, one) for one in likely)

        def measure(running: Sequence[int], rounds: int) -> RankedRounds:
            return device.rank([programs[k] for k in running], rounds=rounds)

        count = len(programs)
        while count > 1:
            try:
                raced = race(measure, count, seconds=seconds)
            except OutOfMemory:
                count //= 2  # the results of all are kept until they are judged
                continue
            except DeviceError:
                break  # which of them failed, each one's verification will tell
            right = {one: its for one, its in zip(variants, raced, strict=False) if its is not None}
            self._raced[workload] = right
            # Who found no room stands behind: some are compared however fast they are.
            ranked: Ranking = {one: right[one] for one in sorted(right, key=lambda v: right[v].us)}
            return ranked | dict.fromkeys(variants[count:]) or unraced
        return unraced

    def _compare(self, workload: Workload, variants: list[Variant]) -> Comparison | None:
        """Compare until no finalist is wrong after its rounds; a known comparison stands.

        The results of all that are compared are kept until they are judged. Where memory ends, half
        of the finalists have to do, those that a race saw in front.
        """
        for known in self._session.comparisons():
            if variants and known.workload == workload and set(variants) <= set(known.finalists):
                return _of_some(known, variants, known.peers)
        again = MOST_UNEXPLAINED
        while variants:
            try:
                comparison, faults = self._time_interleaved(workload, variants)
            except OutOfMemory:
                if len(variants) == 1:
                    raise
                variants = variants[: len(variants) // 2]
                continue
            except (ClusterLost, DeviceLost):
                raise
            except (DeviceError, KernelError) as error:
                guilty = self._find_guilty(workload, variants, error)
                again -= not guilty
                if not again:
                    raise
                for one, why in guilty.items():
                    self._verification.fail(COMPARE, workload, one, why)
                variants = [variant for variant in variants if variant not in guilty]
                continue
            for one, fault in zip(comparison.finalists, faults, strict=False):
                if fault:
                    self._verification.fail(COMPARE, workload, one, fault)
            variants = [v for v in comparison.finalists if not self._verification.failed(v)]
            if len(variants) == len(comparison.finalists):
                if name := find_free_program(comparison):
                    raise Unmeasured(
                        f"not measured: {name} costs less between its neighbours than can be told"
                    )
                self._session.append(comparison)
                return comparison
        return None

    def _find_guilty(
        self, workload: Workload, variants: Sequence[Variant], error: Exception
    ) -> dict[Variant, str]:
        """Compare each finalist with the baseline alone; tell beside whom something fails again.

        Raises `error` where the baseline itself fails, with nobody beside it.
        """
        rounds = ROUNDS_ON_CPU if self._device.info.on_cpu else self._plan.config.comparison_rounds
        baseline = self._candidates.evaluator(self._plan.candidate).baseline_program(workload)

        def failure(*others: Program) -> str:
            try:
                found = self._device.compare([baseline, *others], rounds=rounds).faults
            except (ClusterLost, DeviceLost):
                raise
            except DeviceError as failed:
                return failed.message
            return f"the baseline is wrong beside it: {found[0]}" if found and found[0] else ""

        if failure():
            raise error
        programs = (
            self._candidates.evaluator(v.candidate).program(workload, v.config) for v in variants
        )
        found = zip(variants, map(failure, programs), strict=True)
        return {variant: why for variant, why in found if why}

    def _time_interleaved(
        self, workload: Workload, variants: list[Variant]
    ) -> tuple[Comparison, tuple[str, ...]]:
        """Time all interleaved; tell what was wrong with each finalist's results afterwards."""
        rounds = self._plan.config.comparison_rounds
        if self._device.info.on_cpu:
            rounds = min(rounds, ROUNDS_ON_CPU)
        baseline = self._candidates.evaluator(self._plan.candidate).baseline_program(workload)
        programs = {
            variant: self._candidates.evaluator(variant.candidate).program(workload, variant.config)
            for variant in variants
        }
        peers = self._peers.programs(workload)
        timed, names = self._peers.compare([baseline, *programs.values()], peers, rounds)
        # An evaluator that cannot compare never has pairs; a recording has them of some.
        unpaired = not timed.paired and not self._device.info.evaluator
        if unpaired and len(programs) > 1:
            programs = {
                one: program
                for one, program in programs.items()
                if self._device.compare([baseline, program], rounds=rounds).paired
            } or dict(list(programs.items())[:1])
            timed, names = self._peers.compare([baseline, *programs.values()], peers, rounds)
        if timed.faults and timed.faults[0]:
            raise KernelError(
                f"the baseline is wrong on {workload} once it has been timed: {timed.faults[0]}",
                path=self._plan.spec.source,
            )
        for name, fault in zip(names, timed.faults[1 + len(programs) :], strict=False):
            if fault:
                self._peers.note(workload, name, Status.INCORRECT, fault)
        found, times_us = tuple(programs), timed.times_us
        # What a race said of these, now or for a recording; () where it lacks any.
        raced, recorded = self._raced.get(workload, {}), timed.raced_us[1 : 1 + len(found)]
        said = [raced[v].us if v in raced else None for v in found] if raced else recorded
        raced_us = tuple(us for us in said if us is not None) if None not in said else ()
        around = self._plan.spec.surroundings_of(workload)
        comparison = Comparison(
            *(workload, found, times_us, timed.paired, timed.isolated_us, names),
            noise_us=timed.noise_us,
            surroundings=around.name if around else "",
            alone_us=timed.alone_us,
            production=self._peers.production(workload) if names else "",
            raced_us=raced_us,
            candidates=tuple(candidate.name for candidate in self._session.candidates()),
            unvaried=timed.unvaried,
        )
        right = list(self._peers.programs(workload))
        return _of_some(comparison, found, right), timed.faults[1:]

    def _result(self, comparison: Comparison, finalists: list[Trial]) -> Result:
        """Report on other rounds than those that chose: a choice must not judge itself."""
        chosen = winner_of(comparison)
        winner = comparison.finalists.index(chosen)
        found = compare_with_baseline(comparison, winner + 1, self._plan.config.seed)
        workload = comparison.workload
        trial = next(finalist for finalist in finalists if finalist.variant == chosen)
        traffic = self._plan.spec.min_bytes.integer(workload.values)
        isolated, alone = comparison.isolated_us, comparison.alone_us
        rate = self._device.info.streaming_gbps
        # Between neighbours it finds its inputs in the L2: no rate of the memory bounds that.
        time_us = alone[winner + 1] if alone else found.time_us
        objective, baseline_wins = self._plan.config.objective, found.slower
        account = accounts(self._session.energies(workload)).get(workload)
        if objective != "time" and account is not None:
            saving = account.saving(found.variant, objective)
            baseline_wins = saving is not None and saving.range[1] < 1.0
        # It may have other bits, and serves at no size.
        baseline_wins = baseline_wins and self._plan.spec.invariant is None
        return Result(
            workload=workload,
            baseline_us=found.baseline_us,
            tuned_us=found.time_us,
            speedup=found.speedup,
            interval=found.interval,
            paired=found.paired,
            roofline_share=roofline_share(traffic, time_us, rate),
            config=trial.config,
            resources=trial.resources,
            occupancy=trial.occupancy,
            baseline_wins=baseline_wins,
            isolated_us=isolated[winner + 1] if isolated else None,
            isolated_baseline_us=isolated[0] if isolated else None,
            candidate=trial.candidate,
            surroundings=comparison.surroundings,
            alone_us=alone[winner + 1] if alone else None,
            alone_baseline_us=alone[0] if alone else None,
        )


def _of_some(
    comparison: Comparison, variants: Sequence[Variant], peers: Sequence[str]
) -> Comparison:
    kept = [variant for variant in comparison.finalists if variant in variants]
    right = [name for name in comparison.peers if name in peers]
    columns = [comparison.column(one) for one in (None, *kept, *right)]
    raced = bool(comparison.raced_us)
    return replace(
        comparison,
        finalists=tuple(kept),
        peers=tuple(right),
        rounds=tuple(tuple(row[k] for k in columns) for row in comparison.rounds),
        raced_us=tuple(comparison.raced_us[k - 1] for k in columns[1 : 1 + len(kept)] if raced),
        isolated_us=tuple(comparison.isolated_us[k] for k in columns if comparison.isolated_us),
        alone_us=tuple(comparison.alone_us[k] for k in columns if comparison.alone_us),
        production=comparison.production if comparison.production in right else "",
    )
