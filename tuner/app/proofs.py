"""What running the baseline proves of a search space, which an extension does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tuner import plugins
from tuner.device.base import DeviceInfo
from tuner.device.verify.reference_process import ReferenceProcess
from tuner.model.errors import SpaceError
from tuner.model.kernel import KernelSpec, Workload


@dataclass(frozen=True, slots=True)
class ProofFinding:
    """One thing that a run showed of an argument; a `mistake` contradicts the file at `line`.

    `idle` says that it is that nothing depends on an input, `whole` that its last element and none
    behind it is touched, `role` what it is where that was seen.
    """

    argument: str
    line: int | None
    text: str
    mistake: bool = False
    idle: bool = False
    whole: bool = False
    role: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was shown on one workload; `open_because` says why nothing was, or not all of it.

    `compared` are the kinds of input on which the reference agreed with the baseline, and `smaller`
    tells that the file lists no such workload; `late` that a run took too long.
    """

    workload: Workload | None
    findings: tuple[ProofFinding, ...] = ()
    open_because: str = ""
    compared: tuple[str, ...] = ()
    smaller: bool = False
    late: bool = False

    @property
    def mistakes(self) -> tuple[ProofFinding, ...]:
        return tuple(finding for finding in self.findings if finding.mistake)


def require_right(spec: KernelSpec, proofs: Sequence[Proof]) -> None:
    """Raise `SpaceError` with all mistakes of the first proof that has any, by line."""
    wrong = next((proof for proof in proofs if proof.mistakes), None)
    if wrong is None:
        return
    first, *rest = wrong.mistakes
    listed = "".join(f"\n  {spec.path.name}:{finding.line}: {finding.text}" for finding in rest)
    raise SpaceError(
        first.text,
        path=spec.path,
        line=first.line,
        remedy=f"seen when the baseline ran on the CPU with {wrong.workload}"
        f"{', which are smaller sizes than the file has' if wrong.smaller else ''}"
        f"{'; and also:' if rest else ''}{listed}",
    )


@runtime_checkable
class Prover(Protocol):
    """Who runs a baseline to see what its arguments are."""

    def require_no_constant_memory(self, spec: KernelSpec) -> None:
        """Raise `SpaceError` where the baseline needs memory that nothing fills."""

    def prove(
        self,
        spec: KernelSpec,
        operators: Mapping[str, str],
        info: DeviceInfo,
        reference: ReferenceProcess,
        allows: Callable[[Mapping[str, int]], bool],
        alone_s: float | None = None,
    ) -> tuple[Proof, ...]:
        """Run the baseline and compare what it does with the file and with the reference.

        `allows` says which sizes keep the file's constraints. With a number of seconds `alone_s`
        only the file's own workloads are run, until then, and nothing is compared with a reference.
        """


def prover() -> Prover:
    """Import the extension that runs baselines on the CPU."""
    found: Prover = plugins.load(plugins.PROVERS, "host", Prover)
    return found
