"""The compiler of the `host` device: the system's g++, run on the kernel with headers of ours."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cache as once
from functools import cached_property
from pathlib import Path

from tuner.compiler.base import CompileRequest, CompileResult, shorten_text
from tuner.compiler.cache import Cache, recall_or_compile
from tuner.compiler.command import (
    MOST_RUNS,
    CompilerCommand,
    ToolError,
    remove_left_behind,
    scratch_folder,
)
from tuner.compiler.includes import UNIT_NAME, refused_include
from tuner.extensions.cpu.host_source import (
    HEADERS,
    LAUNCH_UNIT,
    PTX_REMEDY,
    REMEDY,
    NotOnHostError,
    entries,
    entry_name,
    has_assembly,
    refusal,
    to_host,
)
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.hardware import amd_limits, is_amd
from tuner.model.trial import Resources

_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.*)$"
)
_MARKED = re.compile(r"^call to .* declared with attribute error: ")
_GPU_ONLY = re.compile(
    r"mma\.h|mma_sync|cooperative_groups|cuda/(?:barrier|pipeline|ptx|atomic|std)|cudaTypedefs|wmma|cub"
    r"|nvcuda|cute/|cutlass|__pipeline_|__cluster|cluster_|tensor_?map"
    r"|CUtensorMap|__grid_|inline PTX|__builtin_amdgcn_|rocwmma|hipcub|rocprim",
    re.IGNORECASE,
)


def errors(log: str, request: CompileRequest) -> str:
    """Rewrite all errors of a log; the log itself where it has none that is understood."""
    found: list[str] = []
    for line in log.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match is None:
            continue
        file, number = match["file"], int(match["line"])
        text = _MARKED.sub("", match["text"])
        if file == LAUNCH_UNIT:
            kernel = request.kernels[min(number, len(request.kernels)) - 1]
            found.append(f"error: the kernel `{kernel}` cannot be launched: {text}")
        else:
            found.append(f"{UNIT_NAME if file == UNIT_NAME else file}({number}): error: {text}")
        if _GPU_ONLY.search(text):
            found.append(f"  {PTX_REMEDY if 'inline PTX' in found[-1] else REMEDY}")
    return shorten_text("\n".join(found) or log.strip() or "g++ failed without a message")


# Standing for a header of NVIDIA's or a kernel's own file, warnings help nobody here.
# What the standard headers may use is told while they are preprocessed.
_LANGUAGE = ("-D__CUDA_ON_HOST__=1", "-U_FORTIFY_SOURCE", "-w", "-fno-exceptions", "-fno-rtti")
_CUDA = ("-D__CUDACC__=1", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0")
_HIP = (
    *("-D__HIP__=1", "-D__HIPCC__=1", "-D__HIP_PLATFORM_AMD__=1", "-D__HIP_DEVICE_COMPILE__=1"),
    *("-D__AMDGCN__=1", "-include", "hip/hip_runtime.h"),
)
_CODE = (
    *("-fPIC", "-shared", "-pipe", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"),
    "-fmax-errors=100",
    # Two libraries' statics of one template would otherwise be one, and unloading leaves it behind.
    "-fno-gnu-unique",
    # NVRTC lets a member take the name of a type that its class has used.
    "-fpermissive",
    # What CUDA takes for granted: reinterpreted memory, and loops that never end stay in the code.
    "-fno-strict-aliasing",
    "-fno-finite-loops",
    "-fno-threadsafe-statics",
    "-fno-asynchronous-unwind-tables",
)
# The sanitizers' own libraries are left out: the runtime has what `undefined` calls, and the
# worker has what `address` calls loaded before all else.
_LINK = ("-nodefaultlibs", "-Wl,-Bsymbolic", "-Wl,--as-needed", "-lstdc++", "-lm", "-lc", "-lgcc")

# Left out: what CUDA code does and a GPU defines. A shift of a negative number or into the sign
# (`shift-base`), pointers that wrap on their way to a good address (`pointer-overflow`), and
# division of floats by zero, which is no part of -fsanitize=undefined.
_UNDEFINED = (
    "-fsanitize=integer-divide-by-zero,signed-integer-overflow,shift-exponent,bounds,null,alignment,"
    "unreachable,return,bool,float-cast-overflow,vla-bound",
    "-fno-sanitize-recover=all",
)
_FRAMES = ("-g1", "-fno-omit-frame-pointer")
_ADDRESS = ("-fsanitize=address", "--param=asan-use-after-return=0", *_FRAMES)
_SANITIZING = {"address": _ADDRESS, "undefined": _UNDEFINED}
SANITIZERS = tuple(_SANITIZING)
# A switch of fibers keeps no register that its caller holds to be untouched, whatever g++ sees.
_RUNTIME_ONLY = (
    *("-fPIC", "-O2", "-fno-ipa-ra", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-w"),
)

# -Dname, -Uname and the language version mean the same to g++; the rest is for NVRTC alone.
_SHARED_OPTION = re.compile(r"-[DU].*")
_STANDARD = re.compile(r"--?std=(c\+\+\d\d)")
_ARCHITECTURE = re.compile(r"sm_(\d+)")


def _language(request: CompileRequest) -> list[str]:
    # `__CUDA_ARCH__` is the GPU's, so that a kernel takes the branch it would take there. Macros of
    # architecture-specific instructions (`__CUDA_ARCH_FEAT_SM90_ALL`) stay undefined: those exist
    # as PTX alone.
    if is_amd(request.architecture):
        name = request.architecture.partition(":")[0]
        lanes = amd_limits(name).threads_per_warp
        family = f"-D__GFX{name.removeprefix('gfx')[:-2]}__=1"
        architecture = [*_HIP, f"-D__{name}__=1", family, f"-D__AMDGCN_WAVEFRONT_SIZE={lanes}"]
    else:
        match = _ARCHITECTURE.match(request.architecture)
        architecture = [*_CUDA, *([f"-D__CUDA_ARCH__={int(match[1]) * 10}"] if match else [])]
    architecture += _widths(request.architecture)
    own = [option for option in request.options if _SHARED_OPTION.fullmatch(option)]
    return [*_LANGUAGE, *architecture, _standard(request), *own]


def _widths(architecture: str) -> list[str]:
    """Tell the runtime and a kernel what differs between NVIDIA's warps and AMD's waves."""
    if not is_amd(architecture):
        return []
    limits = amd_limits(architecture)
    shared = f"-DON_HOST_SHARED_BYTES={limits.shared_bytes_per_block}"
    return [f"-DON_HOST_WARP={limits.threads_per_warp}", shared]


def _standard(request: CompileRequest) -> str:
    named = [match[1] for option in request.options if (match := _STANDARD.fullmatch(option))]
    return f"-std={named[-1] if named else 'c++17'}"


_ADDRESS_REPORT = re.compile(r"ERROR: AddressSanitizer:? (?P<what>[^\n]+?)(?: \(pc|,| at pc|\n|$)")
_ACCESS = re.compile(r"^(?P<kind>READ|WRITE) of size (?P<bytes>\d+)", re.MULTILINE)
_WHERE = re.compile(r"^0x[0-9a-f]+ is located (?P<where>[^\n]+?)(?: \[|$)", re.MULTILINE)
_FRAME = re.compile(r"^\s+#\d+ 0x[0-9a-f]+ (?:in .*? )?(?P<file>[^\s:]+):(?P<line>\d+)", re.M)
_UNDEFINED_REPORT = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d+):\d+: runtime error: (?P<what>.+)$", re.MULTILINE
)
_OURS = re.compile(r"on_host|sanitizer|libasan|libubsan")


def sanitizer_finding(text: str) -> str:
    """Return `kernel.cu(12): what was done` for the first finding in `text`, or nothing."""
    undefined = _UNDEFINED_REPORT.search(text)
    address = _ADDRESS_REPORT.search(text)
    if undefined and not (address and address.start() < undefined.start()):
        return f"{Path(undefined['file']).name}({undefined['line']}): {undefined['what']}"
    if address is None:
        return ""
    report = text[address.start() :]
    frames = (frame for frame in _FRAME.finditer(report) if not _OURS.search(frame["file"]))
    frame = next(frames, None)
    place = f"{Path(frame['file']).name}({frame['line']})" if frame else "unknown line"
    told = [address["what"].split(" on address ")[0]]
    if access := _ACCESS.search(report):
        told.append(f"{access['kind'].lower()} of {access['bytes']} bytes")
    if where := _WHERE.search(report):
        told.append(where["where"])
    return f"{place}: {', '.join(told)}"


_SEARCHED = re.compile(r"search starts here:\n(.*?)End of search list", re.DOTALL)
# What g++ says when SIGKILL ended one of the programs that it starts.
_KILLED = re.compile(
    r"^(?:g\+\+|collect2): (?:fatal )?error: "
    r"(?:Killed signal terminated program \w|\w+ terminated with signal 9\b)",
    re.MULTILINE,
)


class _Gxx(CompilerCommand):
    """Run g++; `DeviceError` where there is none."""

    def __init__(self) -> None:
        found = shutil.which("g++")
        if found is None:
            raise DeviceError(
                "the `host` device needs g++, which is not installed",
                remedy="install it (Debian and Ubuntu: apt install g++)",
            )
        super().__init__(found, _KILLED)

    @cached_property
    def version(self) -> str:
        return f"g++ {self.ask('-dumpfullversion').strip()}"

    @cached_property
    def include_dirs(self) -> tuple[Path, ...]:
        told = self.ask("-E", "-v", "-x", "c++", "/dev/null", log=True)
        lines = [line for part in _SEARCHED.findall(told) for line in part.splitlines()]
        return tuple(Path(line.strip()).resolve() for line in lines if line.startswith(" "))


RUNTIME_TIMEOUT_S = 60.0


class HostCompiler:
    """Compile kernels to shared libraries with g++; implements `Compiler`.

    A result's `cubin` is the library. A compile over `timeout_s` is killed with all it started.
    `sanitizers` may name `address` and `undefined`: what they find ends a launch with the kernel's
    line. Code with `address` runs only in a process that was started with `preload`. Raises
    `DeviceError` where there is no g++.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float = 60.0,
        sanitizers: tuple[str, ...] = (),
        cache: Cache | None = None,
    ) -> None:
        if not set(sanitizers) <= set(SANITIZERS):
            raise DeviceError(f"sanitizers {sanitizers} are not all of {SANITIZERS}")
        self._gxx, self._timeout_s, self._cache = _Gxx(), timeout_s, cache
        self._sanitizers = tuple(sorted(set(sanitizers)))
        self._macros = [f"-DON_HOST_{name.upper()}=1" for name in self._sanitizers]
        remove_left_behind()
        self._pool = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)), "host-compiler")
        # One for each width of warps.
        self._runtimes: dict[tuple[str, ...], Future[bytes]] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def version(self) -> str:
        return self._gxx.version

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        with self._lock:
            if self._closed:
                raise WorkerError("the compiler was closed")
            widths = tuple(_widths(request.architecture))
            if widths not in self._runtimes:
                self._runtimes[widths] = self._pool.submit(self._build_runtime, widths)
            return self._pool.submit(self._compile, request)

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._gxx.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        remove_left_behind()

    def _compile(self, request: CompileRequest) -> CompileResult:
        started = time.perf_counter()
        refused = refused_include(request.source, request.include_dirs)
        if refused is not None:
            return CompileResult(error=refused)

        def compile_anew() -> tuple[CompileResult, bool]:
            try:
                library = self._build(request, started + self._timeout_s)
            except (ToolError, NotOnHostError) as error:
                return self._report_failure(error, request, time.perf_counter() - started)
            lowered = {one: entry_name(index) for index, one in enumerate(request.kernels)}
            # How many registers a GPU would give the kernel nobody here knows.
            resources = {name: Resources(registers=None) for name in request.kernels}
            seconds = time.perf_counter() - started
            return CompileResult(library, lowered, resources, seconds=seconds), True

        identity = f"{self.version} {_headers_digest()} {self._sanitizers}"
        return recall_or_compile(self._cache, request, identity, compile_anew)

    def _build(self, request: CompileRequest, deadline: float) -> bytes:
        with scratch_folder() as folder:
            (folder / UNIT_NAME).write_text(request.source, encoding="utf-8")
            # As a system folder, so that the rewriting leaves our own headers alone.
            options = ["-isystem", str(HEADERS), "-include", "cuda_on_host.h", *_language(request)]
            options += [f"-I{Path(one).absolute()}" for one in request.include_dirs]
            text = self._preprocess(options, folder, deadline)
            if has_assembly(text):
                text = self._preprocess(["-include", "on_host/ptx.h", *options], folder, deadline)
            allowed = (*map(Path, request.include_dirs), folder, HEADERS, *self._gxx.include_dirs)
            if refused := refusal(text, folder, allowed):
                raise NotOnHostError(refused)
            unit = to_host(text) + entries(f"tune_{secrets.token_hex(8)}", request.kernels)
            (folder / "unit.ii").write_text(unit, "utf-8")
            (folder / "runtime.o").write_bytes(self._runtime_object(request, deadline))
            code = ["-w", _standard(request), *_CODE, "-O1"]
            code += [option for name in self._sanitizers for option in _SANITIZING[name]]
            # What was drawn is in no byte of it: the same code is the same library.
            files = ["-o", "unit.so", "unit.ii", "runtime.o", *["-s"] * (not self._sanitizers)]
            self._gxx.run([*code, *files, *_LINK], folder, deadline)
            return (folder / "unit.so").read_bytes()

    def _preprocess(self, options: list[str], folder: Path, deadline: float) -> str:
        unit = self._gxx.run(["-E", "-x", "c++", *options, UNIT_NAME], folder, deadline)
        return unit.decode(errors="replace")

    def _report_failure(
        self, error: ToolError | NotOnHostError, request: CompileRequest, seconds: float
    ) -> tuple[CompileResult, bool]:
        if isinstance(error, NotOnHostError):
            return CompileResult(error=str(error), seconds=seconds), True
        if error.timed_out:
            message = f"the compiler was killed after {self._timeout_s:g} s"
        elif error.killed:
            message = f"the compiler was killed {MOST_RUNS} times: memory may have run out"
        else:
            return CompileResult(error=errors(error.log, request), seconds=seconds), error.lasting
        return CompileResult(error=message, timed_out=error.timed_out, seconds=seconds), False

    def _runtime_object(self, request: CompileRequest, deadline: float) -> bytes:
        runtime = self._runtimes[tuple(_widths(request.architecture))]
        try:
            return runtime.result(max(0.0, deadline - time.perf_counter()))
        except FutureTimeoutError as error:
            raise ToolError("", timed_out=True) from error
        except CancelledError as error:
            raise ToolError("the compiler was closed") from error

    def _build_runtime(self, widths: tuple[str, ...]) -> bytes:
        source = '#include "on_host/runtime.h"\n'
        # It alone knows of the sanitizers, and isn't watched: a kernel is the same text with them
        # and without.
        options = [*_RUNTIME_ONLY, *widths, *self._macros, "-std=c++17", "-frounding-math"]
        options += ["-fno-gnu-unique", "-c"]

        def compile_anew() -> tuple[CompileResult, bool]:
            with scratch_folder() as folder:
                (folder / "runtime.cc").write_text(source, encoding="utf-8")
                files = ["-isystem", str(HEADERS), "-o", "runtime.o", "runtime.cc"]
                deadline = time.perf_counter() + RUNTIME_TIMEOUT_S
                self._gxx.run([*options, *files], folder, deadline)
                return CompileResult((folder / "runtime.o").read_bytes()), True

        request = CompileRequest(source, (), "host", tuple(options))
        identity = f"{self.version} {_headers_digest()}"
        return recall_or_compile(self._cache, request, identity, compile_anew).cubin


def preload(sanitizers: tuple[str, ...]) -> dict[str, str]:
    """Return the environment of a process that runs code with these sanitizers.

    Such a process needs terabytes of address space (RLIMIT_AS must be unlimited), and children of
    it inherit the library: a Python of its own is best. Raises `DeviceError` where g++ has no
    address sanitizer.
    """
    if "address" not in sanitizers:
        return {}
    library = _Gxx().ask("-print-file-name=libasan.so").strip()
    if not Path(library).is_absolute():
        raise DeviceError(
            "g++ came without the address sanitizer (libasan.so)",
            remedy="install it (Debian and Ubuntu: it is in libgcc-12-dev, or your version's)",
        )
    options = "detect_leaks=0:detect_stack_use_after_return=0:"
    options += "allocator_may_return_null=1:use_sigaltstack=1"
    return {"LD_PRELOAD": library, "ASAN_OPTIONS": options}


@once
def _headers_digest() -> str:
    # and of what rewrites a source for them
    content = hashlib.sha256()
    for name in ("host_source.py", "ptx.py", "ptx_instructions.py", "ptx_memory.py"):
        content.update(Path(__file__).with_name(name).read_bytes())
    for path in sorted(path for path in HEADERS.rglob("*") if path.is_file()):
        content.update(f"{path.relative_to(HEADERS)}\0".encode() + path.read_bytes())
    return content.hexdigest()
