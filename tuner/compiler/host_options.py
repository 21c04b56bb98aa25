"""How g++ is asked to compile a kernel: the language, the code, the sanitizers."""

from __future__ import annotations

import re

from tuner.compiler.base import CompileRequest

SANITIZERS = ("address", "undefined")

# Standing for a header of NVIDIA's or a kernel's own file, warnings help nobody here.
_LANGUAGE = ("-D__CUDA_ON_HOST__=1", "-D__CUDACC__=1", "-U_FORTIFY_SOURCE", "-w")
CODE = (
    "-fPIC",
    "-shared",
    "-pipe",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    # Two libraries' statics of one template would otherwise be one, and unloading leaves it behind.
    "-fno-gnu-unique",
    # What CUDA takes for granted: reinterpreted memory, and loops that never end stay in the code.
    "-fno-strict-aliasing",
    "-fno-finite-loops",
    "-fno-threadsafe-statics",
    "-fno-asynchronous-unwind-tables",
)
# The sanitizers' own libraries are left out: the runtime has what `undefined` calls, and the
# worker has what `address` calls loaded before all else.
LINK = ("-nodefaultlibs", "-Wl,-Bsymbolic", "-Wl,--as-needed", "-lstdc++", "-lm", "-lc", "-lgcc")

# Left out: what CUDA code does and a GPU defines. A shift of a negative number or into the sign
# (`shift-base`), pointers that wrap on their way to a good address (`pointer-overflow`), and
# division of floats by zero, which is no part of -fsanitize=undefined.
_UNDEFINED = (
    "-fsanitize=integer-divide-by-zero,signed-integer-overflow,shift-exponent,bounds,null,alignment,"
    "unreachable,return,bool,float-cast-overflow,vla-bound",
    "-fno-sanitize-recover=all",
    "-DON_HOST_UNDEFINED=1",
)
_ADDRESS = (
    "-fsanitize=address",
    "--param=asan-use-after-return=0",
    "-DON_HOST_ADDRESS=1",
    "-g1",
    "-fno-omit-frame-pointer",
)
_RUNTIME_ONLY = ("-fPIC", "-O2", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w")

# -Dname, -Uname and the language version mean the same to g++; the rest is for NVRTC alone.
_SHARED_OPTION = re.compile(r"-[DU].*")
_STANDARD = re.compile(r"--?std=(c\+\+\d\d)")
_ARCHITECTURE = re.compile(r"sm_(\d+)")


def language(request: CompileRequest) -> list[str]:
    """List the options that decide what the preprocessor sees.

    `__CUDA_ARCH__` is the GPU's, so that a kernel takes the branch it would take there; where that
    has PTX it is refused with its line, and `__CUDA_ON_HOST__` tells the branches apart. The macros
    of architecture-specific instructions (`__CUDA_ARCH_FEAT_SM90_ALL`) are not defined, for those
    exist as PTX alone.
    """
    found = _ARCHITECTURE.match(request.architecture)
    architecture = [f"-D__CUDA_ARCH__={int(found[1]) * 10}"] if found else []
    own = [option for option in request.options if _SHARED_OPTION.fullmatch(option)]
    return [*_LANGUAGE, *architecture, standard(request), *own]


def standard(request: CompileRequest) -> str:
    """Return the option for the language version, C++17 unless the request says otherwise."""
    named = [match[1] for option in request.options if (match := _STANDARD.fullmatch(option))]
    return f"-std={named[-1] if named else 'c++17'}"


def sanitizing(sanitizers: tuple[str, ...]) -> list[str]:
    """List the options for the sanitizers; without any, the optimization for speed."""
    options: list[str] = ["-O1"]
    if "address" in sanitizers:
        options += _ADDRESS
    if "undefined" in sanitizers:
        options += _UNDEFINED
    return options


def runtime_options(sanitizers: tuple[str, ...]) -> list[str]:
    """List the options for the runtime, which only knows of the sanitizers and isn't watched."""
    known = [f"-DON_HOST_{name.upper()}=1" for name in sanitizers]
    return [*_RUNTIME_ONLY, *known, "-std=c++17", "-frounding-math", "-fno-gnu-unique", "-c"]
