"""The languages that a kernel can be written in, told by the end of its file's name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import KernelError


@dataclass(frozen=True, slots=True)
class Language:
    """One language: how its files end, and what begins a comment of one line.

    `macros` tells whether a choice of the operator reaches a source as a macro, `is_read` whether
    kernels and their parameters are found in a source here, and so can be checked. `unit` is what
    compilers of ours call a source in their messages.
    """

    name: str
    suffix: str
    comment: str = "//"
    macros: bool = True
    is_read: bool = True
    unit: str = "kernel.cu"


CUDA = Language("CUDA", ".cu")
PYTHON = Language("Python", ".py", comment="#", macros=False)
OPENCL = Language("OpenCL", ".cl", is_read=False, unit="kernel.cl")
HIP = Language("HIP", ".hip")
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
    wanted, found = language_of(source), language_of(template)
    if found is not wanted:
        raise KernelError(
            f"is {found.name}, and {source.name} is {wanted.name}",
            path=template,
            remedy=f"a template of it ends in {wanted.suffix}.j2",
        )
