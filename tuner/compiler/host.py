"""The compiler of the `host` device: the system's g++, run on the kernel with headers of ours."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.compiler.host_source import LAUNCH_UNIT, REMEDY, NotOnHostError, to_host
from tuner.compiler.includes import UNIT_NAME, refused_include
from tuner.compiler.report import shortened
from tuner.errors import DeviceError, WorkerError
from tuner.trial import Resources

HEADERS = Path(__file__).resolve().parents[1] / "device" / "host_cuda"

_LANGUAGE = ("-D__CUDA_ON_HOST__=1", "-U_FORTIFY_SOURCE", "-w")
_CODE = (
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # Two libraries' statics of one template would otherwise be one, and unloading leaves it behind.
    "-fno-gnu-unique",
    # What CUDA takes for granted: reinterpreted memory, and loops that never end stay in the code.
    "-fno-strict-aliasing",
    "-fno-finite-loops",
    "-fno-threadsafe-statics",
    "-Wl,-Bsymbolic",
)
SANITIZERS = ("undefined",)
# -Dname, -Uname and the language version mean the same to g++; the rest is for NVRTC alone.
_SHARED_OPTION = re.compile(r"-[DU].*")
_STANDARD = re.compile(r"--?std=(c\+\+\d\d)")
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.*)$"
)
_GPU_ONLY = re.compile(
    r"mma\.h|cooperative_groups|cuda/(?:barrier|pipeline|ptx)|cudaTypedefs|wmma|nvcuda|cute/|cutlass"
    r"|__cvta_generic_to_shared|__pipeline_|__cluster|tensor_?map|CUtensorMap",
    re.IGNORECASE,
)


class HostCompiler:
    """Compile kernels to shared libraries with g++; implements `Compiler`.

    A result's `cubin` is the library. A compile over `timeout_s` is killed with all it started.
    Raises `DeviceError` where there is no g++. `sanitizers` may name `undefined`.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout_s: float = 60.0,
        sanitizers: tuple[str, ...] = (),
    ) -> None:
        found = shutil.which("g++")
        if found is None:
            raise DeviceError(
                "the `host` device needs g++, which is not installed",
                remedy="install it (Debian and Ubuntu: apt install g++)",
            )
        if not set(sanitizers) <= set(SANITIZERS):
            raise DeviceError(f"sanitizers {sanitizers} are not all of {SANITIZERS}")
        self._gxx, self._timeout_s = found, timeout_s
        self._sanitizers = tuple(f"-fsanitize={name}" for name in sanitizers)
        self._pool = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)), "host-compiler")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def version(self) -> str:
        """Name and version, `g++ 12.2.0`."""
        command = [self._gxx, "-dumpfullversion"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603
        return f"g++ {answer.stdout.strip()}"

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        """Start compiling and return at once."""
        if self._closed:
            raise WorkerError("the compiler was closed")
        return self._pool.submit(self._compile, request)

    def close(self) -> None:
        """Kill what runs and cancel what waits."""
        with self._lock:
            self._closed = True
            for process in self._running:
                _kill(process)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compile(self, request: CompileRequest) -> CompileResult:
        started = time.perf_counter()
        refused = refused_include(request.source)
        if refused is not None:
            return CompileResult(error=refused)
        with tempfile.TemporaryDirectory(prefix="tuner-host-") as folder:
            try:
                library = self._build(request, Path(folder), started + self._timeout_s)
            except _FailedError as error:
                seconds = time.perf_counter() - started
                return CompileResult(error=str(error), timed_out=error.timed_out, seconds=seconds)
        lowered = {name: entry_name(index) for index, name in enumerate(request.kernels)}
        resources = {name: Resources(registers=0) for name in request.kernels}
        return CompileResult(library, lowered, resources, seconds=time.perf_counter() - started)

    def _build(self, request: CompileRequest, folder: Path, deadline: float) -> bytes:
        (folder / UNIT_NAME).write_text(request.source, encoding="utf-8")
        standard = [m[1] for o in request.options if (m := _STANDARD.fullmatch(o))] or ["c++17"]
        language = [*_LANGUAGE, f"-std={standard[-1]}", *_include_options(request)]
        unit = self._run(["-E", "-x", "c++", *language, UNIT_NAME], folder, deadline, request)
        try:
            source = to_host(unit.decode(errors="replace")) + _entries(request.kernels)
        except NotOnHostError as error:
            raise _FailedError(str(error)) from error
        (folder / "unit.ii").write_text(source, encoding="utf-8")
        code = ["-w", f"-std={standard[-1]}", *_CODE, *self._sanitizers, "-o", "unit.so", "unit.ii"]
        self._run(code, folder, deadline, request)
        return (folder / "unit.so").read_bytes()

    def _run(
        self, options: list[str], folder: Path, deadline: float, request: CompileRequest
    ) -> bytes:
        with self._lock:
            if self._closed:
                raise _FailedError("the compiler was closed")
            process = subprocess.Popen(  # noqa: S603
                [self._gxx, *options],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, log = process.communicate(timeout=max(0.0, deadline - time.perf_counter()))
        except subprocess.TimeoutExpired as error:
            _kill(process)
            process.communicate()
            message = f"the compiler was killed after {self._timeout_s:g} s"
            raise _FailedError(message, timed_out=True) from error
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode != 0:
            raise _FailedError(_errors(log.decode(errors="replace"), request))
        return output


class _FailedError(Exception):
    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def entry_name(index: int) -> str:
    """Name the function that launches the request's kernel of this index."""
    return f"cuda_on_host_entry_{index}"


def _include_options(request: CompileRequest) -> list[str]:
    # As a system folder, so that the rewriting leaves our own headers alone.
    options = ["-isystem", str(HEADERS), "-include", "cuda_on_host.h"]
    options += [option for option in request.options if _SHARED_OPTION.fullmatch(option)]
    return options + [f"-I{Path(folder).absolute()}" for folder in request.include_dirs]


def _entries(kernels: tuple[str, ...]) -> str:
    lines = [f'\n# 1 "{LAUNCH_UNIT}"']
    for index, kernel in enumerate(kernels):
        lines.append(
            f'extern "C" __attribute__((visibility("default"))) int {entry_name(index)}'
            "(const ::cuda_on_host::Launch* launch) "
            f"{{ return ::cuda_on_host::launch(launch, &{kernel}); }}"
        )
    return "\n".join(lines) + "\n"


def _errors(log: str, request: CompileRequest) -> str:
    """Rewrite g++'s messages to the form of NVRTC's, naming what only a GPU has."""
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


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
