"""What cannot be tuned here: files in other languages, and arguments that a search space lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.model.errors import KernelError
from tuner.model.languages import HIP, language_of
from tuner.source.facts import IDENTIFIER, KernelFunction, LineIndex, SourceFile
from tuner.source.syntax import fold, mask

_CUDA = re.compile(r"\b__global__\b")


@dataclass(frozen=True, slots=True)
class _Language:
    # by a file's suffix, or by what its code says where it has no kernel of CUDA's
    suffixes: tuple[str, ...]
    code: re.Pattern[str]
    message: str
    remedy: str


_LANGUAGES = (
    _Language(
        (".cl", ".ocl", ".clcpp"),
        re.compile(r"\b__kernel\b|\bkernel\s+void\b(?=[\s\S]*\bget_(?:global|local|group)_id\s*\()"),
        "is OpenCL, which CUDA's compiler does not take",
        "port the kernel: `__kernel` is `__global__`, `__local` is `__shared__`, "
        "`get_global_id(0)` is `blockIdx.x * blockDim.x + threadIdx.x`",
    ),
    _Language(
        (),
        re.compile(r"@triton\.(?:jit|autotune|heuristics)|^\s*(?:import|from)\s+triton\b", re.M),
        "is a kernel of Triton, whose own compiler chooses threads and registers",
        "name its .py file: `tune init kernel.py` drafts a search space and a launch from it",
    ),
    _Language(
        (),
        re.compile(r"@(?:numba\.)?cuda\.jit\b"),
        "is a kernel of Numba, which compiles it from Python",
        "write the kernel in CUDA C++: `cuda.grid(1)` is `blockIdx.x * blockDim.x + threadIdx.x`",
    ),
    _Language(
        (".metal",),
        re.compile(r"#\s*include\s*<metal_stdlib>"),
        "is Metal, for Apple's GPUs",
        "port the kernel to CUDA C++",
    ),
    _Language(
        (".wgsl", ".glsl", ".comp", ".hlsl"),
        re.compile(r"@compute\b|\blayout\s*\(\s*local_size_x|\[numthreads\s*\("),
        "is a shader",
        "port the kernel to CUDA C++",
    ),
    _Language(
        (),
        re.compile(r"\bsycl\s*::|#\s*include\s*<(?:sycl|CL)/sycl\.hpp>"),
        "is SYCL, which another compiler compiles",
        "port the kernel to CUDA C++: `parallel_for` is a kernel and its launch",
    ),
    _Language(
        (".ptx",),
        re.compile(r"^\s*\.version\s+\d[\s\S]*?^\s*\.target\s+sm_\d+", re.M),
        "is PTX, which nothing can be varied in",
        "give the CUDA C++ source that it was compiled from",
    ),
)  # fmt: skip
# has __global__ too: what only HIP's own programs say
_HIP = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]hip/", re.M)
_HIP_CODE = re.compile(
    r"\bhip(?:LaunchKernelGGL|Stream_t|Malloc|Memcpy|Error_t|DeviceSynchronize)\b"
)
_HIP_TOLD = (
    "is HIP, for AMD's GPUs",
    "name it .hip, with a search space for it (docs/hardware.md), or tune the CUDA source that it "
    "was made from",
)

# types of parameters that are neither arrays nor numbers
_PARAMETERS = (
    (
        r"CUtensorMap",
        "a CUtensorMap, which host code encodes for one address and shape",
        "make the maps its last parameters, which a launch's `maps` hand over "
        "(docs/search-spaces.md), or take a pointer and load with `cp.async.bulk`",
    ),
    (
        r"cuda(?:Texture|Surface)Object_t",
        "a texture or surface, which host code binds",
        "take a pointer and load with `__ldg`: the cache is the same",
    ),
    (
        r"(?:Generic)?PackedTensorAccessor\w*",
        "an accessor of PyTorch, which carries sizes and strides",
        "take `data_ptr()` and the sizes, and compute the index",
    ),
    (
        r"curandState\w*|PhiloxCudaState|philox\w*",
        "the state of random numbers, so that no reference can say what is right",
        "take the random numbers as an array",
    ),
    (
        r"TensorIterator\w*|OffsetCalculator|TensorInfo",
        "a table of PyTorch's for strided tensors",
        "take pointers and sizes of contiguous tensors",
    ),
)

# what device code does that no config can be checked or compiled with
_BODIES = (
    (
        r"\bcurand(?:_\w+)?\s*\(|\bcurandState\w*",
        "draws random numbers of cuRAND, so that no reference can say what is right",
        "take the random numbers as an array",
    ),
    (
        r"\b(?:tex|surf)[123]D\w*\s*[(<]",
        "uses a texture or surface, which host code binds",
        "take a pointer and load with `__ldg`: the cache is the same",
    ),
    (
        r"<<<",
        "launches a kernel from the device, which needs a runtime that is linked to it",
        "launch that kernel from the host, or call its code as a function",
    ),
    (
        r"\bthis_grid\s*\(\s*\)\s*\.\s*sync\b|\b(\w+)\s*=\s*(?:\w+\s*::\s*)*this_grid\s*\(\s*\)"
        # up to where the name is another group's
        r"(?=(?:(?!\b\1\s*=)[\s\S])*\b(?:\1\s*\.\s*sync|sync\s*\(\s*\1\s*\)))",
        "waits for all blocks of the grid, which takes a cooperative launch",
        "cut it there into kernels that a search space launches one after another",
    ),
)


def require_cuda(path: Path, text: str) -> None:
    """Raise `KernelError` for a file in another language: what it is and what to do."""
    masked = mask(text)
    language = next(
        (language for language in _LANGUAGES if path.suffix.lower() in language.suffixes), None
    )
    if language is None and _CUDA.search(masked) is None:
        language = next((language for language in _LANGUAGES if language.code.search(masked)), None)
    if language is not None:
        at = language.code.search(masked)
        line = (
            text.count("\n", 0, at.start() + len(at[0]) - len(at[0].lstrip())) + 1 if at else None
        )
        raise KernelError(language.message, path=path, line=line, remedy=language.remedy)
    if language_of(path) is HIP:
        return
    include = _HIP.search(masked) or _HIP.search(text)
    if include is not None and _HIP_CODE.search(masked) and "cuda" not in masked:
        line = text.count("\n", 0, include.start()) + 1
        raise KernelError(_HIP_TOLD[0], path=path, line=line, remedy=_HIP_TOLD[1])


_BRANCH = re.compile(r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)\b")
_PAIRS = {")": "(", "]": "[", "}": "{"}


def require_closed(path: Path, text: str) -> None:
    """Raise `KernelError` for a bracket without its other half, with its line."""
    open_ones: list[tuple[str, int]] = []
    for number, row in enumerate(_first_branches(mask(text)), start=1):
        for character in row:
            if character in "([{":
                open_ones.append((character, number))
            elif character in _PAIRS:
                opened, line = open_ones.pop() if open_ones else ("", number)
                if opened != _PAIRS[character]:
                    what = (
                        f"`{opened}` is never closed" if opened else f"`{character}` opens nowhere"
                    )
                    raise _unclosed_error(path, what, line)
    if open_ones:
        raise _unclosed_error(path, f"`{open_ones[-1][0]}` is never closed", open_ones[-1][1])


def _unclosed_error(path: Path, what: str, line: int) -> KernelError:
    return KernelError(
        f"does not compile: this {what}", path=path, line=line, remedy="put the other half in"
    )


def _first_branches(masked: str) -> Iterator[str]:
    # the branches of an #if may each open what one bracket closes
    skipped: list[bool] = []
    for row in masked.split("\n"):
        if match := _BRANCH.match(row):
            if match[1].startswith("if"):
                skipped.append(False)
            elif skipped and match[1] == "endif":
                skipped.pop()
            elif skipped:
                skipped[-1] = True
        yield "" if any(skipped) or row.lstrip().startswith("#") else row


def require_body(kernel: str, path: Path, line: int, masked: str) -> None:
    """Raise `KernelError` for device code that cannot be tuned; `line` is where it begins."""
    for pattern, what, remedy in _BODIES:
        if (match := re.search(pattern, masked)) is not None:
            at = line + masked.count("\n", 0, match.start())
            raise KernelError(f"kernel {kernel!r} {what}", path=path, line=at, remedy=remedy)


def require_arguments(kernel: KernelFunction) -> None:
    """Raise `KernelError` for a parameter that no search space can give a value to."""
    for parameter in kernel.parameters:
        for pattern, what, remedy in _PARAMETERS:
            if re.search(rf"\b(?:{pattern})\b", parameter.declaration):
                message = f"kernel {kernel.name!r} takes {what}: `{parameter.declaration}`"
                message += "; a draft hands over arrays and numbers alone"
                raise KernelError(message, path=kernel.path, line=kernel.line, remedy=remedy)


@dataclass(frozen=True, slots=True)
class ConstantMemory:
    """A `__constant__` array that host code fills; `line` is where it is declared."""

    name: str
    declaration: str
    line: int


_CONSTANT = re.compile(
    r"\b__constant__\b[^;{}()=]*?\b(?P<name>[A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*(?P<end>[;={])"
)


def constant_memory(source: SourceFile, kernel: KernelFunction) -> tuple[ConstantMemory, ...]:
    """Find the `__constant__` memory that a kernel needs and that only host code fills."""
    spans = source.reachable([kernel])
    used = {name for span in spans for name in IDENTIFIER.findall(source.masked, *span)}
    lines = LineIndex(source.masked)
    found = []
    for match in _CONSTANT.finditer(source.masked):
        declaration = fold(match[0].rstrip(";={"))
        if match["end"] == ";" and match["name"] in used and "constexpr" not in declaration:
            found.append(ConstantMemory(match["name"], declaration, lines.at(match.start())))
    return tuple(found)
