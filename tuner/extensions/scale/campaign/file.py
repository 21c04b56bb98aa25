"""The file of a campaign: its keys, what is wrong with it, and the jobs that it comes to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, takewhile
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from tuner.app.locate import require_kernel
from tuner.device.select import HOST, gpu_count
from tuner.extensions.scale.campaign.jobs import (
    RECORDED_FILE,
    TUNE,
    CampaignJob,
    check_settings,
    tuning_job,
)
from tuner.extensions.scale.campaign.ledger import LEDGER, LOCK
from tuner.extensions.scale.campaign.run import INDEX
from tuner.model.errors import InputError, TunerError
from tuner.model.languages import CUDA, PYTHON, language_of
from tuner.model.settings import (
    PATH,
    RECORD,
    SETTINGS,
    GivenSettings,
    ReachSettings,
    RunSettings,
    duration_s,
    offering,
    settings_in,
    words_of,
)
from tuner.space.schema import LARGEST, Size, StrictModel, validate_document
from tuner.space.yaml import Document, Location, read

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
# What lies beside the sessions' folders.
_OWN_FILES = frozenset({INDEX, LEDGER, LOCK})
_PATTERN = re.compile(r"[*?\[]")
# Of the system's own making: none of its files lasts.
_SYSTEM = tuple(map(Path, ("/proc", "/sys", "/dev", "/run")))
# What `**` may look through takes seconds, and so do the plans of so many jobs.
_MOST_ENTRIES = 300_000
_MOST_JOBS = 1000
DEVICES = ("auto", "cuda", "hip", "opencl", "recorded", "host")
_NUMBERED = re.compile(r"(hip|opencl):[0-9]{1,4}")
# What `tune record` takes of the settings.
_RECORDING = {
    "record",
    *(setting.name for setting in SETTINGS.values() if RECORD in setting.commands),
}


def _time(value: str) -> str:
    try:
        duration_s(value)
    except ValueError as error:
        raise PydanticCustomError("time", "a time is needed") from error
    return value


def _device(value: str) -> str:
    known = value in DEVICES or _NUMBERED.fullmatch(value) or value.startswith(RECORDED_FILE)
    if not known:
        raise PydanticCustomError("device", "a device is needed")
    return value


def _gpus(value: object) -> object:
    if value != "all" and not isinstance(value, list):
        raise PydanticCustomError("gpus", "GPUs are needed")
    return None if value == "all" else value


def _choices(value: object) -> object:
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise PydanticCustomError("too_short", "choices are needed")
    if not all(isinstance(one, str) for one in listed):
        raise PydanticCustomError("choices", "choices are needed")
    return value


Time = Annotated[str, AfterValidator(_time)]
Count = Annotated[int, Field(ge=1)]
GpuNumber = Annotated[int, Field(ge=0)]


# What a file takes in another way than a call from Python.
_offering = offering(
    "campaign",
    device=Annotated[str, AfterValidator(_device)],
    time=Time,
    agent=Literal["auto", "openai", "literal"],
)


@_offering
class SettingsModel(StrictModel):
    """What `defaults` may say for all jobs, and each job for itself, as the options of `tune`."""

    record: bool | None = Field(default=None, description="true: `tune record` instead of `tune`")


@_offering
class JobModel(StrictModel):
    """A kernel, or all that a pattern matches, for every combination of an operator's choices."""

    record: bool | None = Field(default=None, description="true: `tune record` instead of `tune`")
    kernel: str = Field(
        description="a kernel's file from this file's folder, or a pattern, `kernels/*.cu`"
    )
    name: str | None = Field(default=None, description="the name of its session's folder")
    space: str | None = Field(default=None, description="its search space, from this file's folder")
    operator: dict[str, Annotated[Any, AfterValidator(_choices)]] = Field(
        default={}, description="choices, each one or a list, `{ACTIVATION: [silu, gelu]}`"
    )
    workloads: Annotated[list[dict[str, Size]], Field(min_length=1)] | None = Field(
        default=None,
        description="a list of workloads, `[{T: 1024, D: 14336}]`, "
        f"in whole numbers from 1 to {LARGEST}",
    )


class CampaignModel(StrictModel):
    """A whole file."""

    version: Literal[1] = Field(description="the number 1")
    folder: str | None = Field(default=None, description="the folder for all sessions")
    # None stands for all of them.
    gpus: Annotated[list[GpuNumber] | None, BeforeValidator(_gpus)] = Field(
        default=None, min_length=1, description="all, or a list of numbers from 0 on, `[0, 1]`"
    )
    parallel: Count = Field(
        default=1, description="how many jobs run at a time on recordings and the CPU"
    )
    time: Time | None = Field(default=None, description="a time for all jobs together, `8h`")
    defaults: SettingsModel = Field(
        default=SettingsModel(), description="settings of all jobs, `{trials: 200}`"
    )
    jobs: list[JobModel] = Field(
        min_length=1, description="a list of jobs, `[{kernel: kernels/rmsnorm.cu}]`"
    )


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """What a file asks for, checked: its jobs, and the places where they may run at a time.

    `recorded` names the jobs that recordings answer because there is no GPU.
    """

    path: Path
    folder: Path
    jobs: tuple[CampaignJob, ...]
    gpus: tuple[int, ...]
    parallel: int
    time_s: float | None
    recorded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One kernel with one choice of its operator; `number` is that of its item in the file."""

    number: int
    name: str
    kernel: Path
    settings: GivenSettings
    record: bool
    how: tuple[str, ...]
    by_default: bool

    @property
    def cluster(self) -> str:
        """The address of the scheduler, "" for none."""
        words = dict(zip(self.how, self.how[1:], strict=False))
        return words.get("--cluster", "")

    @property
    def needs_gpu(self) -> bool:
        return self.settings.get("device") == "cuda" and not self.cluster

    @property
    def lacks_gpu(self) -> bool:
        """Tell whether a recording answers that nobody named."""
        return self.by_default and self.settings.get("device") == "recorded"


def read_campaign(path: Path, folder: Path | None = None) -> CampaignPlan:
    """Read a file and check all of its jobs; `folder` takes the place of the file's.

    Raises `InputError` with every problem of the jobs, each with its line.
    """
    document = read(path, "docs/campaigns.md")
    model = validate_document(document, CampaignModel)
    return _CampaignReader(document, model, folder).plan()


class _CampaignReader:
    def __init__(self, document: Document, model: CampaignModel, folder: Path | None) -> None:
        self._document, self._model = document, model
        self._base = document.path.parent
        self._problems: list[TunerError] = []
        self._count = 0
        stated = self._base / (model.folder or f"sessions/{document.path.stem}")
        self._folder = folder or stated
        merged = (self._merge_job(job) for job in model.jobs)
        needs_gpu = any(
            one.get("device", "auto") in ("auto", "cuda")
            and ("cluster" not in one or one.get("record"))
            for one in merged
        )
        self._found = gpu_count() if needs_gpu else 0

    def plan(self) -> CampaignPlan:
        self._check_gpus()
        entries: list[_Entry] = []
        for number, job in enumerate(self._model.jobs):
            try:
                entries += self._entries_of(number, job)
            except TunerError as error:
                self._add(error, number)
        self._check_names(entries)
        needy = sum(entry.needs_gpu for entry in entries)
        gpus = self._gpus() if needy else ()
        at_once = min(needy, len(gpus)) + min(len(entries) - needy, self._model.parallel)
        compilers = max(1, len(os.sched_getaffinity(0)) // max(1, at_once))
        jobs = [
            campaign_job
            for entry in entries
            if (campaign_job := self._job(entry, compilers)) is not None
        ]
        self._raise_problems()
        time_s = None
        if self._model.time:
            # Not all may be reached, so what stands first in the file comes first.
            time_s, jobs = duration_s(self._model.time), [replace(job, cost=0.0) for job in jobs]
        recorded = tuple(entry.name for entry in entries if entry.lacks_gpu)
        path, parallel = self._document.path, self._model.parallel
        return CampaignPlan(path, self._folder, tuple(jobs), gpus, parallel, time_s, recorded)

    def _merge_job(self, job: JobModel) -> dict[str, Any]:
        names = SettingsModel.model_fields
        defaults, stated = self._model.defaults.model_dump(), _dump_job(job)
        if stated.get("device") == HOST:
            del defaults["gpu_model"]  # which is for the others
        given = {**defaults, **stated}
        return {name: given[name] for name in names if given.get(name) is not None}

    def _entries_of(self, number: int, job: JobModel) -> Iterator[_Entry]:
        settings, record, how = self._settings(number, job)
        kernels = self._kernels(number, job)
        macros = list(job.operator)
        listed = [v if isinstance(v, list) else [v] for v in job.operator.values()]
        self._count += len(kernels) * prod(map(len, listed))
        if self._count > _MOST_JOBS:
            message = f"{self._count:,} jobs up to here, over {_MOST_JOBS:,}"
            raise self._error(message, number, remedy="make a campaign of each part")
        for kernel, choice in product(kernels, list(product(*listed))):
            own = dict(settings)
            # What `auto` is for a kernel in another language its run says.
            if own["device"] == "auto" and language_of(kernel) in (CUDA, PYTHON):
                cuda = self._found or record or self._model.gpus is not None
                own["device"] = "cuda" if cuda else "recorded"
            if choice:
                own["operators"] = dict(zip(macros, choice, strict=True))
            stems = [kernel.stem] if job.name is None or len(kernels) > 1 else []
            name = "-".join([*([job.name] if job.name else []), *stems, *choice])
            by_default = settings["device"] == "auto"
            yield _Entry(number, name, kernel, own, record, how, by_default)

    def _settings(self, number: int, job: JobModel) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
        """Complete a job's settings with the defaults; say whether it is a recording, and how."""
        given = self._merge_job(job)
        record = given.pop("record", False)
        if record:
            # What the defaults say besides is for those that are tuned, unless none is.
            own = _dump_job(job) if job.record else given
            known = _RECORDING | JobModel.model_fields.keys() - SettingsModel.model_fields.keys()
            if wrong := own.keys() - known:
                message = f"`{min(wrong)}` is not for a recording"
                raise self._error(message, number, min(wrong), remedy="leave it out")
            given = {name: value for name, value in given.items() if name in _RECORDING}
        if "time" in given:
            given["time_s"] = duration_s(given.pop("time"))
        kept = {setting.name for setting in settings_in(RunSettings)}
        called = {name: given.pop(name) for name in given.keys() - kept}
        check_settings(given, called, self._base, partial(self._about, number))
        how = self._words(number, {name: called[name] for name in SETTINGS if name in called})
        if "prices" in given:
            given["prices"] = self._path(given["prices"])
        device = given.get("device", "auto")
        if device.startswith(RECORDED_FILE):
            device = f"{RECORDED_FILE}{self._path(device.removeprefix(RECORDED_FILE))}"
        # Of a cluster a job has a GPU of NVIDIA's.
        given["device"] = "cuda" if device == "auto" and "--cluster" in how else device
        if job.space is not None:
            given["space"] = self._path(job.space)
        if job.workloads is not None:
            given["workloads"] = [
                ",".join(f"{axis}={size}" for axis, size in workload.items())
                for workload in job.workloads
            ]
        return given, record, how

    def _words(self, number: int, called: dict[str, Any]) -> tuple[str, ...]:
        """Write what no session keeps as options."""
        reaching = {setting.name: setting for setting in settings_in(ReachSettings)}
        for name, value in called.items():
            if name in reaching and "cluster" not in called:
                raise self._error(f"`{name}` needs `cluster`", number, name, remedy="name one")
            is_file = name == "store" and "://" not in value and value != "none"
            if is_file or (name in reaching and reaching[name].reads == PATH):
                called[name] = self._path(value)
        return tuple(words_of(called))

    def _path(self, text: str) -> str:
        return str(self._base / text)

    def _kernels(self, number: int, job: JobModel) -> list[Path]:
        path = self._base / job.kernel
        if not _PATTERN.search(job.kernel):
            require_kernel(path)
            return [path]
        pattern = Path(job.kernel)
        plain = [*takewhile(lambda part: not _PATTERN.search(part), pattern.parts)]
        start = self._base.joinpath(*plain)
        try:
            self._require_small(start.resolve(), job.kernel, number)
            matches = sorted(start.glob(str(Path(*pattern.parts[len(plain) :]))))
        except (OSError, ValueError) as error:  # before Python 3.13 `**` is whole folders only
            message = f"{job.kernel!r} is no pattern: {error}"
            raise self._error(message, number, "kernel", remedy="kernels/**/*.cu is one") from error
        if not matches:
            remedy = "a pattern starts from the folder of this file"
            raise self._error(f"no file matches {job.kernel!r}", number, "kernel", remedy=remedy)
        for match in matches:
            require_kernel(match)
        return matches

    def _require_small(self, start: Path, pattern: str, number: int) -> None:
        """Refuse what nobody means, before it is looked through."""
        seen, walked = 0, os.walk(start) if "**" in pattern else ()
        if start == Path(start.anchor) or any(start.is_relative_to(path) for path in _SYSTEM):
            seen = _MOST_ENTRIES + 1
        for _, folders, files in walked:
            if (seen := seen + len(folders) + len(files)) > _MOST_ENTRIES:
                break
        if seen > _MOST_ENTRIES:
            message = f"{pattern!r} looks through all of {start}"
            remedy = "name the folder that the kernels lie in: kernels/**/*.cu"
            raise self._error(message, number, "kernel", remedy=remedy)

    def _check_names(self, entries: list[_Entry]) -> None:
        seen: dict[str, _Entry] = {}
        recorded: dict[Path, _Entry] = {}
        for entry in entries:
            if not _NAME.fullmatch(entry.name):
                remedy = "up to 200 letters, digits, `_`, `-` and `.` make the name of a folder"
                error = self._error(
                    f"{entry.name!r} is no name for a job", entry.number, remedy=remedy
                )
                self._problems.append(error)
            if entry.name in _OWN_FILES or entry.name.endswith(".log"):
                message = f"{entry.name!r} is what a file of the campaign's own may be called"
                error = self._error(message, entry.number, remedy="give the job another `name`")
                self._problems.append(error)
            if (other := seen.setdefault(entry.name, entry)) is not entry:
                self._problems.append(self._same_name(entry, other))
            if entry.record and recorded.setdefault(entry.kernel, entry) is not entry:
                message = f"two jobs write the recording of {entry.kernel.name}"
                remedy = "record a kernel once, with one choice of its operator"
                self._problems.append(self._error(message, entry.number, remedy=remedy))

    def _same_name(self, entry: _Entry, other: _Entry) -> InputError:
        where = self._document.line("jobs", other.number)
        message = f"two jobs are called {entry.name!r}: line {where} has it too"
        remedy = "give one of them a `name`"
        if entry.number == other.number:
            # A name of its own would be that of both.
            message = f"it comes to two jobs that are called {entry.name!r}"
            remedy = (
                f"list {other.kernel} and {entry.kernel} as jobs of their own, one with a `name`"
            )
            if entry.kernel == other.kernel:
                remedy = "list each choice once"
        return self._error(message, entry.number, remedy=remedy)

    def _check_gpus(self) -> None:
        asked = self._model.gpus or []
        for place, number in enumerate(asked):
            if number in asked[:place]:
                message = f"`gpus` names {number} twice"
                error = self._document.error(message, "gpus", place, remedy="name each GPU once")
                self._problems.append(error)

    def _gpus(self) -> tuple[int, ...]:
        asked = self._model.gpus
        if not self._found:
            remedy = "write `device: recorded` or `device: host` to do without one"
            self._problems.append(
                self._document.error("no NVIDIA GPU was found", "gpus", remedy=remedy)
            )
        elif asked is None:
            return tuple(range(self._found))
        elif beyond := [one for one in asked if one >= self._found]:
            known = "the only one is 0" if self._found == 1 else f"there are 0 to {self._found - 1}"
            location = ("gpus", asked.index(beyond[0]))
            error = self._document.error(f"there is no GPU {beyond[0]}", *location, remedy=known)
            self._problems.append(error)
        return tuple(asked or ())

    def _job(self, entry: _Entry, compilers: int) -> CampaignJob | None:
        session = str(self._folder / entry.name)
        try:
            return tuning_job(
                entry.name,
                entry.kernel,
                entry.settings,
                self._folder,
                record=entry.record,
                cluster=entry.cluster,
                how=(*entry.how, "--jobs", str(compilers)),
                # `tune record` writes no report.
                finish=((*TUNE, "report", session),) if entry.record else (),
            )
        except TunerError as error:
            self._add(error, entry.number)
            return None

    def _add(self, error: TunerError, number: int) -> None:
        """Keep an error, with the line of the job that it is of."""
        if error.path == self._document.path:
            self._problems.append(error)
            return
        self._problems.append(self._error(_write_message(error), number, remedy=error.remedy))

    @contextmanager
    def _about(self, number: int, *keys: str) -> Iterator[None]:
        """Place what is wrong with these settings at the first that the job states, or else has."""
        try:
            yield
        except TunerError as error:
            job = self._model.jobs[number]
            given = (_dump_job(job), self._merge_job(job))
            key = next((one for by in given for one in keys if one in by), keys[0])
            raise self._error(_write_message(error), number, key, remedy=error.remedy) from error

    def _error(
        self, message: str, number: int, *keys: str, remedy: str | None = None
    ) -> InputError:
        """Make the error for a job, or for a setting of its own or of the defaults."""
        location: Location = ("jobs", number, *keys)
        if location not in self._document.places and ("defaults", *keys) in self._document.places:
            location = ("defaults", *keys)
        return self._document.error(message, *location, remedy=remedy)

    def _raise_problems(self) -> None:
        # A pattern may give the same for each of its kernels.
        texts = list(dict.fromkeys(map(str, self._problems)))
        if len(texts) == 1:
            raise InputError(texts[0])
        if texts:
            raise InputError("\n".join([f"{len(texts)} problems, nothing was started:", *texts]))


def _dump_job(job: JobModel) -> dict[str, Any]:
    return {name: value for name, value in job.model_dump().items() if value is not None}


def _write_message(error: TunerError) -> str:
    """Return the message with its own place, where it has one."""
    return error.message if error.path is None else str(error).partition("\n")[0]
