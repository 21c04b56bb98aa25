"""Verify a plan's peers on each workload, for the finals to compare with; the session keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from tuner.device.base import Device, Outcome, Program, Rounds
from tuner.device.peers import peer_program
from tuner.model.errors import DeviceError
from tuner.model.kernel import Workload
from tuner.model.trial import PeerTrial, Status
from tuner.session.session import Session
from tuner.space.plan import Plan


class Peers:
    """The peers of one run; what the session holds already is not verified again."""

    def __init__(self, plan: Plan, session: Session, device: Device) -> None:
        self._plan, self._session, self._device = plan, session, device

    def programs(self, workload: Workload) -> dict[str, Program]:
        """Return the peers that are right on a workload, by name, verifying those not known."""
        known = {trial.name for trial in self._session.peers(workload)}
        for name in self._plan.config.peers:
            if name not in known:
                self._keep(workload, name, self._verified(self._program(workload, name)))
        return {
            trial.name: self._program(workload, trial.name)
            for trial in self._session.peers(workload)
            if trial.status is Status.CORRECT
        }

    def fail(self, workload: Workload, name: str, status: Status, reason: str) -> None:
        """Note that a peer, verified before, failed when it was compared."""
        self._keep(workload, name, Outcome(status, reason))

    def compared(
        self, programs: Sequence[Program], peers: Mapping[str, Program], rounds: int
    ) -> tuple[Rounds, tuple[str, ...]]:
        """Time programs, first the baseline, interleaved with peers; tell which peers took part.

        A peer that fails costs nobody else the comparison.
        """
        while peers:
            try:
                together = [*programs, *peers.values()]
                return self._device.compare(together, rounds=rounds), tuple(peers)
            except DeviceError as error:
                failure = error.message
            able = self._able(programs[0], peers)
            if len(able) == len(peers):
                # Raises where the peers are not to blame.
                compared = self._device.compare(programs, rounds=rounds)
                for name in able:
                    self.fail(programs[0].workload, name, Status.LAUNCH, failure)
                return compared, ()
            peers = able
        return self._device.compare(programs, rounds=rounds), ()

    def _able(self, baseline: Program, peers: Mapping[str, Program]) -> dict[str, Program]:
        """Try each peer alone beside the baseline; return those that do not fail."""
        left = {}
        for name, program in peers.items():
            try:
                self._device.compare([baseline, program], rounds=1)
            except DeviceError as error:
                self.fail(baseline.workload, name, Status.LAUNCH, error.message)
            else:
                left[name] = program
        return left

    def _verified(self, program: Program) -> Outcome:
        try:
            return self._device.verify(program)
        except DeviceError as error:
            # The workload was run before, so that it is the peer that cannot be had here.
            return Outcome(Status.LAUNCH, error.message)

    def _program(self, workload: Workload, name: str) -> Program:
        return peer_program(name, self._plan.spec.reference, workload)

    def _keep(self, workload: Workload, name: str, outcome: Outcome) -> None:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        trial = PeerTrial(workload, name, outcome.status, outcome.reason, created)
        self._session.record_peer(trial)
