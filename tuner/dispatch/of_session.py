"""The dispatch table of a session, from everything in it."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.dispatch.evidence import distrusted, evidence
from tuner.dispatch.kernels import Applicability, Kernel, Kernels, device_numbers
from tuner.dispatch.predicted import wanted_for
from tuner.dispatch.table import Choice, Table, build
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import Variant
from tuner.session.session import Session


class SessionDispatch:
    """A session's table with what it was made from; raises `InputError` for what can't be read.

    `device` has the numbers of the device, else they are what the session's environment says.
    """

    def __init__(
        self, session: Session, choice: Choice, device: Mapping[str, Value] | None = None
    ) -> None:
        self._session = session
        manifest = session.manifest
        numbers = device_numbers(session.environment) if device is None else device
        self.kernels = Kernels(session.candidates(), manifest.config.operators, numbers)
        trials = session.trials(stage=None)
        self._static_bytes = {
            trial.variant: trial.resources.static_shared_bytes
            for trial in trials
            if trial.resources is not None
        }
        out = distrusted(trials, session.checks())
        self._reaches: dict[Kernel, Applicability] = {}
        self._homes: dict[Kernel, Workload] = {}
        self.evidence = evidence(session.comparisons(), out, manifest.config.seed)
        self.table: Table = build(
            manifest.config.workloads,
            self.evidence,
            self._kernel_of,
            self._holds,
            choice,
        )

    @property
    def wanted(self) -> tuple[tuple[Workload, Variant], ...]:
        """The measurements that might shrink the set."""
        trials = self._session.trials(stage=None)
        return wanted_for(self.table, self.evidence, trials, self.kernels.of)

    def reach(self, kernel: Kernel) -> Applicability:
        """Return where a kernel of the table holds."""
        if kernel not in self._reaches:
            static_bytes = self._static_bytes.get(kernel.variant, 0)
            home, known = self._homes[kernel], self._session.manifest.config.workloads
            self._reaches[kernel] = self.kernels.reach(kernel, home, known, static_bytes)
        return self._reaches[kernel]

    def reaches(self) -> Mapping[Kernel, Applicability]:
        """Return where each kernel of the table holds."""
        return {kernel: self.reach(kernel) for kernel in self.table.kernels}

    def _kernel_of(self, workload: Workload, variant: Variant) -> Kernel | None:
        kernel = self.kernels.of(workload, variant)
        if kernel is not None:
            self._homes.setdefault(kernel, workload)
        return kernel

    def _holds(self, kernel: Kernel, workload: Workload) -> bool:
        return self.reach(kernel).holds(self.kernels.names(workload))
