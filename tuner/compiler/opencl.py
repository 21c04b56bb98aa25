"""OpenCL's compiler in the process that it compiles in: one source at a time, to a binary."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tuner.compiler.base import CompileRequest, CompileResult, normalized, shortened
from tuner.compiler.cache import Cache
from tuner.compiler.opencl_devices import INSTALL, find_device, keep_private
from tuner.compiler.pool import CompilerPool, CompilerProcess
from tuner.model.errors import DeviceError, WorkerError
from tuner.model.languages import OPENCL
from tuner.model.trial import Resources
from tuner.process.child import connected
from tuner.process.confinement import confine_compiler, limit_compiler
from tuner.process.protocol import Message, receive, send

MAX_LOG_CHARACTERS = 1_000_000
# `error: /tmp/…/tempfile_a.cl:3:5: text` of PoCL, `<source>:3:5: error: text` of others.
_PLACED = re.compile(r"^(?:error: )?[^\s:]+:(?P<line>\d+):(?:\d+:)? *(?:error: )?(?P<text>.*)$")
_KERNEL = re.compile(r"\b(?:__)?kernel\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?void\s+(\w+)\s*\(")
_SUMMARY = re.compile(r"^\d+ (?:errors?|warnings?)\b.* generated|^Device .* failed to build")
_PLACES = ("/etc/OpenCL", "/usr/share/pocl", "/usr/share/OpenCL")


class OpenclProcess(CompilerProcess):
    """A process that compiles for the OpenCL device of a number."""

    module = "tuner.compiler.opencl"

    def __init__(self, cache_dir: Path, number: int) -> None:
        super().__init__(cache_dir, str(number))

    def options(self, request: CompileRequest) -> list[str]:
        """List the options of a request; `-I` names folders."""
        folders = (f"-I{Path(folder).absolute()}" for folder in request.include_dirs)
        return [*request.options, *folders]

    def result(
        self, request: CompileRequest, reply: dict[str, Any], binary: bytes
    ) -> CompileResult:
        """Make the result from a reply: resources by kernel, or the errors alone."""
        found = {name: Resources(**used) for name, used in reply["resources"].items()}
        if not binary:
            return CompileResult(error=errors(reply["log"]), seconds=reply["seconds"])
        if absent := [name for name in request.kernels if name not in found]:
            known = ", ".join(dict.fromkeys(_KERNEL.findall(normalized(request.source))))
            error = (
                f"{OPENCL.unit}: error: no kernel `{absent[0]}`; the source has "
                f"{known or 'no __kernel function'}"
            )
            return CompileResult(error=error, seconds=reply["seconds"])
        names = {name: name for name in request.kernels}
        resources = {name: found[name] for name in request.kernels}
        return CompileResult(binary, names, resources, seconds=reply["seconds"])


class OpenclPool(CompilerPool):
    """Compile for the OpenCL device of a number."""

    def __init__(
        self,
        number: int,
        workers: int | None = None,
        timeout_s: float = 60.0,
        cache: Cache | None = None,
    ) -> None:
        super().__init__(
            lambda folder: OpenclProcess(folder, number), _cannot_start, workers, timeout_s, cache
        )


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
    return shortened("\n".join(lines) or "the compiler failed without a message")


class OpenclCompiler:
    """Compile sources for one device, in this process."""

    def __init__(self, number: int) -> None:
        import pyopencl

        self._cl = pyopencl
        self.device, self._handle = find_device(number)
        self._context = pyopencl.Context([self._handle])

    @property
    def version(self) -> str:
        return f"{self.device.platform}: {self.device.version}"

    def compile(self, source: str, options: list[str]) -> Message:
        """Answer with `log`, the `resources` by kernel and `lasting`; the payload is the binary.

        PoCL compiles for the size of a work-group when it first meets it, and its binary of a
        built program would be for all sizes. Its objects are not built yet.
        """
        cl: Any = self._cl
        program: Any = cl.Program(self._context, source)
        try:
            if self.device.is_pocl:
                program.compile(options, [self._handle])
                built = cl.link_program(self._context, [program], devices=[self._handle])
            else:
                built = program.build(options, [self._handle])
            kernels = built.all_kernels()
            resources = {one.function_name: asdict(self._resources(one)) for one in kernels}
            (binary,) = program.get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            log = self._log(program) or str(error)
            return Message({"log": log[:MAX_LOG_CHARACTERS], "resources": {}, "lasting": True})
        log = "" if binary else "the platform gives no binary of a program"
        return Message({"log": log, "resources": resources, "lasting": True}, bytes(binary))

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


def serve(descriptor: str, cache_folder: str, scratch_folder: str, number: str) -> None:
    """Say what compiles here, then answer requests; ends when the parent does."""
    scratch = Path(scratch_folder)
    connection = connected(descriptor, partial(shutil.rmtree, scratch, ignore_errors=True))
    limit_compiler()
    os.chdir(scratch / "empty")
    keep_private(scratch)
    os.environ["TMPDIR"] = str(scratch)
    try:
        compiler = OpenclCompiler(int(number))
    except DeviceError as error:
        sys.exit(error.message)
    send(connection, {"version": compiler.version, "identity": f"{compiler.device}"})
    # One for every set of include folders, which can read these and no other files.
    threads: dict[tuple[Path, ...], ThreadPoolExecutor] = {}
    while True:
        request = receive(connection).header
        readable = tuple(Path(one[2:]) for one in request["options"] if one.startswith("-I"))
        if readable not in threads:
            # A GPU's driver needs files of its own, which nobody here knows.
            places = (*map(Path, _PLACES), *readable), (scratch,)
            confine = confine_compiler if compiler.device.is_pocl else lambda *_: None
            threads[readable] = ThreadPoolExecutor(1, "", confine, places)
        reply, binary, _ = threads[readable].submit(_answer, compiler, request).result()
        send(connection, reply, binary)


def _answer(compiler: OpenclCompiler, request: dict[str, Any]) -> Message:
    start = time.perf_counter()
    reply, binary, _ = compiler.compile(request["source"], request["options"])
    return Message({**reply, "seconds": time.perf_counter() - start}, binary)
