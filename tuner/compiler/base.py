"""The seam of compilers, what they say, and those of Python."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from tuner.compiler.includes import UNIT_NAME, header_digest
from tuner.compiler.python_code import extract_launch_code
from tuner.model.kernel import PYTHON_OPTION, Launch
from tuner.model.trial import Resources

# PoCL compiles anew for a launch of more work-items in any dimension.
SMALL_GRID_ITEMS = 0xFFFF
# What compiles, and whose kernels are tuned: times of one release say little of another's.
_LIBRARIES = ("torch", "triton", "sglang", "sgl-deep-gemm", "vllm")
# By which SGLang leaves DeepGEMM alone, for all products or for those of its deterministic mode.
_SWITCHES = ("SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_BATCH_INVARIANT_OPS_ENABLE_MM_DEEPGEMM")
_OFF = ("0", "false", "no", "n", "off")


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One translation unit: rendered source, the kernels wanted from it, options, architecture.

    `kernels` are names as a launch states them, C++ template instantiations included
    (`act_and_mul<8>`). `architecture` is the real target, `sm_90a`. `work_groups` are what a
    compiler of OpenCL may compile for ahead (`work_groups_of`).
    """

    source: str
    kernels: tuple[str, ...]
    architecture: str
    options: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    work_groups: tuple[str, ...] = ()


def work_groups_of(launches: Sequence[Launch]) -> tuple[str, ...]:
    """Name what PoCL compiles a kernel for at each launch, as it names that in its cache."""
    names: dict[str, None] = {}
    for launch in launches:
        sizes = "-".join(map(str, launch.block))
        items = (count * size for count, size in zip(launch.grid, launch.block, strict=True))
        names[f"{sizes}-goffs0" + "-smallgrid" * (max(items) < SMALL_GRID_ITEMS)] = None
    return tuple(names)


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What came of a request: a cubin with each kernel's lowered name and resources, or an error.

    `error` is the compiler's text with its lines as they are in the rendered source; `timed_out`
    says that the compiler was killed. `called` are the launches that a Python kernel makes, as far
    as they are known: `resources` has theirs by name, and under the kernel's own the most of each.
    """

    cubin: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    error: str = ""
    timed_out: bool = False
    seconds: float = 0.0
    cached: bool = False
    called: tuple[Launch, ...] = ()

    @property
    def ok(self) -> bool:
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
        """Kill what runs, cancel what waits and end the processes."""
        ...


# What lacks its end is taken whole, or every start of such would be followed to the source's end.
_COMMENT = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])')|//[^\n]*+|/\*.*?(?:\*/|\Z)""",
    re.DOTALL,
)


@lru_cache(maxsize=64)
def normalize_source(source: str) -> str:
    """Remove comments and fold white space, so that only changes to the code change the result."""
    bare = _COMMENT.sub(lambda match: match["literal"] or " ", source)
    lines = (" ".join(line.split()) for line in bare.splitlines())
    return "\n".join(line for line in lines if line)


def source_key(
    source: str,
    options: tuple[str, ...],
    architecture: str,
    include_dirs: tuple[str, ...] = (),
) -> str:
    """Hash what decides the machine code apart from the compiler: code, options, architecture.

    The code is also that of the headers which the source can reach in `include_dirs`, and in Python
    what `launch` can reach.
    """
    headers = header_digest(source, include_dirs)
    # In Python two slashes divide.
    code = extract_launch_code(source) if PYTHON_OPTION in options else normalize_source(source)
    content = json.dumps([code, list(options), architecture, *filter(None, [headers])])
    return hashlib.sha256(content.encode()).hexdigest()


class AnsweringCompiler:
    """Answer from results without machine code, by `source_key`; ask `fallback` for the rest.

    Implements `Compiler`; closes its fallback.
    """

    def __init__(
        self, results: Mapping[str, CompileResult], version: str, fallback: Compiler
    ) -> None:
        self._results, self._version, self._fallback = results, version, fallback

    @property
    def version(self) -> str:
        return self._version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Answer at once where all kernels of the request are known, else start compiling."""
        asked = request.source, request.options, request.architecture, request.include_dirs
        key = source_key(*asked)
        result = self._results.get(key)
        if result is None or (result.ok and not set(request.kernels) <= result.resources.keys()):
            return self._fallback.submit(request)
        answer: Future[CompileResult] = Future()
        answer.set_result(result)
        return answer

    def close(self) -> None:
        self._fallback.close()


MAX_ERROR_CHARACTERS = 20_000

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = (
    re.compile(r"Used (\d+) registers"),
    re.compile(r"used (\d+) barriers"),
    re.compile(r"(\d+) bytes smem"),
)
# Remarks C7509 to C7519, by their words: the numbers changed between versions.
_SERIALIZED = re.compile(
    r"wgmma\.mma_async instructions are serialized due to (?P<why>.+?)"
    r" in the function '(?P<by>[^']+)'"
    r"|(?P<wait>wgmma\.wait_group is injected)\b.*? by compiler (?P<to>.+?)"
    r" in function '(?P<for>[^']+)'"
)
_PTXAS = re.compile(r"ptxas\b")
_PTXAS_ERROR = re.compile(r"\b(?:error|fatal)\s*:")
_DIAGNOSTIC = re.compile(r"(?:^|: )(?:catastrophic |internal )?error\b", re.MULTILINE)
_SUMMARY = re.compile(r"^\d+ (?:catastrophic )?errors? detected in |^Compilation terminated\.")


def ptxas_resources(log: str) -> dict[str, Resources]:
    """Read `ptxas -v`: the resources of every kernel in `log`, by its lowered name.

    Spills and serialized multiplies of functions that were not inlined count for every kernel: the
    report doesn't say which kernel calls them.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, str] = {}
    serialized: dict[str, str] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _SERIALIZED.search(line):
            why = match["why"] or f"{match['wait']} {match['to']}"
            serialized.setdefault(match["by"] or match["for"], " ".join(why.split()))
        elif match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            frames[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif _USED[0].search(line):
            used[entry] = line
    called = [frame for name, frame in frames.items() if name not in used]
    elsewhere = next((why for name, why in serialized.items() if name not in used), "")
    resources = {}
    for name, line in used.items():
        registers, barriers, shared = (
            int(match[1]) if (match := pattern.search(line)) else 0 for pattern in _USED
        )
        stack, stores, loads = frames.get(name, (0, 0, 0))
        stores += sum(frame[1] for frame in called)
        loads += sum(frame[2] for frame in called)
        why = serialized.get(name, elsewhere)
        resources[name] = Resources(registers, stores, loads, shared, stack, barriers, why)
    return resources


def nvrtc_errors(log: str) -> list[str]:
    """List the errors of `log`, each with the source lines that the compiler shows with it."""
    errors = []
    for block in re.split(r"\n\s*\n", log.replace("\0", "").strip("\n")):
        lines = []
        for line in block.splitlines():
            if _PTXAS.match(line):
                errors += [line] if _PTXAS_ERROR.search(line) else []
            elif not _SUMMARY.match(line) and "precompiled header file" not in line:
                lines.append(line)
        text = "\n".join(lines)
        if _DIAGNOSTIC.search(text):
            errors.append(text)
    return errors


def shorten_text(text: str) -> str:
    """Cut a text that a template expanded without end may have filled."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:MAX_ERROR_CHARACTERS]}\n... {len(text) - MAX_ERROR_CHARACTERS} more characters"


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
        # `{threadIdx.x, n}` for two unsigned numbers is a warning of nvcc and an error of NVRTC
        "--diag-suppress=2361",
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
    by_symbol = ptxas_resources(log)
    lowered = {name: reply["lowered"].get(name, "") for name in request.kernels}
    absent = [name for name in request.kernels if lowered[name] not in by_symbol]
    if absent:
        return CompileResult(error=absent_error(request, absent), seconds=seconds)
    resources = {name: by_symbol[lowered[name]] for name in request.kernels}
    return CompileResult(cubin, lowered, resources, seconds=seconds)


def _error(request: CompileRequest, log: str) -> str:
    errors = nvrtc_errors(log)
    if own := [error for error in errors if not error.startswith(_NAME_FILE)]:
        return shorten_text("\n\n".join(own))
    reasons: dict[str, str] = {}
    for error in errors:
        if match := _NAME_ERROR.match(error):
            reasons.setdefault(match[2].strip(), match[1])
    absent = [name for name in request.kernels if name.strip() in reasons]
    if not absent:
        return shorten_text(log.strip() or "the compiler failed without a message")
    return absent_error(request, absent, f" ({reasons[absent[0].strip()]})")


def absent_error(request: CompileRequest, absent: list[str], because: str = "") -> str:
    """Say which kernels of a request its source lacks, and which it has."""
    source = _ATTRIBUTE.sub(" ", normalize_source(request.source))
    kernels = ", ".join(dict.fromkeys(_KERNEL.findall(source))) or "no __global__ function"
    names = ", ".join(f"`{name}`" for name in absent)
    return f"{UNIT_NAME}: error: no kernel {names}{because}; the source has {kernels}"


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
