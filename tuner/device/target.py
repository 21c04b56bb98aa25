"""What a kernel is compiled for: its spec, the operator's choices, and the device's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.compiler.base import CompileRequest, CompileResult, source_key
from tuner.device.base import DeviceInfo, Program
from tuner.model.config import Config
from tuner.model.expressions import Value
from tuner.model.hardware import DeviceLimits, limits_for
from tuner.model.kernel import KernelSpec, Launch, Workload


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """Turn sources of one kernel into requests and programs, and say what a recording calls them.

    `operators` holds the value chosen for each of the operator's macros.
    """

    spec: KernelSpec
    operators: Mapping[str, str]
    device: DeviceInfo

    @property
    def limits(self) -> DeviceLimits:
        """The limits of the device's compute capability."""
        return limits_for(self.device.compute_capability)

    @property
    def options(self) -> tuple[str, ...]:
        """The compile options, the operator's macros included."""
        defines = tuple(f"-D{name}={value}" for name, value in self.operators.items())
        return (*self.spec.compile_options, *defines)

    def names(self, workload: Workload) -> dict[str, Value]:
        """Collect what constraints and launches may use besides parameters."""
        limits = self.limits
        return {
            **workload.values,
            "max_threads": limits.threads_per_block,
            "max_shared_bytes": limits.shared_bytes_per_block,
            "multiprocessors": self.device.multiprocessors,
            "warp_size": limits.threads_per_warp,
        }

    def request(self, source: str, launches: tuple[Launch, ...]) -> CompileRequest:
        """Make the request that compiles a source for the launches' kernels."""
        return CompileRequest(
            source=source,
            kernels=tuple(dict.fromkeys(launch.kernel for launch in launches)),
            architecture=self.device.architecture,
            options=self.options,
            include_dirs=tuple(str(folder) for folder in self.spec.include_dirs),
        )

    def program(
        self,
        source: str,
        workload: Workload,
        launches: tuple[Launch, ...],
        result: CompileResult,
        config: Config | None = None,
    ) -> Program:
        """Make what a device runs of a compiled source."""
        return Program(
            source_key=self._source_key(source),
            workload=workload,
            launches=launches,
            cubin=result.cubin,
            lowered=result.lowered,
            config=config,
        )

    def key(self, source: str, workload: Workload, launches: tuple[Launch, ...]) -> str:
        """Compute what a recording keys the program by, without compiling."""
        return Program(self._source_key(source), workload, launches).key

    def _source_key(self, source: str) -> str:
        return source_key(source, self.options, self.device.architecture)
