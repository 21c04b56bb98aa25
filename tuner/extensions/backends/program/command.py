"""The user's program: what it is told and answers, and the process that it runs in."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tuner.compiler.base import shorten_text
from tuner.device.base import DeviceInfo
from tuner.model.errors import DeviceError
from tuner.model.hardware import AMD_TARGETS, COMPUTE_CAPABILITIES, DeviceLimits, amd_limits
from tuner.model.trial import Resources
from tuner.process.tally import note_start

VERSION = 1
# Hardware that names no limit has none here: its evaluator refuses what it cannot launch.
_UNLIMITED = 2**31 - 1
_TARGET = re.compile(r"sm_(\d+)(\d)a?")

Purpose = Literal["describe", "baseline", "search", "finals", "verify", "compare"]
# A call takes more than a picosecond and less than eleven days: what is outside was never measured.
_LEAST_US, _MOST_US = 1e-6, 1e12
# What compilers and queues write for a terminal: colours, and whatever else it would obey.
_FOR_TERMINALS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)")


def _measurable(time_us: float) -> float:
    if not _LEAST_US <= time_us <= _MOST_US:
        raise ValueError(f"{time_us:g} microseconds cannot be the time of a call")
    return time_us


def _legible(text: str) -> str:
    plain = _FOR_TERMINALS.sub("", text).replace("\t", " ")
    return shorten_text("".join(one for one in plain if one == "\n" or one.isprintable()))


Times = Annotated[float, Field(gt=0.0, allow_inf_nan=False), AfterValidator(_measurable)]
Reason = Annotated[str, AfterValidator(_legible)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r} cannot be printed")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_printable)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class ArgumentMessage(_Message):
    """One parameter of the operator.

    `value` is a scalar's. `fill` says what an input may hold, as a search space writes it, and
    `tolerance` how far an output may be from the reference.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    role: Literal["input", "output", "inout", "scratch"] = "input"
    value: bool | int | float | None = None
    fill: str = "normal"
    zeroed: bool = False
    tolerance: dict[str, float] | None = None


class LaunchMessage(_Message):
    """One launch, resolved; `arguments` are the names of what it takes, in its kernel's order."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] | None = None
    pdl: bool = False
    arguments: tuple[str, ...] = ()


class ProgramMessage(_Message):
    """One source with its launches, in their order; `config` is None for the baseline."""

    source: str
    config: dict[str, bool | int | float | str] | None
    launches: tuple[LaunchMessage, ...]
    arguments: tuple[ArgumentMessage, ...]


class Request(_Message):
    """One question; `describe` has no program, `compare` several, and every other purpose one.

    `language` is by the source's file name. `options` are the search space's compile options and
    a `-D` for each of the operator's choices. `seed` is for drawing inputs, another one in each
    request. `incumbent_us` is the best time so far: what is clearly slower need not be timed for
    long.
    """

    version: int = VERSION
    purpose: Purpose
    kernel: str
    language: str
    operators: dict[str, str] = Field(default_factory=dict)
    workload: dict[str, int] = Field(default_factory=dict)
    programs: tuple[ProgramMessage, ...] = ()
    options: tuple[str, ...] = ()
    include_dirs: tuple[str, ...] = ()
    reference: str = ""
    seed: int = 0
    incumbent_us: float | None = None
    rounds: int | None = None


class StatedLimits(_Message):
    """What one block may have at most; what is left out is not limited here."""

    threads_per_block: int = Field(default=_UNLIMITED, gt=0)
    shared_bytes_per_block: int = Field(default=_UNLIMITED, gt=0)
    threads_per_warp: int = Field(default=32, gt=0)


class Described(_Message):
    """The answer to `describe`: the hardware, and what the evaluator can do.

    `streaming_gbps` (GB/s) is for the roofline: measured, or the data sheet's. `limits` are a
    GPU's own where they are left out and `architecture` names one (`sm_90`, `gfx942`), and so is
    the width of a warp where they do not state it. `parallel` is
    how many requests may be under way at once, `timeout_s` how long one may take.
    """

    version: Literal[1]
    name: Text
    streaming_gbps: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    architecture: Text = "other"
    multiprocessors: int = Field(default=1, gt=0)
    l2_bytes: int = Field(default=0, ge=0)
    limits: StatedLimits | None = None
    verifies: bool = False
    compares: bool = False
    parallel: int = Field(default=1, ge=1, le=64)
    timeout_s: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 600.0
    environment: dict[Text, Text] = Field(default_factory=dict)

    def info(self, evaluator: str) -> DeviceInfo:
        """Make what the rest of a run knows of the hardware."""
        match = _TARGET.fullmatch(self.architecture)
        known = (int(match[1]), int(match[2])) if match else (0, 0)
        stated = {f"evaluator {name}": text for name, text in self.environment.items()}
        own = self.limits is not None or known not in COMPUTE_CAPABILITIES
        limits = self._own_limits(known) if own else None
        return DeviceInfo(
            name=self.name,
            architecture=self.architecture,
            compute_capability=known,
            multiprocessors=self.multiprocessors,
            l2_bytes=self.l2_bytes,
            streaming_gbps=self.streaming_gbps,
            recorded=False,
            environment={"evaluator": evaluator, **stated},
            own_limits=limits,
            evaluator=evaluator,
            verifies=self.verifies,
            parallel=self.parallel,
        )

    def _own_limits(self, compute_capability: tuple[int, int]) -> DeviceLimits:
        stated = self.limits or StatedLimits()
        name = self.architecture.partition(":")[0]
        if name not in AMD_TARGETS:
            return _limits(stated, compute_capability)
        of_gpu = amd_limits(name)
        if self.limits is None:
            return of_gpu
        if "threads_per_warp" not in stated.model_fields_set:
            stated = stated.model_copy(update={"threads_per_warp": of_gpu.threads_per_warp})
        return _limits(stated, compute_capability)


class StatedResources(_Message):
    """What the evaluator's compiler reports of the first launch's kernel, as `Resources`."""

    registers: int = Field(ge=0)
    spill_store_bytes: int = Field(default=0, ge=0)
    spill_load_bytes: int = Field(default=0, ge=0)
    static_shared_bytes: int = Field(default=0, ge=0)
    stack_bytes: int = Field(default=0, ge=0)

    def made(self) -> Resources:
        return Resources(**self.model_dump())


class Answer(_Message):
    """The answer to a request with programs.

    `times_us` are raw times of one call each, in microseconds. `verified` says that the results
    were compared with the reference. `rounds_us` answers `compare`: a row for each round with a
    time for each program, taken one after the other.
    """

    status: Literal["correct", "incorrect", "compile", "launch", "timeout", "resource_limit"]
    reason: Reason = ""
    times_us: tuple[Times, ...] = ()
    rounds_us: tuple[tuple[Times, ...], ...] = ()
    verified: bool = False
    stopped_early: bool = False
    resources: StatedResources | None = None

    @property
    def is_correct(self) -> bool:
        return self.status == "correct"

    @model_validator(mode="after")
    def _failures_say_why(self) -> Self:
        if not self.is_correct and not self.reason.strip():
            raise ValueError(f"the status {self.status} needs a `reason`")
        return self

    def lacks(
        self, purpose: Purpose, programs: int, *, verifies: bool, rounds: int | None = None
    ) -> str:
        """Say what a request of this purpose asked for and is not here; "" where nothing is.

        `verifies` says that the program has promised verdicts; a comparison is of so many `rounds`.
        """
        if not self.is_correct:
            return ""
        if purpose == "verify":
            promised = "`verified` is not true, the status is correct, and `describe` promised it"
            return promised if verifies and not self.verified else ""
        if purpose != "compare":
            return "" if self.times_us else "`times_us` is empty, and the status is correct"
        if not self.rounds_us:
            return "`rounds_us` is empty, and the status is correct"
        if rounds is not None and len(self.rounds_us) != rounds:
            return f"`rounds_us` has {len(self.rounds_us)} rows, and `rounds` is {rounds}"
        wrong = next((len(row) for row in self.rounds_us if len(row) != programs), None)
        return "" if wrong is None else f"a row of `rounds_us` has {wrong} times, not {programs}"


def _limits(stated: StatedLimits, compute_capability: tuple[int, int]) -> DeviceLimits:
    """Limit what the evaluator has limited; of a multiprocessor's occupancy it said nothing."""
    return DeviceLimits(
        compute_capability,
        warps_per_multiprocessor=0,
        blocks_per_multiprocessor=_UNLIMITED,
        shared_bytes_per_multiprocessor=_UNLIMITED,
        shared_bytes_per_block=stated.shared_bytes_per_block,
        cluster_blocks=_UNLIMITED,
        reserved_shared_bytes=0,
        threads_per_block=stated.threads_per_block,
        threads_per_warp=stated.threads_per_warp,
        block_dimensions=(_UNLIMITED,) * 3,
        grid_dimensions=(_UNLIMITED,) * 3,
        registers_per_thread=_UNLIMITED,
        registers_per_block=_UNLIMITED,
        registers_per_multiprocessor=_UNLIMITED,
    )


def json_schema() -> Mapping[str, Any]:
    """Make the schema of both directions, as docs/evaluators.schema.json has it."""
    models: Sequence[type[_Message]] = (Request, Described, Answer)
    found: dict[str, Any] = {}
    for model in models:
        mode: Literal["serialization", "validation"]
        mode = "serialization" if model is Request else "validation"
        schema = model.model_json_schema(mode=mode, ref_template="#/$defs/{model}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What `tune --device command:` asks and is answered",
        "oneOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in models],
        "$defs": found,
    }


# An answer is a few kilobytes; of what goes on and on no more is read than this.
MOST_ANSWER_BYTES = 4 << 20
# Of its standard error so much is kept, and so much of it stands in a reason.
LOG_BYTES, LOG_LETTERS = 4096, 400
# How long a program that is told to end may take, to withdraw what it has queued elsewhere.
GRACE_S = 2.0
# How often it is looked whether a program has ended whose output somebody else holds open.
POLL_S = 0.2

EXAMPLE = "docs/evaluators.md has an example that can be copied"


class CommandFailed(Exception):  # noqa: N818 - what befell it
    """The program gave no answer: it died, took too long (`late`) or said too much."""

    def __init__(self, message: str, *, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class EvaluatorCommand:
    """Start one program for one request, several at once where several threads ask.

    It runs as it was given, without a shell, in the working folder, and in a process group of its
    own, which ends with it when it is too late.
    """

    def __init__(self, text: str) -> None:
        if not text.isprintable():
            raise DeviceError(
                f"the evaluator {text!r} cannot be printed, and so not be kept with a session",
                remedy="write it in one line; a script of yours may do the rest",
            )
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise DeviceError(
                f"the evaluator {text!r} cannot be read: {str(error).lower()}",
                remedy="write it as a shell would take it, --device 'command:./measure.sh \"a b\"'",
            ) from error
        if not self._words:
            raise DeviceError(
                "--device command: names no program",
                remedy=f"name one, as in --device command:./measure.sh; {EXAMPLE}",
            )
        self._lock, self._closed = threading.Lock(), False
        self._running: set[subprocess.Popen[bytes]] = set()

    def ask(self, request: str, timeout_s: float) -> str:
        """Return what the program writes; raise `CommandFailed`, or `DeviceError` without it."""
        with tempfile.TemporaryFile() as question:
            question.write(request.encode())
            question.seek(0)
            process = self._start(question)
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                said, log = bytearray(), bytearray()

                def keep(data: bytes) -> None:
                    said.extend(data)
                    if len(said) > MOST_ANSWER_BYTES:
                        raise CommandFailed(f"wrote over {MOST_ANSWER_BYTES >> 20} MiB")

                def keep_end(data: bytes) -> None:
                    log.extend(data)
                    del log[:-LOG_BYTES]

                with process.stdout, process.stderr:
                    try:
                        readers = {process.stdout: keep, process.stderr: keep_end}
                        deadline_s = time.monotonic() + timeout_s
                        _read(process, readers, deadline_s)
                        # It may close its output first, and then take its time to leave a queue.
                        status = process.wait(max(0.0, deadline_s - time.monotonic()))
                    except (TimeoutError, subprocess.TimeoutExpired):
                        _end(process)
                        message = f"gave no answer within {timeout_s:g} s and was ended"
                        raise CommandFailed(message + _wrote(log), late=True) from None
                    except BaseException:
                        _end(process)
                        raise
                if status:
                    raise CommandFailed(_ending(status) + _wrote(log))
                return said.decode(errors="replace")
            finally:
                with self._lock:
                    self._running.discard(process)

    def close(self) -> None:
        """End what is running."""
        with self._lock:
            self._closed, running = True, tuple(self._running)
        _end(*running)

    def _start(self, question: IO[bytes]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise CommandFailed("was ended")
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own program
                    self._words,
                    stdin=question,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(
                    f"the evaluator {self._words[0]!r} cannot be started: {error.strerror}",
                    remedy="give its path (./measure.sh), make it executable (chmod +x), and begin "
                    f"it with a line such as #!/bin/sh; {EXAMPLE}",
                ) from error
            self._running.add(process)
        note_start(Path(self._words[0]).name)
        return process


def _read(
    process: subprocess.Popen[bytes],
    readers: Mapping[IO[bytes], Callable[[bytes], None]],
    deadline_s: float,
) -> None:
    """Read until all ends; raise `TimeoutError` at the deadline."""
    with selectors.DefaultSelector() as ready:
        for stream, keep in readers.items():
            ready.register(stream, selectors.EVENT_READ, keep)
        while ready.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            ended = process.poll() is not None
            found = ready.select(min(left_s, POLL_S))
            for key, _ in found:
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data(data)
                else:
                    ready.unregister(key.fileobj)
            if ended and not found:
                return  # what it left behind in the background holds its output open


def _end(*processes: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        until_s = time.monotonic() + GRACE_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with exit code {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _wrote(log: bytearray) -> str:
    text = " ".join(log.decode(errors="replace").split())
    text = "".join(letter for letter in text if letter.isprintable())
    return f"; it wrote last: {text[-LOG_LETTERS:]}" if text else ""
