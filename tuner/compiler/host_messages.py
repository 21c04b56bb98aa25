"""g++'s messages in the form of NVRTC's, naming what only a GPU has."""

from __future__ import annotations

import re

from tuner.compiler.base import CompileRequest
from tuner.compiler.host_source import LAUNCH_UNIT, REMEDY
from tuner.compiler.includes import UNIT_NAME
from tuner.compiler.report import shortened

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.*)$"
)
_GPU_ONLY = re.compile(
    r"mma\.h|mma_sync|cooperative_groups|cuda/(?:barrier|pipeline|ptx|atomic|std)|cudaTypedefs|wmma"
    r"|nvcuda|cute/|cutlass|__cvta_generic_to_shared|__pipeline_|__cluster|cluster_|tensor_?map"
    r"|CUtensorMap|__grid_|cudaGridDependency|cudaTriggerProgrammatic",
    re.IGNORECASE,
)


def errors(log: str, request: CompileRequest) -> str:
    """Rewrite all errors of a log; the log itself where it has none that is understood."""
    found: list[str] = []
    for line in log.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match is None:
            continue
        file, number, text = match["file"], int(match["line"]), match["text"]
        if file == LAUNCH_UNIT:
            kernel = request.kernels[min(number, len(request.kernels)) - 1]
            found.append(f"error: the kernel `{kernel}` cannot be launched: {text}")
        else:
            found.append(f"{UNIT_NAME if file == UNIT_NAME else file}({number}): error: {text}")
        if _GPU_ONLY.search(text):
            found.append(f"  {REMEDY}")
    return shortened("\n".join(found) or log.strip() or "g++ failed without a message")
