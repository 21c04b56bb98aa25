"""Compilers of what is compiled where it runs: kernels in Python, and programs of the user's."""

from __future__ import annotations

import ast
import os
import platform
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.includes import UNIT_NAME
from tuner.model.trial import Resources

# What compiles, and whose kernels are tuned: times of one release say little of another's.
_LIBRARIES = ("torch", "triton", "sglang", "sgl-deep-gemm", "vllm")
# By which SGLang leaves DeepGEMM alone, for all products or for those of its deterministic mode.
_SWITCHES = ("SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM")
_OFF = ("0", "false", "no", "n", "off")


class PassingCompiler:
    """Give every source back as its own result; implements `Compiler`.

    Whether it compiles, and what it then uses of the hardware, whoever runs it has to say.
    """

    def __init__(self, evaluator: str) -> None:
        self._evaluator = evaluator

    @property
    def version(self) -> str:
        return f"that of {self._evaluator}"

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        future: Future[CompileResult] = Future()
        future.set_result(self._result(request))
        return future

    def _result(self, request: CompileRequest) -> CompileResult:
        names = dict.fromkeys(request.kernels, "")
        resources = dict.fromkeys(request.kernels, Resources(None))
        return CompileResult(request.source.encode(), names, resources)

    def close(self) -> None:
        """Nothing is held open."""


class PythonCompiler(PassingCompiler):
    """Check that a module is Python.

    What its functions use of the hardware nobody knows here, so that limits on it say nothing;
    `CallCompiler` asks Triton.
    """

    def __init__(self) -> None:
        super().__init__("Python")

    @property
    def version(self) -> str:
        versions = [f"Python {platform.python_version()}"]
        off = any(os.environ.get(one, "").lower() in _OFF for one in _SWITCHES)
        for name in _LIBRARIES:
            with suppress(PackageNotFoundError):
                if name == "sgl-deep-gemm" and off:
                    continue
                versions.append(f"{name} {version(name)}")
        return ", ".join(versions)

    def _result(self, request: CompileRequest) -> CompileResult:
        try:
            ast.parse(request.source)
        except SyntaxError as error:
            return CompileResult(error=f"{UNIT_NAME}({error.lineno or 1}): error: {error.msg}")
        return super()._result(request)


def measured_with(compiler: str, library: str) -> str | None:
    """Read out of `PythonCompiler.version` which version of a library there was, None for none."""
    versions = dict(entry.split(" ", 1) for entry in compiler.split(", ") if " " in entry)
    return versions.get(library)
