"""From a worker's raw answer to what the caller asked: options in, errors and resources out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tuner.compiler import report
from tuner.compiler.base import CompileRequest, CompileResult, normalized
from tuner.compiler.includes import UNIT_NAME

# The compiler writes the names that it was asked for into a file of this name.
_NAME_FILE = "__nv_name_map"
_NAME_ERROR = re.compile(
    r"^__nv_name_map\(\d+\): error: (.*)\n\s*#pragma nv_mangled_name (.*)$", re.M
)
_ATTRIBUTE = re.compile(r"\b__\w+__\s*\((?:[^()]|\([^()]*\))*\)")
_STANDARD = re.compile(r"--?std\b")
_DEFAULT_DEVICE = {"-default-device", "--device-as-default-execution-space"}
_KERNEL = re.compile(r"__global__(?:[^;{}()_]|_(?!_global__))*?\b(\w++)\s*+\(")


def compiler_options(request: CompileRequest) -> list[str]:
    """List the options for `request`, without the folders of CUDA's own headers."""
    options = [
        f"--gpu-architecture={request.architecture}",
        "--ptxas-options=-v",
        *request.options,
        *(f"-I{Path(folder).absolute()}" for folder in request.include_dirs),
    ]
    if not any(_STANDARD.match(option) for option in request.options):
        options.append("--std=c++17")
    # nvcc takes constexpr helpers without __device__, NVRTC only so.
    if not _DEFAULT_DEVICE.intersection(request.options):
        options.append("--device-as-default-execution-space")
    return options


def result_of(request: CompileRequest, reply: dict[str, Any], cubin: bytes) -> CompileResult:
    """Make the result from a worker's reply: resources by requested name, or the errors alone."""
    log, seconds = reply["log"], reply["seconds"]
    if not cubin:
        return CompileResult(error=_error(request, log), seconds=seconds)
    found = report.resources(log)
    lowered = {name: reply["lowered"].get(name, "") for name in request.kernels}
    absent = [name for name in request.kernels if lowered[name] not in found]
    if absent:
        return CompileResult(error=_absent(request, absent, ""), seconds=seconds)
    resources = {name: found[lowered[name]] for name in request.kernels}
    return CompileResult(cubin, lowered, resources, seconds=seconds)


def _error(request: CompileRequest, log: str) -> str:
    errors = report.errors(log)
    own = [error for error in errors if not error.startswith(_NAME_FILE)]
    if own:
        return report.shortened("\n\n".join(own))
    reasons: dict[str, str] = {}
    for error in errors:
        if match := _NAME_ERROR.match(error):
            reasons.setdefault(match[2].strip(), match[1])
    absent = [name for name in request.kernels if name.strip() in reasons]
    if not absent:
        return report.shortened(log.strip() or "the compiler failed without a message")
    return _absent(request, absent, reasons[absent[0].strip()])


def _absent(request: CompileRequest, absent: list[str], reason: str) -> str:
    source = _ATTRIBUTE.sub(" ", normalized(request.source))
    known = ", ".join(dict.fromkeys(_KERNEL.findall(source))) or "no __global__ function"
    names = ", ".join(f"`{name}`" for name in absent)
    because = f" ({reason})" if reason else ""
    return f"{UNIT_NAME}: error: no kernel {names}{because}; the source has {known}"
