"""OpenCL's compiler in the process that it compiles in: one source at a time, to a binary."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult, normalize_source, shorten_text
from tuner.compiler.cache import Cache
from tuner.compiler.pool import CompilerPool, CompilerProcess
from tuner.extensions.backends.opencl.runtime import INSTALL, find_device, keep_private
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.languages import OPENCL
from tuner.model.trial import Resources
from tuner.process.child import connect_to_parent
from tuner.process.confinement import (
    SYSTEM_PROGRAMS,
    confine_compiler,
    end_with_parent,
    limit_process,
)
from tuner.process.protocol import Message, receive, send

MAX_LOG_CHARACTERS = 1_000_000
# `error: /tmp/…/tempfile_a.cl:3:5: text` of PoCL, `<source>:3:5: error: text` of others.
_PLACED = re.compile(r"^(?:error: )?[^\s:]+:(?P<line>\d+):(?:\d+:)? *(?:error: )?(?P<text>.*)$")
_KERNEL = re.compile(r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(")
_SUMMARY = re.compile(r"^\d+ (?:errors?|warnings?)\b.* generated|^Device .* failed to build")
_PLACES = ("/etc/OpenCL", "/usr/share/pocl", "/usr/share/OpenCL")
# With this PoCL compiles ahead for sizes of work-groups; a process reads it once.
_AHEAD = "POCL_BINARY_SPECIALIZE_WG"
# LLVM does not always come to an end.
TIMEOUT_S = 30.0
# What it calls the code of a kernel for any size.
_ANY_SIZE = "0-0-0"
_STUB = "__kernel void %s() {}"
# Sources whose configs may be on their way at the same time.
LINKED_PROGRAMS = 16


class OpenclProcess(CompilerProcess):
    """A process that compiles for the OpenCL device of a number."""

    module = "tuner.extensions.backends.opencl.compiler"

    def __init__(self, cache_dir: Path, number: int) -> None:
        super().__init__(cache_dir, str(number))

    def options(self, request: CompileRequest) -> list[str]:
        """List the options of a request; `-I` names folders."""
        folders = (f"-I{Path(folder).absolute()}" for folder in request.include_dirs)
        return [*request.options, *folders]

    def content(self, request: CompileRequest) -> dict[str, Any]:
        return {**super().content(request), "work_groups": request.work_groups}

    def result(
        self, request: CompileRequest, reply: dict[str, Any], binary: bytes
    ) -> CompileResult:
        """Make the result from a reply: resources by kernel, or the errors alone."""
        found = {name: Resources(**used) for name, used in reply["resources"].items()}
        if not binary:
            return CompileResult(error=errors(reply["log"]), seconds=reply["seconds"])
        if absent := [name for name in request.kernels if name not in found]:
            known = ", ".join(dict.fromkeys(_KERNEL.findall(normalize_source(request.source))))
            error = (
                f"{OPENCL.unit}: error: no kernel `{absent[0]}`; the source has "
                f"{known or 'no __kernel function'}"
            )
            return CompileResult(error=error, seconds=reply["seconds"])
        names = {name: name for name in request.kernels}
        resources = {name: found[name] for name in request.kernels}
        return CompileResult(binary, names, resources, seconds=reply["seconds"])


class OpenclPool(CompilerPool):
    """Compile for the OpenCL device of a number.

    `ahead` says whether also for each size of a work-group, which only PoCL can.
    """

    def __init__(
        self,
        number: int,
        workers: int | None = None,
        timeout_s: float = TIMEOUT_S,
        cache: Cache | None = None,
        ahead: bool = True,
    ) -> None:
        self._ahead = ahead
        super().__init__(
            lambda folder: OpenclProcess(folder, number), _cannot_start, workers, timeout_s, cache
        )

    def submit(self, request: CompileRequest) -> Future[CompileResult]:
        return super().submit(request if self._ahead else replace(request, work_groups=()))


def _cannot_start(reason: Exception) -> WorkerError:
    return WorkerError(f"the OpenCL compiler cannot start: {reason}", remedy=INSTALL)


def errors(log: str) -> str:
    """Rewrite the places of a compiler's log as those of the source; keep all it says of errors."""
    lines = []
    for line in log.replace("\0", "").splitlines():
        match = _PLACED.match(line)
        if match is not None and "warning:" not in line:
            lines.append(f"{OPENCL.unit}({match['line']}): error: {match['text']}")
        elif match is None and line.strip() and not _SUMMARY.match(line):
            lines.append(line.rstrip())
    return shorten_text("\n".join(lines) or "the compiler failed without a message")


@dataclass(frozen=True, slots=True)
class LinkedProgram:
    """A program as it was compiled, linked, and the folders that PoCL keeps of both."""

    program: Any
    linked: Any
    folders: frozenset[Path]


class OpenclCompiler:
    """Compile sources for one device, in this process; `cache_dir` is where PoCL keeps its own."""

    def __init__(self, number: int, cache_dir: Path) -> None:
        import pyopencl

        self._cl = pyopencl
        # What pyopencl and PoCL read later lies here, which need not be below Python's own folders.
        self.packages = Path(pyopencl.__file__).resolve().parents[1]
        self.device, self._handle = find_device(number)
        self._context = pyopencl.Context([self._handle])
        self._cache_dir = cache_dir
        self._linked: OrderedDict[tuple[str, ...], LinkedProgram] = OrderedDict()
        self._stubs: dict[str, bytes] = {}

    @property
    def version(self) -> str:
        return f"{self.device.platform}: {self.device.version}"

    def warm_up(self) -> None:
        """Have PoCL load its library, which takes longer than to compile a small kernel."""
        if self.device.is_pocl:
            before = self._folders()
            with suppress(self._cl.Error):  # which the first request will be told of
                self._linked_stub("warm_up")
            for folder in self._folders() - before:
                shutil.rmtree(folder, ignore_errors=True)

    def compile(
        self, source: str, options: list[str], state: str = "", work_groups: Sequence[str] = ()
    ) -> Message:
        """Answer with `log`, the `resources` by kernel and `lasting`; the payload is the binary.

        PoCL compiles for the size of a work-group when it first meets it. That is done here, for
        `work_groups`; without them the binary is of a program whose objects are not built yet.
        """
        cl: Any = self._cl
        program: Any = cl.Program(self._context, source)
        try:
            if self.device.is_pocl:
                linked_program = self._linked_program(program, (source, state, *options), options)
                program, built = linked_program.program, linked_program.linked
            else:
                built = program.build(options, [self._handle])
            resources = {
                kernel.function_name: asdict(self._resources(kernel))
                for kernel in built.all_kernels()
            }
            (binary,) = program.get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            log = self._log(program) or str(error)
            return Message({"log": log[:MAX_LOG_CHARACTERS], "resources": {}, "lasting": True})
        log = "" if binary else "the platform gives no binary of a program"
        answer = {"log": log, "resources": resources, "lasting": True}
        if not self.device.is_pocl or not work_groups or not binary:
            return Message(answer, bytes(binary))
        # Where that fails it fails again where the program runs, which is then to blame.
        ahead = self._compiled_ahead(linked_program, work_groups)
        return Message({**answer, "lasting": bool(ahead)}, ahead or bytes(binary))

    def _linked_program(
        self, program: Any, key: tuple[str, ...], options: list[str]
    ) -> LinkedProgram:
        """Compile and link for PoCL, unless that was done for another work-group."""
        if key not in self._linked:
            before = self._folders()
            linked = self._compile_and_link(program, options)
            self._linked[key] = LinkedProgram(program, linked, self._folders() - before)
            if len(self._linked) > LINKED_PROGRAMS:
                _, oldest = self._linked.popitem(last=False)
                for folder in oldest.folders:
                    shutil.rmtree(folder, ignore_errors=True)
        self._linked.move_to_end(key)
        return self._linked[key]

    def _folders(self) -> frozenset[Path]:
        return frozenset(path.parent for path in self._cache_dir.glob("*/*/program.bc"))

    def _compiled_ahead(self, program: LinkedProgram, work_groups: Sequence[str]) -> bytes:
        """Compile a linked program for work-groups, in a fork; empty where that fails.

        The binary is what PoCL's cache holds of the program: another size's is thrown away, and
        an empty kernel stands for the one of all sizes, which PoCL would compile besides. That can
        take for ever, and is never run where a kernel can be compiled for its size.
        """
        for kernel in program.linked.all_kernels():
            name = kernel.function_name
            for folder in program.folders:
                _place(folder / name / _ANY_SIZE / f"{name}.so", self._stub(name))
        binary = in_a_fork(partial(self._binary, program.linked, ",".join(work_groups)))
        for folder in program.folders:
            for group in work_groups:
                for path in folder.glob(f"*/{group}"):
                    shutil.rmtree(path, ignore_errors=True)
        return binary if program.folders else b""

    def _stub(self, name: str) -> bytes:
        """Compile a kernel of this name that does nothing, for work-groups of any size."""
        if name not in self._stubs:
            before, linked = self._folders(), self._linked_stub(name)
            in_a_fork(partial(self._binary, linked, ""))
            folders = self._folders() - before
            paths = (path for folder in folders for path in folder.glob(f"{name}/{_ANY_SIZE}/*.so"))
            self._stubs[name] = next((path.read_bytes() for path in paths), b"")
        return self._stubs[name]

    def _linked_stub(self, name: str) -> Any:
        return self._compile_and_link(self._cl.Program(self._context, _STUB % name), [])

    def _compile_and_link(self, program: Any, options: list[str]) -> Any:
        program.compile(options, [self._handle])
        return self._cl.link_program(self._context, [program], devices=[self._handle])

    def _binary(self, linked: Any, work_groups: str) -> bytes:
        os.environ[_AHEAD] = work_groups
        (binary,) = linked.get_info(self._cl.program_info.BINARIES)
        return bytes(binary)

    def _log(self, program: Any) -> str:
        try:
            log = program.get_build_info(self._handle, self._cl.program_build_info.LOG)
        except self._cl.Error:
            return ""
        return str(log).strip()

    def _resources(self, kernel: Any) -> Resources:
        info = self._cl.kernel_work_group_info

        def ask(what: int) -> int:
            return int(kernel.get_work_group_info(what, self._handle))

        return Resources(
            registers=None,
            static_shared_bytes=ask(info.LOCAL_MEM_SIZE),
            stack_bytes=ask(info.PRIVATE_MEM_SIZE),
            max_threads=ask(info.WORK_GROUP_SIZE),
        )


def _place(path: Path, content: bytes) -> None:
    if content and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def serve(descriptor: str, cache_folder: str, scratch_folder: str, number: str) -> None:
    """Say what compiles here, then answer requests; ends when the parent does."""
    # One that is stopped meanwhile would not see that its parent has ended.
    end_with_parent(os.getppid())
    scratch = Path(scratch_folder)
    connection = connect_to_parent(descriptor, partial(shutil.rmtree, scratch, ignore_errors=True))
    limit_process()
    os.chdir(scratch / "empty")
    keep_private(scratch)
    os.environ["TMPDIR"] = str(scratch)
    try:
        compiler = OpenclCompiler(int(number), scratch)
    except DeviceError as error:
        sys.exit(error.message)
    send(connection, {"version": compiler.version, "identity": f"{compiler.device}"})
    # While the baseline is verified, or else what the first request would wait for.
    compiler.warm_up()
    # One for every set of include folders, which can read these and no other files.
    threads: dict[tuple[Path, ...], ThreadPoolExecutor] = {}
    while True:
        request = receive(connection).header
        readable = tuple(Path(one[2:]) for one in request["options"] if one.startswith("-I"))
        if readable not in threads:
            # A GPU's driver needs files of its own, which nobody here knows.
            paths = (*map(Path, _PLACES), compiler.packages, *readable)
            confine = confine_compiler if compiler.device.is_pocl else lambda *_: None
            threads[readable] = ThreadPoolExecutor(
                1, "", confine, (paths, (scratch,), SYSTEM_PROGRAMS)
            )
        reply, binary, _ = threads[readable].submit(_answer, compiler, request).result()
        send(connection, reply, binary)


def _answer(compiler: OpenclCompiler, request: dict[str, Any]) -> Message:
    start = time.perf_counter()
    asked = (request[name] for name in ("source", "options", "state", "work_groups"))
    reply, binary, _ = compiler.compile(*asked)
    return Message({**reply, "seconds": time.perf_counter() - start}, binary)


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in a fork of this process; empty where it fails.

    The fork ends with the calling thread. It must not need what other threads hold or do.
    """
    ours, theirs = os.pipe()
    parent, child = os.getpid(), os.fork()
    if not child:
        status = 1
        try:
            end_with_parent(parent)
            with os.fdopen(theirs, "wb") as answer:
                answer.write(work())
            status = 0
        finally:
            os._exit(status)  # whatever is on this thread's stack is the parent's
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        content = stream.read()
    _, status = os.waitpid(child, 0)
    return content if status == 0 else b""
