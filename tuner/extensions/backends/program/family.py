"""Programs of the user's as a family of devices."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.compiler.base import Compiler
from tuner.compiler.python import PassingCompiler
from tuner.device.base import Device
from tuner.device.families import Listed
from tuner.extensions.backends.program.device import EvaluatorDevice
from tuner.model.kernel import KernelSpec


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
