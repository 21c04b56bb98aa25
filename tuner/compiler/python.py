"""The compiler of kernels in Python: what compiles does so when it is first called."""

from __future__ import annotations

import ast
import platform
from concurrent.futures import Future

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.includes import UNIT_NAME
from tuner.model.trial import Resources


class PythonCompiler:
    """Check that a module is Python; implements `Compiler`.

    What its functions use of the hardware nobody knows here, so that limits on it say nothing;
    `CallCompiler` asks Triton.
    """

    @property
    def version(self) -> str:
        return f"Python {platform.python_version()}"

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Give the text as it is, or the error with its line."""
        future: Future[CompileResult] = Future()
        future.set_result(_result(request))
        return future

    def close(self) -> None:
        """Nothing is held open."""


def _result(request: CompileRequest) -> CompileResult:
    try:
        ast.parse(request.source)
    except SyntaxError as error:
        return CompileResult(error=f"{UNIT_NAME}({error.lineno or 1}): error: {error.msg}")
    names = dict.fromkeys(request.kernels, "")
    resources = dict.fromkeys(request.kernels, Resources(None))
    return CompileResult(request.source.encode(), names, resources)
