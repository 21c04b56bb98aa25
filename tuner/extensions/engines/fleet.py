"""Make the config files that an engine lacks for models: a session for each shape."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from tuner.app.api import tune
from tuner.app.session_plan import is_renewable
from tuner.extensions.engines.configs.alike import Gain, gain_of
from tuner.extensions.engines.configs.files import (
    TITLES,
    BlockFp8Key,
    Engine,
    Key,
    MoeKey,
    write_files,
)
from tuner.extensions.engines.configs.found import EngineFile, FileState
from tuner.extensions.engines.configs.needed import Needed
from tuner.extensions.engines.configs.winners import BLOCKS, Configs, configs_of, marks_of
from tuner.extensions.engines.timeline.operators import rules
from tuner.extensions.engines.timeline.table import OF_STEPS
from tuner.model.errors import DeviceError, InputError, OutOfMemory, TunerError
from tuner.model.progress import Progress
from tuner.model.settings import ENOUGH_OF_A_FLEET, GivenSettings, option_of
from tuner.model.trial import BROKEN
from tuner.process.files import atomic_write
from tuner.session.session import Session
from tuner.session.store import DATABASE
from tuner.tuning.run import undecided_of
from tuner.tuning.search import JOURNAL

# The numbers of tokens that both engines' own scripts tune.
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
KERNELS = Path("kernels/sglang")
# What the kernels' reference files call the engine's default, which serves where there is no file.
DEFAULT = "without_file"
PROOF = "proof-"
# The configs that a shape's kernel failed with, in its session's folder.
FAILED = "failed.txt"
# A search that has less time than its baselines take finds nothing.
LEAST_S = 30.0
# Of what the most wanted shape is worth, where traffic has none of another.
UNSEEN = 0.01


# What a session holds.
Found = TypeVar("Found")
# By kernel and axes without the number of tokens, how long a shape takes in all.
Traffic = Mapping[tuple[str, frozenset[str]], float]


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One shape to tune, whose files several layers and models may want.

    `name` is that of its session; `worth` has no unit.
    """

    name: str
    kernel: str
    operators: Mapping[str, str]
    workloads: tuple[str, ...]
    worth: float = field(default=1.0, compare=False)

    @property
    def shape(self) -> frozenset[str]:
        """The sizes that all numbers of tokens share."""
        sizes = self.workloads[0].split(",")
        return frozenset(size for size in sizes if size.partition("=")[0] not in OF_STEPS)


def jobs_of(
    files: Iterable[EngineFile],
    batches: Sequence[int] = BATCHES,
    *,
    two: bool = False,
    sessions: Path | None = None,
    traffic: Traffic | None = None,
) -> tuple[tuple[TuningJob, ...], tuple[str, ...]]:
    """Say what to tune for the files that are to be made, and what cannot be and why.

    One that is there is made again where its session below `sessions` left something undone, or
    the proof there says that the engine's default is faster. With `two` each GEMM of the experts
    gets configs of its own, and a second file is made for them; so too where the engine has such a
    file: it would read that beside the first one, and nobody has measured them together. What takes
    most of `traffic` comes first. Raises `InputError` where config.json lacks what shapes need.
    """
    jobs: dict[str, TuningJob] = {}
    refused: dict[str, None] = {}
    files = list(files)
    read = {
        engine_file.needed.key
        for engine_file in files
        if engine_file.needed.down and engine_file.found is not None
    }
    for file in files:
        key, lacking = file.needed.key, file.is_to_make(two=two)
        if why := refusal(key):
            if lacking:
                refused[f"{file.wanted.name}: {why}"] = None
            continue
        if not (lacking or sessions):
            continue
        job = _job_of(file, batches, two=two or key in read)
        if not lacking and sessions is not None:
            session = sessions / job.name
            if (session / DATABASE).exists():
                with Session.open(session, read_only=True) as opened:
                    lacking = opened.state != "complete" or bool(undecided_of(opened))
            else:
                lacking = any(gain.slower for gain in proved_gains(_proof_of(job, sessions)))
        if lacking:
            jobs[job.name] = job
    return _by_worth(jobs.values(), traffic), tuple(refused)


def proofs_of(
    files: Iterable[EngineFile],
    sessions: Path,
    batches: Sequence[int] = BATCHES[::3],
    traffic: Traffic | None = None,
) -> tuple[TuningJob, ...]:
    """List, for files that are there, what compares them with the default before they are trusted.

    Left out are those whose session lies below `sessions`, or a proof that is complete.
    """
    proofs: dict[str, TuningJob] = {}
    for file in files:
        if file.state is not FileState.THERE or file.needed.down or refusal(file.needed.key):
            continue
        job = _job_of(file, batches, two=False)
        proof = _proof_of(job, sessions)
        if not (sessions / job.name / DATABASE).exists() and not proved_gains(proof):
            proofs[job.name] = replace(job, name=proof.name)
    return _by_worth(proofs.values(), traffic)


def _by_worth(jobs: Iterable[TuningJob], traffic: Traffic | None) -> tuple[TuningJob, ...]:
    """Sort jobs by what `traffic` takes with them, or by their weights where no trace says it."""
    by_worth = sorted(jobs, key=lambda job: -job.worth)
    if traffic and by_worth:
        took_us = {job.name: traffic.get((job.kernel, job.shape), 0.0) for job in by_worth}
        weights = sum(job.worth for job in by_worth if took_us[job.name])
        most_us = max(traffic.values())
        rate = sum(took_us.values()) / weights if weights else most_us / by_worth[0].worth
        shown = {rule.operator for rule in rules().calls} | {kernel for kernel, _ in traffic}
        for at, job in enumerate(by_worth):
            unseen = UNSEEN * most_us if job.kernel in shown else rate * job.worth
            by_worth[at] = replace(job, worth=took_us[job.name] or unseen)
    return tuple(sorted(by_worth, key=lambda job: -job.worth))


def _proof_of(job: TuningJob, sessions: Path) -> Path:
    return sessions / f"{PROOF}{job.name.removesuffix('-two')}"


def proved_gains(session: Path) -> tuple[Gain, ...]:
    """Say by how much an engine's file is faster than its default, as a whole proof measured it."""
    if not (session / DATABASE).exists():
        return ()
    with Session.open(session, read_only=True) as opened:
        if opened.state != "complete":
            return ()
        compared = [
            comparison for comparison in opened.comparisons() if DEFAULT in comparison.peers
        ]
    of_default = (gain_of(comparison, DEFAULT) for comparison in compared)
    return tuple(Gain(-gain.gain, gain.error) for gain in of_default)


def prove(
    jobs: Sequence[TuningJob],
    folder: Path,
    triton: str,
    settings: GivenSettings,
    *,
    say: Callable[[str], None],
    progress: Callable[[TuningJob, Progress], None] | None = None,
    budget_s: float | None = None,
) -> Mapping[str, str]:
    """Compare files that are there with the engine's default; say why some could not be.

    Raises as `make` does.
    """
    failed: dict[str, str] = {}
    proving: GivenSettings = {**settings, "trials": 1, "peers": (DEFAULT,)}
    tuned = tune_each(
        jobs, folder, "tokens", proving, proved_gains, failed, say=say, progress=progress,
        budget_s=budget_s,
    )  # fmt: skip
    for job, gains in tuned:
        speedups = sorted(gain.speedup for gain in gains)
        if not speedups:
            failed[job.name] = "the default could not be run"
            continue
        state = "stale" if any(gain.slower for gain in gains) else "proved"
        least, most = speedups[0], speedups[-1]
        say(f"{state}: {least:.2f}x to {most:.2f}x the default on Triton {triton}: {job.name}")
    return failed


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
    budget_s: float | None = None,
) -> MadeConfigs:
    """Tune what is left of the jobs, and write each one's files once it is complete.

    A session that lies in `folder` is gone on with, or taken as it is where it is complete; a job
    that fails leaves the others to be made, and numbers of tokens for which there is no memory are
    left out of theirs. Of models whose shapes differ in what no file's name has each number of
    tokens has the config that gains most. `python` is what `configs_of` asks the engine with.
    Raises `InputError` where SGLang's kernels are not in this checkout, and `DeviceError` without
    a GPU.
    """
    made, failed, sources = Configs({}), dict[str, str](), dict[Path, list[Path]]()

    def read(session: Path) -> Configs:
        configs = configs_of([session], engine, triton, python=python)
        others = [path for name in configs.files for path in sources.get(name, ())]
        for name in configs.files:
            sources.setdefault(name, []).append(session)
        if others:
            configs = configs_of([*dict.fromkeys(others), session], engine, triton, python=python)
        return configs

    tuned = tune_each(
        jobs, folder, "tokens", settings, read, failed, say=say, progress=progress,
        budget_s=budget_s,
    )  # fmt: skip
    for _, configs in tuned:
        write_files(to, configs.files, replace=True)
        for mark in marks_of(configs, engine):
            say(mark)
        made = made.joined(configs)
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
    budget_s: float | None = None,
) -> Iterator[tuple[TuningJob, Found]]:
    """Tune what is left of the jobs, in sessions of `folder`; yield what `read` finds in each.

    Why a job has nothing is noted in `failed`. `counted` is what a workload is a number of. The
    searches share `budget_s`, less what their finals take, by what jobs are worth. Raises
    `InputError` before the first where a kernel is not in this checkout, and `DeviceError`
    without a GPU.
    """
    for job in jobs:
        kernel_of(job)
    started_s, beyond_s = time.monotonic(), list[float]()
    for number, job in enumerate(jobs, start=1):
        say(f"{number} of {len(jobs)}: {job.name}, {len(job.workloads)} numbers of {counted}")
        session, own, began_s = folder / job.name, settings, time.monotonic()
        new = not (session / DATABASE).exists()
        if budget_s is not None:
            left = jobs[number - 1 :]
            # What the finals of those before took will be taken by these too.
            reserved_s = len(left) * sum(beyond_s) / max(1, len(beyond_s))
            left_s = budget_s - (began_s - started_s) - reserved_s
            share_s = left_s * job.worth / sum(tuning_job.worth for tuning_job in left)
            if share_s < LEAST_S and new:
                failed[job.name] = "no time of the budget is left for it"
                say(f"{job.name}: {failed[job.name]}")
                continue
            own = {**settings, "time_s": max(LEAST_S, share_s)}
        try:
            for told in tune_job(job, session, progress, own):
                say(f"{job.name}: {told}")
            found = read(session)
        except TunerError as error:
            if isinstance(error, DeviceError) and not (session / DATABASE).exists():
                raise  # no device was opened: there is none for the others either
            say(f"{job.name}: {error}")
            failed[job.name] = str(error)
            continue
        # One begun before keeps its time: it is no measure of the others.
        if budget_s is not None and new:
            beyond_s.append(max(0.0, time.monotonic() - began_s - own["time_s"]))
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
            kept, renewed, before_s = [], dict[str, object](), config.time_s
            if before_s != settings.get("time_s"):
                kept.append(f"{before_s:g} s of a --budget" if before_s else "no --budget")
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
        trials = opened.trials()
    broken = [trial for trial in trials if trial.status in BROKEN]
    if broken:
        listed = session / FAILED
        lines = (
            f"{trial.workload}: {trial.config}: {trial.status}: {trial.reason}" for trial in broken
        )
        atomic_write(listed, "".join(f"{' '.join(line.split())}\n" for line in lines))
        counts = Counter(trial.status.value for trial in broken).most_common()
        how = ", ".join(f"{count} {status}" for status, count in counts)
        yield f"{len(broken)} of {len(trials)} configs failed and were skipped ({how}): {listed}"


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
    if isinstance(key, MoeKey) and key.dtype not in (None, "fp8_w8a8"):
        return f"{key.dtype} cannot be tuned"
    plain = isinstance(key, MoeKey) and key.dtype is None
    if not (plain or key.block_shape in BLOCKS) or (isinstance(key, MoeKey) and key.per_channel):
        return "only bf16, and fp8 in blocks of 128 by 128 or 32 by 32, can be tuned"
    return ""


def _job_of(file: EngineFile, batches: Sequence[int], *, two: bool) -> TuningJob:
    key, operators = file.needed.key, dict[str, str]()
    small = key.block_shape == (32, 32)
    if isinstance(key, BlockFp8Key):
        kernel, axes, size = "w8a8_block_fp8", {"N": key.n, "K": key.k}, key.n * key.k
        name = f"block-fp8{'32' * small}-N{key.n}-K{key.k}"
        operators |= {"SCALES": "block32"} if small else {}
    else:
        kernel, axes = f"fused_moe{'_block32' * small}", _axes_of(file.needed, key)
        weights = "bf16" if key.dtype is None else "fp8_block"
        experts = f"E{axes['E']}-N{axes['N']}-K{axes['K']}"
        routes = f"top{axes['TOP_K']}-ep{axes['EP']}"
        name = f"moe-{weights}{'32' * small}-{experts}-{routes}{'-two' * two}"
        operators |= {"PART": "both", "ROUTING": "real", "CONFIGS": "two" if two else "one"}
        operators |= {} if small else {"WEIGHTS": weights}
        size = 3 * key.intermediate * axes["K"] * min(key.experts, axes["TOP_K"] * 8)
    workloads = tuple(
        ",".join(f"{name}={size}" for name, size in {"M": tokens, **axes}.items())
        for tokens in batches
    )
    return TuningJob(name, kernel, operators, workloads, size * max(1, len(file.models)))


def _axes_of(needed: Needed, key: MoeKey) -> dict[str, int]:
    own = dict(needed.axes)
    for axis, name in {"K": "hidden_size", "TOP_K": "num_experts_per_tok"}.items():
        if not own.get(axis):
            raise InputError(
                f"`{name}` is None, which the shapes of {needed.layer} need",
                remedy="it is a whole number from 1 on in a model's config.json",
            )
    return {"E": key.experts, "N": key.intermediate, **own}


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
        "models": list(file.models),
    }


def lines_of(
    files: Sequence[EngineFile], engine: Engine, where: str, *, two: bool
) -> Iterator[str]:
    """List the files for a terminal, with what is to be known of each, and where they belong."""
    lacking = {file.wanted: refusal(file.needed.key) for file in files if file.is_to_make(two=two)}
    refused = sum(map(bool, lacking.values()))
    others = f", {refused} cannot be made" if refused else ""
    every = len({file.wanted for file in files})
    yield f"{TITLES[engine]}, {where}: {len(lacking) - refused} of {every} files to make{others}"
    wide = max((len(file.needed.layer) for file in files), default=0)
    several = len({model for file in files for model in file.models}) > 1
    for file in files:
        of = f"  ({', '.join(file.models)})" if several else ""
        yield f"{file.state.value:7}  {file.needed.layer:{wide}}  {file.wanted.name}{of}"
        remarks = [file.remark] if file.remark else []
        if file.state is FileState.THERE:
            if isinstance(file.needed.key, MoeKey) and not file.triton:
                remarks.append("it does not say for which Triton")
        else:
            if file.state is FileState.STALE:
                remarks.append(f"only for Triton {file.triton}: {file.found}")
            if file.optional and not two:
                remarks.append("optional (--two): it has the first product's configs")
            elif why := refusal(file.needed.key):
                remarks.append(f"cannot be made: {why}")
        yield from (f"{'':7}  {'':{wide}}    {remark}" for remark in remarks)
    folders = dict.fromkeys(
        file.wanted.parent for file in files if file.state is not FileState.THERE
    )
    if folders:
        yield "\nthey belong into"
        yield from (f"  {folder}" for folder in folders)
