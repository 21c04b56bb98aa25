"""The languages that a kernel can be written in, told by the end of its file's name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import KernelError

# What of a user's options a compiler is given, beside macros: nothing that reads or writes files,
# loads code or changes the target. OpenCL's are split at spaces.
_OPENCL_OPTION = re.compile(
    r"-D[A-Za-z_]\w*(?:=[^\s\"'\\]*)?|-U[A-Za-z_]\w*|-w|-cl-std=CL(?:C\+\+)?[\d.]+"
    r"|-cl-(?:fast-relaxed-math|mad-enable|no-signed-zeros|unsafe-math-optimizations"
    r"|finite-math-only|single-precision-constant|denorms-are-zero|opt-disable|strict-aliasing"
    r"|fp32-correctly-rounded-divide-sqrt|uniform-work-group-size|nv-maxrregcount=\d{1,3})",
    re.ASCII,
)
_HIP_OPTION = re.compile(
    r"-[DU]\w.*|-std=(?:c|gnu)\+\+\w+|-O[0-3]|-ffast-math|-fno-fast-math|-ffp-contract=\w+"
    r"|-f(?:no-)?(?:unroll-loops|approx-func|finite-math-only|gpu-flush-denormals-to-zero)"
    r"|-f(?:no-)?hip-fp32-correctly-rounded-divide-sqrt"
    r"|-m(?:no-)?unsafe-fp-atomics|-funsafe-math-optimizations"
)


@dataclass(frozen=True, slots=True)
class Language:
    """One language: how its files end, and what begins a comment of one line.

    `macros` tells whether a choice of the operator reaches a source as a macro, `is_read` whether
    kernels and their parameters are found in a source here, and so can be checked. `unit` is what
    compilers of ours call a source in their messages. `option` matches the options that a search
    space may give, of which `options` are examples; without it they are NVRTC's.
    """

    name: str
    suffix: str
    comment: str = "//"
    macros: bool = True
    is_read: bool = True
    unit: str = "kernel.cu"
    option: re.Pattern[str] | None = None
    options: str = ""


CUDA = Language("CUDA", ".cu")
PYTHON = Language("Python", ".py", comment="#", macros=False)
OPENCL = Language(
    *("OpenCL", ".cl"),
    is_read=False,
    unit="kernel.cl",
    option=_OPENCL_OPTION,
    options="-DNAME=value without spaces, -UNAME, -cl-std=CL1.2, -cl-fast-relaxed-math and others "
    "of OpenCL's for mathematics",
)
HIP = Language(
    *("HIP", ".hip"),
    option=_HIP_OPTION,
    options="-DNAME=value, -UNAME, -std=c++20, -O2, -ffast-math, -ffp-contract=fast and a few like "
    "them",
)
METAL = Language("Metal", ".metal", is_read=False)
LANGUAGES = (CUDA, PYTHON, OPENCL, HIP, METAL)


def language_of(path: Path) -> Language:
    """Tell the language of a kernel, or of its template; CUDA where the name does not say."""
    for language in LANGUAGES:
        if language.suffix in path.suffixes:
            return language
    return CUDA


def refuse_opencl(source: Path, what: str) -> None:
    """Raise `KernelError` where a kernel in OpenCL meets what does not take one."""
    if language_of(source) is OPENCL:
        raise KernelError(
            f"{what} is not for {OPENCL.name}", path=source, remedy="docs/hardware.md says what is"
        )


def refuse_python(source: Path, what: str) -> None:
    """Raise `KernelError` where a kernel in Python meets what does not take one."""
    if language_of(source) is PYTHON:
        raise KernelError(
            f"{what} is not for {PYTHON.name}", path=source, remedy="docs/callables.md says what is"
        )


def require_same_language(source: Path, template: Path) -> None:
    """Raise `KernelError` where a template is of another language than its kernel."""
    wanted, language = language_of(source), language_of(template)
    if language is not wanted:
        raise KernelError(
            f"is {language.name}, and {source.name} is {wanted.name}",
            path=template,
            remedy=f"a template of it ends in {wanted.suffix}.j2",
        )
