"""The seam between the search and a compiler."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from tuner.trial import Resources


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One translation unit: rendered source, the kernels wanted from it, options, architecture.

    `kernels` are names as a launch states them, C++ template instantiations included
    (`act_and_mul<8>`). `architecture` is the real target, `sm_90a`.
    """

    source: str
    kernels: tuple[str, ...]
    architecture: str
    options: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What came of a request: a cubin with each kernel's lowered name and resources, or an error.

    `error` is the compiler's text with its lines as they are in the rendered source; `timed_out`
    says that the compiler was killed.
    """

    cubin: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    error: str = ""
    timed_out: bool = False
    seconds: float = 0.0
    cached: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is a cubin."""
        return not self.error


class Compiler(Protocol):
    """Compile requests concurrently. Close it when done; results may arrive in any order."""

    @property
    def version(self) -> str:
        """Name and version, `NVRTC 13.5`: part of the cache key and of the environment."""
        ...

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Start compiling and return at once."""
        ...

    def close(self) -> None:
        """Stop all work and end the processes."""
        ...


# What lacks its end is taken whole, or every start of such would be followed to the source's end.
_COMMENT = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])')|//[^\n]*+|/\*.*?(?:\*/|\Z)""",
    re.DOTALL,
)


def normalized(source: str) -> str:
    """Remove comments and fold white space, so that only changes to the code change the result."""
    bare = _COMMENT.sub(lambda match: match["literal"] or " ", source)
    lines = (" ".join(line.split()) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def source_key(source: str, options: tuple[str, ...], architecture: str) -> str:
    """Hash what decides the machine code apart from the compiler: code, options, architecture."""
    content = json.dumps([normalized(source), list(options), architecture])
    return hashlib.sha256(content.encode()).hexdigest()
