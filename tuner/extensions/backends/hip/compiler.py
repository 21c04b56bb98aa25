"""The compiler of kernels in HIP: clang to a code object for one of AMD's GPUs, no GPU needed."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache as once
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult, absent_error, shorten_text
from tuner.compiler.cache import Cache, recall_or_compile
from tuner.compiler.command import (
    MOST_RUNS,
    CompilerCommand,
    ToolError,
    remove_left_behind,
    scratch_folder,
)
from tuner.compiler.includes import UNIT_NAME, refused_include
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.hardware import ROCM, amd_limits
from tuner.model.languages import HIP
from tuner.model.trial import Resources
from tuner.process.confinement import (
    EXECUTE,
    READ_FILE,
    READ_FOLDER,
    SYSTEM_PROGRAMS,
    WRITE_FILE,
    restrict_files,
)

HEADERS = Path(__file__).with_name("headers")
# The first knows code objects of version 5, from which our headers read a grid's size.
OLDEST_CLANG, NEWEST_CLANG = 17, 29
# Of those that Debian 12 has; other releases have their neighbours.
_PACKAGED = (19, 22)
_ASK_TARGETS = ("--target=amdgcn-amd-amdhsa", "-nogpulib", "--print-supported-cpus")
_VERSION = re.compile(r"clang version (\d+)\.(\d+)\.(\d+)")
_KILLED = re.compile(r"error: (?:unable to execute command: Killed|.* due to signal 9)")

_OUTPUT = "kernel.hsaco"
# Without an identity of its own, which is there for host code, equal sources give equal code.
_CODE = (
    *("-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-fuse-cuid=none"),
    *("-O3", "-include", "hip/hip_runtime.h", "-fno-color-diagnostics"),
    # What pragmas ask of loops and is not done is no mistake of a config's.
    *("-Wno-pass-failed", "-Wno-unused-value"),
)
_ASSEMBLY = re.compile(r"\b(?:asm|__asm|__asm__)\b")
# The file that the lines after a source are said to be of, a line a kernel.
_NAMES = "kernels"
_DIAGNOSTIC = re.compile(r"^(?P<file>[^:\s]+):(?P<line>\d+):\d+: (?:fatal )?error: (?P<text>.*)$")
_DRIVER = re.compile(r"^clang[\w+.-]*: error: (?P<text>.*)$", re.M)
_UNDEFINED = re.compile(r"^lld: error: undefined (?:hidden )?symbol: (?P<name>.*)$", re.M)
_LACKING = re.compile(
    r"undeclared identifier|no matching function|no member named|reference to __host__ function"
)
_WITH_ROCM = "a function that our headers lack is in ROCm's, which are taken where it is installed"
# LLVM's user guide for AMDGPU: the note that holds the metadata, and the relocation of a pointer.
_METADATA_NOTE, _RELATIVE64 = 32, 13
_REGISTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Clang:
    """One clang: its version and, where it is ROCm's, the folder of its headers and libraries."""

    path: str
    version: tuple[int, int, int]
    rocm: Path | None = None

    @property
    def name(self) -> str:
        number = ".".join(map(str, self.version))
        return f"clang {number}{' of ROCm' if self.rocm else ''}"

    def ask(self, *options: str, log: bool = False) -> str:
        """Return what it says to options that compile nothing."""
        return CompilerCommand(self.path, _KILLED).ask(*options, log=log)

    def rank(self) -> tuple[bool, int, int, int]:
        """Order them as they are taken: ROCm's first, then the newest."""
        major, minor, patch = self.version
        return (self.rocm is None, -major, -minor, -patch)

    @property
    def folders(self) -> tuple[Path, ...]:
        own = Path(self.path).resolve().parents[1]
        return (own, self.rocm.resolve()) if self.rocm else (own,)


def find_clang(architecture: str) -> Clang:
    """Find ROCm's clang, or else the newest in PATH, that knows an architecture and can link.

    Raises `DeviceError` where there is none, with what each lacks that there is.
    """
    limits, lacking = amd_limits(architecture), list[str]()
    first = limits.since_clang
    for clang in sorted(_clangs(), key=Clang.rank):
        if shutil.which(clang.ask("-print-prog-name=lld").strip()) is None:
            lacking.append(f"{clang.path} has no lld beside it, which links its code")
        elif limits.architecture not in clang.ask(*_ASK_TARGETS, log=True).split():
            lacking.append(f"{clang.name} does not know {limits.architecture}")
        else:
            return clang
    number = next(one for one in _PACKAGED if one >= first)
    none = f"compiling HIP for {architecture} needs clang {first} or later, and none is in PATH"
    raise DeviceError(
        "; ".join(dict.fromkeys(lacking)) or none,
        remedy=f"install clang {first} or later and its lld (Debian and Ubuntu: apt install "
        f"clang-{number} lld-{number}, or what `apt-cache search lld-` lists; others: "
        "https://apt.llvm.org), or ROCm",
    )


def _clangs() -> Iterator[Clang]:
    """Yield ROCm's clang and those in PATH that are new enough; what cannot be started is none."""
    rocm = Path(os.environ.get("ROCM_PATH", ROCM))
    wanted = str(rocm / "llvm" / "bin" / "clang++")
    names = [f"clang-{number}" for number in range(NEWEST_CLANG, OLDEST_CLANG - 1, -1)]
    for path in filter(None, map(shutil.which, (wanted, *names, "clang"))):
        told = None
        with suppress(OSError, subprocess.TimeoutExpired):
            told = _VERSION.search(CompilerCommand(path, _KILLED).ask("--version"))
        if told is not None and int(told[1]) >= OLDEST_CLANG:
            version = (int(told[1]), int(told[2]), int(told[3]))
            yield Clang(path, version, rocm if path == wanted else None)


def errors(log: str, request: CompileRequest, *, of_rocm: bool = False) -> str:
    """Say what was wrong by the lines of the source, or which kernels it does not have.

    `of_rocm` says that nothing was lacking that ROCm has.
    """
    lines: list[str] = []
    absent: list[str] = []
    hint = [] if of_rocm else [f"  {_WITH_ROCM}"]
    for line in log.splitlines():
        if (match := _DIAGNOSTIC.match(line)) is None:
            continue
        if match["file"] == _NAMES:
            absent.append(request.kernels[min(int(match["line"]), len(request.kernels)) - 1])
            continue
        file = UNIT_NAME if match["file"].endswith(UNIT_NAME) else match["file"]
        lines.append(f"{file}({match['line']}): error: {match['text']}")
        if _LACKING.search(match["text"]):
            lines += hint
    if absent and not lines:
        return absent_error(request, list(dict.fromkeys(absent)))
    for match in _UNDEFINED.finditer(log):
        lines += [f"{UNIT_NAME}: error: nothing defines `{match['name']}`", *hint]
    if not lines:
        lines = [f"error: {match['text']}" for match in _DRIVER.finditer(log)]
    return shorten_text("\n".join(dict.fromkeys(lines)) or log.strip() or "clang failed silently")


class HipCompiler:
    """Compile kernels for one of AMD's architectures; implements `Compiler`.

    A result's `cubin` is the code object. Each compile is a process, killed over `timeout_s`, that
    reads nothing but the system's headers and those of the request, where Linux has Landlock;
    where it has not, a source with inline assembly, which could include files, is refused. Raises
    `DeviceError` where no clang is found that knows the architecture.
    """

    def __init__(
        self,
        architecture: str,
        workers: int | None = None,
        timeout_s: float = 60.0,
        cache: Cache | None = None,
    ) -> None:
        require_readers()
        self._clang, self._limits = find_clang(architecture), amd_limits(architecture)
        self._command = CompilerCommand(self._clang.path, _KILLED)
        self._timeout_s, self._cache = timeout_s, cache
        self._workers = workers or len(os.sched_getaffinity(0))
        remove_left_behind()
        # They look results up and store them: threads that compile cannot reach the cache.
        self._front = ThreadPoolExecutor(self._workers, "hip-cache")
        self._confined: dict[tuple[str, ...], tuple[ThreadPoolExecutor, Path]] = {}
        self._thread = threading.local()
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def version(self) -> str:
        return self._clang.name

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        with self._lock:
            if self._closed:
                raise WorkerError("the compiler was closed")
            return self._front.submit(self._answer, request)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._command.close()
        self._front.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def _answer(self, request: CompileRequest) -> CompileResult:
        if refused := self._refusal(request):
            return CompileResult(error=refused)

        def compile_anew() -> tuple[CompileResult, bool]:
            with self._lock:
                threads, scratch = self._threads(request.include_dirs)
            result, lasting = threads.submit(self._compile, request, scratch).result()
            if result.ok:
                result = _describe_kernels(request, result, self._limits.threads_per_warp)
            return result, lasting

        return recall_or_compile(self._cache, request, self._identity, compile_anew)

    def _refusal(self, request: CompileRequest) -> str | None:
        for option in request.options:
            if HIP.option and not HIP.option.fullmatch(option):
                return f"error: the option `{option}` is none that a kernel in HIP may have"
        return refused_include(request.source, request.include_dirs)

    def _threads(self, include_dirs: tuple[str, ...]) -> tuple[ThreadPoolExecutor, Path]:
        """Return the threads that reach these folders alone, and the folder that is theirs."""
        if include_dirs not in self._confined:
            scratch = self._stack.enter_context(scratch_folder())
            readable = (HEADERS, *map(Path, include_dirs))

            def confine() -> None:
                self._thread.confined = _confine_program(self._clang.folders, readable, scratch)

            pool = ThreadPoolExecutor(self._workers, "hip-compiler", confine)
            self._stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            self._confined[include_dirs] = pool, scratch
        return self._confined[include_dirs]

    def _compile(self, request: CompileRequest, scratch: Path) -> tuple[CompileResult, bool]:
        """Compile, and tell whether the same request would give the same result again."""
        started = time.perf_counter()
        if not self._thread.confined and (match := _ASSEMBLY.search(request.source)):
            line = request.source.count("\n", 0, match.start()) + 1
            why = "inline assembly can include files, which this Linux cannot forbid (no Landlock)"
            return CompileResult(error=f"{UNIT_NAME}({line}): error: {why}"), True
        try:
            with tempfile.TemporaryDirectory(dir=scratch) as folder:
                code = self._build(request, Path(folder), started + self._timeout_s)
        except ToolError as error:
            seconds = time.perf_counter() - started
            if error.timed_out:
                message = f"the compiler was killed after {self._timeout_s:g} s"
            elif error.killed:
                message = f"the compiler was killed {MOST_RUNS} times: memory may have run out"
            else:
                message = errors(error.log, request, of_rocm=self._clang.rocm is not None)
            failed = CompileResult(error=message, timed_out=error.timed_out, seconds=seconds)
            return failed, error.lasting
        return CompileResult(code, seconds=time.perf_counter() - started), True

    def _build(self, request: CompileRequest, folder: Path, deadline: float) -> bytes:
        # Let a global pointer hold each kernel, by which its lowered name is found.
        lines = [
            f'extern "C" __device__ __attribute__((used)) const void* {_pointer(index)} = '
            f"(const void*)&{kernel};"
            for index, kernel in enumerate(request.kernels)
        ]
        (folder / UNIT_NAME).write_text(
            request.source + "\n".join(["", f'# 1 "{_NAMES}"', *lines, ""]), "utf-8"
        )
        options = [*code_options(self._clang, request), "-o", _OUTPUT, UNIT_NAME]
        self._command.run(options, folder, deadline)
        return (folder / _OUTPUT).read_bytes()

    @cached_property
    def _identity(self) -> str:
        return f"{self._clang} {_headers_digest()}"


def code_options(clang: Clang, request: CompileRequest) -> list[str]:
    """List what a clang is asked for a request: ROCm's headers and libraries, or else ours."""
    options = [*_CODE, f"--offload-arch={request.architecture}"]
    if clang.rocm is not None:
        options.append(f"--rocm-path={clang.rocm}")
    else:
        options += ["-nogpulib", "-nogpuinc", "-fdeclspec", "-isystem", str(HEADERS)]
        # By default clang 17 has version 4, whose kernels find a grid's size elsewhere, and later
        # ones have 6, which ROCm 6.2 and older do not load.
        options.append("-mcode-object-version=5")
    if not any(option.startswith("-std=") for option in request.options):
        options.append("-std=c++17")
    options += [f"-I{Path(folder).absolute()}" for folder in request.include_dirs]
    return [*options, *request.options]


def _pointer(index: int) -> str:
    return f"tune_kernel_{index}"


def _describe_kernels(request: CompileRequest, result: CompileResult, lanes: int) -> CompileResult:
    """Add the kernels' names and resources, for which no confined thread can load a package."""
    code = result.cubin
    found = kernel_resources(code)
    if other := next((size for size in wave_sizes(code) if size != lanes), None):
        why = (
            f"a kernel has waves of {other} lanes, and on {request.architecture} `wave` is {lanes}"
        )
        return CompileResult(error=f"{UNIT_NAME}: error: {why}", seconds=result.seconds)
    pointers = {_pointer(index): name for index, name in enumerate(request.kernels)}
    lowered = {pointers[one]: name for one, name in pointed_functions(code, (*pointers,)).items()}
    absent = [name for name in request.kernels if lowered.get(name) not in found]
    if absent:
        return CompileResult(error=absent_error(request, absent), seconds=result.seconds)
    resources = {name: found[lowered[name]] for name in request.kernels}
    return replace(result, lowered=lowered, resources=resources)


@once
def _headers_digest() -> str:
    content = sha256(Path(__file__).read_bytes())
    for path in sorted(HEADERS.rglob("*.h")):
        content.update(path.read_bytes())
    return content.hexdigest()


def kernel_resources(code: bytes) -> dict[str, Resources]:
    """Read the resources of every kernel in a code object, by its lowered name.

    A kernel's scratch is its `stack_bytes`, and the registers that it spills to there are counted
    as stores: how often they are loaded again the metadata does not say.
    """
    return {kernel[".name"]: _resources(kernel) for kernel in _metadata(code)["amdhsa.kernels"]}


def wave_sizes(code: bytes) -> frozenset[int]:
    return frozenset(int(one[".wavefront_size"]) for one in _metadata(code)["amdhsa.kernels"])


def pointed_functions(code: bytes, pointers: tuple[str, ...]) -> dict[str, str]:
    """Find the lowered name of the function that each of these global pointers holds."""
    elf = _elf(code)
    places = {symbol.entry.st_value: symbol.name for symbol in _symbols(elf, "STT_OBJECT")}
    functions = {symbol.entry.st_value: symbol.name for symbol in _symbols(elf, "STT_FUNC")}
    functions_of = {}
    relocations = elf.get_section_by_name(".rela.dyn")
    for relocation in relocations.iter_relocations() if relocations is not None else ():
        name = places.get(relocation["r_offset"])
        if name in pointers and relocation["r_info_type"] == _RELATIVE64:
            functions_of[name] = functions[relocation["r_addend"]]
    return functions_of


def _resources(kernel: Mapping[str, Any]) -> Resources:
    return Resources(
        registers=kernel[".vgpr_count"],
        spill_store_bytes=kernel[".vgpr_spill_count"] * _REGISTER_BYTES,
        static_shared_bytes=kernel[".group_segment_fixed_size"],
        stack_bytes=kernel[".private_segment_fixed_size"],
        scalar_registers=kernel[".sgpr_count"],
        accumulation_registers=kernel.get(".agpr_count", 0),
        max_threads=kernel[".max_flat_workgroup_size"],
    )


def _metadata(code: bytes) -> Mapping[str, Any]:
    import msgpack

    section = _elf(code).get_section_by_name(".note")
    for note in section.iter_notes() if section is not None else ():
        if note["n_name"] == "AMDGPU" and note["n_type"] in (_METADATA_NOTE, "NT_AMDGPU_METADATA"):
            content: Mapping[str, Any] = msgpack.unpackb(note["n_descdata"])
            return content
    return {"amdhsa.kernels": []}


def _symbols(elf: Any, kind: str) -> Iterator[Any]:
    for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
        if symbol.entry.st_info.type == kind:
            yield symbol


def _elf(code: bytes) -> Any:
    from elftools.elf.elffile import ELFFile

    return ELFFile(io.BytesIO(code))


def require_readers() -> None:
    """Raise `DeviceError` where the packages that read code objects are not installed."""
    try:
        import elftools  # noqa: F401
        import msgpack  # noqa: F401
    except ImportError as error:
        raise DeviceError(
            f"compiling HIP needs the package {error.name}",
            remedy="pip install -e '.[hip]' in the checkout, or: pip install pyelftools msgpack",
        ) from error


def _confine_program(programs: Iterable[Path], readable: Iterable[Path], scratch: Path) -> bool:
    """Keep what the calling thread starts to `programs` and the system's, their headers and these.

    It writes to `scratch` alone.
    """
    rights = READ_FILE | READ_FOLDER
    allowed = [(path, rights | EXECUTE) for path in (*map(Path, SYSTEM_PROGRAMS), *programs)]
    headers = (Path("/usr/include"), Path("/usr/local/include"))
    allowed += [(path, rights) for path in (*headers, *readable)]
    return restrict_files([*allowed, (Path("/dev/null"), rights | WRITE_FILE), (scratch, 0xFFFF)])
