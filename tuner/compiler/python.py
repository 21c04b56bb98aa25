"""The compiler of kernels in Python: what compiles does so when it is first called."""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.includes import UNIT_NAME
from tuner.model.trial import Resources

# What compiles, and whose kernels are tuned: times of one release say little of another's.
_LIBRARIES = ("torch", "triton", "sglang", "vllm")


class PythonCompiler:
    """Check that a module is Python; implements `Compiler`.

    What its functions use of the hardware nobody knows here, so that limits on it say nothing;
    `CallCompiler` asks Triton.
    """

    @property
    def version(self) -> str:
        return ", ".join((f"Python {platform.python_version()}", *_versions()))

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Give the text as it is, or the error with its line."""
        future: Future[CompileResult] = Future()
        future.set_result(_result(request))
        return future

    def close(self) -> None:
        """Nothing is held open."""


def measured_with(compiler: str, library: str) -> str | None:
    """Read out of `PythonCompiler.version` which version of a library there was, None for none."""
    versions = dict(one.split(" ", 1) for one in compiler.split(", ") if " " in one)
    return versions.get(library)


def _versions() -> Iterator[str]:
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def _result(request: CompileRequest) -> CompileResult:
    try:
        ast.parse(request.source)
    except SyntaxError as error:
        return CompileResult(error=f"{UNIT_NAME}({error.lineno or 1}): error: {error.msg}")
    names = dict.fromkeys(request.kernels, "")
    resources = dict.fromkeys(request.kernels, Resources(None))
    return CompileResult(request.source.encode(), names, resources)
