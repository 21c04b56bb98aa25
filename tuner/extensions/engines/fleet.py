"""Make the config files that an engine lacks for a model: a session for each shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from tuner.app.api import tune
from tuner.app.session_plan import is_renewable
from tuner.extensions.engines.configs.files import (
    TITLES,
    BlockFp8Key,
    Engine,
    Key,
    MoeKey,
    write_files,
)
from tuner.extensions.engines.configs.found import EngineFile, FileState
from tuner.extensions.engines.configs.needed import CONFIG
from tuner.extensions.engines.configs.winners import BLOCK, Configs, configs_of
from tuner.model.errors import DeviceError, InputError, OutOfMemory, TunerError
from tuner.model.progress import Progress
from tuner.model.settings import ENOUGH_OF_A_FLEET, GivenSettings, option_of
from tuner.process.files import read_text
from tuner.session.session import Session
from tuner.session.store import DATABASE
from tuner.tuning.run import undecided_of
from tuner.tuning.search import JOURNAL

# The numbers of tokens that both engines' own scripts tune.
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
KERNELS = Path("kernels/sglang")
_HIDDEN, _ROUTES = "hidden_size", "num_experts_per_tok"


# What a session holds.
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One shape to tune, whose files several layers may want; `name` is that of its session."""

    name: str
    kernel: str
    operators: Mapping[str, str]
    workloads: tuple[str, ...]


def jobs_of(
    files: Iterable[EngineFile],
    config: Path,
    ep: int,
    batches: Sequence[int] = BATCHES,
    *,
    two: bool = False,
    sessions: Path | None = None,
) -> tuple[tuple[TuningJob, ...], tuple[str, ...]]:
    """Say what to tune for the files that are to be made, and what cannot be and why.

    One that is there is made again where its session below `sessions` left something undecided.
    With `two` each GEMM of the experts gets configs of its own, and a second file is made for them;
    so too where the engine has such a file: it would read that beside the first one, and nobody has
    measured them together. Raises `InputError` where config.json lacks what the shapes need.
    """
    jobs: dict[str, TuningJob] = {}
    refused: dict[str, None] = {}
    files = list(files)
    read = {one.needed.key for one in files if one.needed.down and one.found is not None}
    for file in files:
        key, lacking = file.needed.key, file.is_to_make(two=two)
        if why := refusal(key):
            if lacking:
                refused[f"{file.wanted.name}: {why}"] = None
            continue
        if isinstance(key, BlockFp8Key):
            workloads = tuple(_workloads(batches, {"N": key.n, "K": key.k}))
            job = TuningJob(f"block-fp8-N{key.n}-K{key.k}", "w8a8_block_fp8", {}, workloads)
        else:
            job = _moe(key, config, ep, batches, two=two or key in read)
        session = None if sessions is None else sessions / job.name
        if not lacking and session is not None and (session / DATABASE).exists():
            with Session.open(session, read_only=True) as opened:
                lacking = bool(undecided_of(opened))
        if lacking:
            jobs[job.name] = job
    return tuple(jobs.values()), tuple(refused)


@dataclass(frozen=True, slots=True)
class MadeConfigs:
    """What came of a fleet's jobs: the files, and by the job's name why one has none."""

    configs: Configs
    failed: Mapping[str, str]


def make(
    jobs: Sequence[TuningJob],
    folder: Path,
    to: Path,
    engine: Engine,
    triton: str,
    settings: GivenSettings,
    *,
    say: Callable[[str], None],
    progress: Callable[[TuningJob, Progress], None] | None = None,
    python: Sequence[str] | None = None,
) -> MadeConfigs:
    """Tune what is left of the jobs, and write each one's files once it is complete.

    A session that lies in `folder` is gone on with, or taken as it is where it is complete; a job
    that fails leaves the others to be made, and numbers of tokens for which there is no memory are
    left out of theirs. `python` is what `configs_of` asks the engine with.
    Raises `InputError` where SGLang's kernels are not in this checkout, and `DeviceError` without
    a GPU.
    """
    made, failed = Configs({}), dict[str, str]()

    def read(session: Path) -> Configs:
        return configs_of([session], engine, triton, python=python)

    tuned = tune_each(jobs, folder, "tokens", settings, read, failed, say=say, progress=progress)
    for _, found in tuned:
        write_files(to, found.files, replace=True)
        made = made.joined(found)
    return MadeConfigs(made, failed)


def tune_each(
    jobs: Sequence[TuningJob],
    folder: Path,
    counted: str,
    settings: GivenSettings,
    read: Callable[[Path], Found],
    failed: dict[str, str],
    *,
    say: Callable[[str], None],
    progress: Callable[[TuningJob, Progress], None] | None = None,
) -> Iterator[tuple[TuningJob, Found]]:
    """Tune what is left of the jobs, in sessions of `folder`; yield what `read` finds in each.

    Why a job has nothing is noted in `failed`. `counted` is what a workload is a number of. Raises
    `InputError` before the first where a kernel is not in this checkout, and `DeviceError`
    without a GPU.
    """
    for job in jobs:
        kernel_of(job)
    for number, job in enumerate(jobs, start=1):
        say(f"{number} of {len(jobs)}: {job.name}, {len(job.workloads)} numbers of {counted}")
        session = folder / job.name
        try:
            for told in tune_job(job, session, progress, settings):
                say(f"{job.name}: {told}")
            found = read(session)
        except TunerError as error:
            if isinstance(error, DeviceError) and not (session / DATABASE).exists():
                raise  # no device was opened: there is none for the others either
            say(f"{job.name}: {error}")
            failed[job.name] = str(error)
            continue
        yield job, found


def sessions_of(folder: Path, gpu: str, triton: str, *, keep_bits: bool) -> Path:
    """Say where the sessions of a GPU and a Triton lie: those of others say nothing of them."""
    parts = (gpu, f"triton-{triton}", *(("keep-bits",) if keep_bits else ()))
    return folder.joinpath(*(re.sub(r"[^\w.+-]+", "_", part) for part in parts))


def kernel_of(job: TuningJob) -> Path:
    """Find a job's kernel; raise `InputError` where it isn't in this checkout."""
    kernel = KERNELS / f"{job.kernel}.py"
    if not kernel.is_file():
        raise InputError(
            f"there is no {kernel} here",
            remedy="start it in a checkout of this project: the kernels' files are not installed",
        )
    return kernel


def tune_job(
    job: TuningJob,
    session: Path,
    progress: Callable[[TuningJob, Progress], None] | None,
    settings: GivenSettings,
) -> Iterator[str]:
    """Tune a job, or what of it the memory is enough for; yield what is not decided and why."""

    def report_progress(one: Progress) -> None:
        if progress is not None:
            progress(job, one)

    kernel = kernel_of(job)
    own: GivenSettings = {"enough": ENOUGH_OF_A_FLEET, **settings, "operators": dict(job.operators)}
    left = list(job.workloads)
    while True:
        settings_now: GivenSettings = {**own, "workloads": left}
        if (session / DATABASE).exists():
            with Session.open(session, read_only=True) as opened:
                config = opened.manifest.config
            kept, renewed = [], dict[str, object]()
            for name in ("trials", "enough", "gpus"):
                before, asked = getattr(config, name), dict(settings).get(name)
                if asked in (None, before):
                    continue
                if is_renewable(config, name):
                    renewed[name] = asked
                else:
                    option = option_of(name)
                    kept.append(f"{option} {before}" if before else f"no {option}")
            settings_now = cast("GivenSettings", renewed)
            if kept:
                yield f"goes on with {' and '.join(kept)}, as it was started"
        try:
            tune(kernel, session=session, progress=report_progress, **settings_now)
        except OutOfMemory as error:
            if error.workload not in left[1:] or not _remove_if_baselines(session):
                raise
            # More tokens take more memory.
            first = left.index(error.workload)
            names = " and ".join(one.partition(",")[0] for one in left[first:])
            yield f"left out: {names}: {error.message}"
            left = left[:first]
        else:
            break
    with Session.open(session, read_only=True) as opened:
        for key, reason in undecided_of(opened).items():
            yield f"undecided: {key.partition(',')[0]}: {reason}"


def _remove_if_baselines(session: Path) -> bool:
    """Remove a session that holds no more than baselines, which take seconds; else leave it."""
    with Session.open(session, read_only=True) as opened:
        if opened.trials():
            return False
    # Nothing else that somebody keeps in its folder.
    for name in (DATABASE, *(f"{DATABASE}-{end}" for end in ("wal", "shm")), JOURNAL):
        (session / name).unlink(missing_ok=True)
    return True


def refusal(key: Key) -> str:
    """Say why no kernel here can be tuned for a file, "" where one can."""
    scaled, whole = True, False
    if isinstance(key, MoeKey):
        if key.dtype not in (None, "fp8_w8a8"):
            return f"{key.dtype} cannot be tuned"
        scaled, whole = key.dtype is not None, key.per_channel
    if whole or (scaled and key.block_shape != BLOCK):
        return "only bf16, and fp8 in blocks of 128 by 128, can be tuned"
    return ""


def _moe(key: MoeKey, config: Path, ep: int, batches: Sequence[int], *, two: bool) -> TuningJob:
    path = config / CONFIG if config.is_dir() else config
    given = json.loads(read_text(path))
    hidden, routes = (_number(given, name, path) for name in (_HIDDEN, _ROUTES))
    # A shared expert that SGLang counts among the experts has a route of its own.
    routes += given.get("n_routed_experts") == key.experts * ep - 1
    axes = {"E": key.experts, "N": key.intermediate, "K": hidden, "TOP_K": routes, "EP": ep}
    weights = "bf16" if key.dtype is None else "fp8_block"
    name = f"moe-{weights}-E{key.experts}-N{key.intermediate}-K{hidden}-top{routes}-ep{ep}"
    return TuningJob(
        f"{name}-two" if two else name,
        "fused_moe",
        {
            "PART": "both",
            "WEIGHTS": weights,
            "ROUTING": "real",
            "CONFIGS": "two" if two else "one",
        },
        tuple(_workloads(batches, axes)),
    )


def _workloads(batches: Sequence[int], axes: Mapping[str, int]) -> Iterator[str]:
    for tokens in batches:
        yield ",".join(f"{name}={size}" for name, size in {"M": tokens, **axes}.items())


def _number(given: Mapping[str, object], name: str, path: Path) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        remedy = "it is a whole number from 1 on in a model's config.json"
        raise InputError(f"`{name}` is {value!r}", path=path, remedy=remedy)
    return value


def object_of(file: EngineFile, *, two: bool) -> dict[str, object]:
    """Make what `--json` says of a file."""
    refused = refusal(file.needed.key)
    return {
        "layer": file.needed.layer,
        "state": file.state.value,
        "optional": file.needed.down,
        "to_make": file.is_to_make(two=two) and not refused,
        "refused": refused or None,
        "wanted": str(file.wanted),
        "found": str(file.found) if file.found else None,
        "triton": file.triton,
        "remark": file.remark or None,
    }


def lines_of(
    files: Sequence[EngineFile], engine: Engine, where: str, *, two: bool
) -> Iterator[str]:
    """List the files for a terminal, with what is to be known of each, and where they belong."""
    lacking = [one for one in files if one.is_to_make(two=two)]
    refused = sum(bool(refusal(one.needed.key)) for one in lacking)
    others = f", {refused} cannot be made" if refused else ""
    count = f"{len(lacking) - refused} of {len(files)} files to make{others}"
    yield f"{TITLES[engine]}, {where}: {count}"
    wide = max(len(one.needed.layer) for one in files)
    for one in files:
        yield f"{one.state.value:7}  {one.needed.layer:{wide}}  {one.wanted.name}"
        remarks = [one.remark] if one.remark else []
        if one.state is FileState.THERE:
            if isinstance(one.needed.key, MoeKey) and not one.triton:
                remarks.append("it does not say for which Triton")
        else:
            if one.state is FileState.STALE:
                remarks.append(f"only for Triton {one.triton}: {one.found}")
            if one.optional and not two:
                remarks.append("optional (--two): it has the first product's configs")
            elif why := refusal(one.needed.key):
                remarks.append(f"cannot be made: {why}")
        yield from (f"{'':7}  {'':{wide}}    {remark}" for remark in remarks)
    folders = dict.fromkeys(one.wanted.parent for one in files if one.state is not FileState.THERE)
    if folders:
        yield "\nthey belong into"
        yield from (f"  {folder}" for folder in folders)
