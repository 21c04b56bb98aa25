"""Where a mutant is put to the test: a compiler, and the device that runs what it makes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

from tuner.compiler.base import Compiler, CompileRequest, CompileResult
from tuner.device.base import Device
from tuner.errors import KernelError
from tuner.kernel import Workload
from tuner.mutation.mutants import Mutant
from tuner.mutation.subject import Subject
from tuner.trial import Status


class Compilations:
    """Compile the sources of one subject with one compiler."""

    def __init__(self, subject: Subject, compiler: Compiler) -> None:
        self._subject, self._compiler = subject, compiler
        self._originals: dict[CompileRequest, CompileResult] = {}

    def original(self, workload: Workload) -> CompileResult:
        """Compile the unchanged source for a workload, once for each source and its kernels."""
        request = self._subject.request(self._subject.text(workload), workload)
        if request not in self._originals:
            self._originals[request] = self._compiler.submit(request).result()
        return self._originals[request]

    def submit(self, text: str, workload: Workload) -> Future[CompileResult]:
        """Start compiling a source."""
        return self._compiler.submit(self._subject.request(text, workload))


class Bench(Compilations):
    """Compile and verify the sources of one subject on the `workloads` given."""

    def __init__(
        self,
        subject: Subject,
        device: Device,
        compiler: Compiler,
        workloads: tuple[Workload, ...],
    ) -> None:
        super().__init__(subject, compiler)
        self._device, self.workloads = device, workloads

    def require_correct(self) -> None:
        """Raise `KernelError` unless the unchanged kernel passes on every workload."""
        for workload in self.workloads:
            result = self.original(workload)
            if not result.ok:
                raise KernelError(
                    f"does not compile for the `host` device:\n{result.error}",
                    path=self._subject.path,
                )
            status, reason = self.verified(self._subject.text(workload), workload, result)
            if status is not Status.CORRECT:
                raise KernelError(
                    f"fails unchanged on {workload}: {status}: {reason}",
                    path=self._subject.path,
                    remedy="a check that the kernel itself does not pass tells nothing of mutants",
                )

    def compiled(
        self, mutant: Mutant, first: CompileResult | None = None
    ) -> Iterator[tuple[Workload, str, CompileResult]]:
        """Compile a mutant for one workload after the other; `first` is the first one's result."""
        results: dict[CompileRequest, CompileResult] = {}
        for workload in self.workloads:
            text = self._subject.mutated(workload, mutant)
            if text is None:
                continue
            request = self._subject.request(text, workload)
            if request not in results:
                done = first if first is not None and not results else None
                results[request] = done or self._compiler.submit(request).result()
            yield workload, text, results[request]

    def verified(self, text: str, workload: Workload, result: CompileResult) -> tuple[Status, str]:
        """Verify what was compiled with every fill."""
        program = self._subject.program(text, workload, result)
        outcome = self._device.verify(program)
        return outcome.status, outcome.reason
