"""`tune fleet`: list and make the config files that an engine lacks for a model on this GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, require_writable, resumed_by
from tuner.model.errors import DeviceError, InputError, WorkerError
from tuner.model.settings import ENOUGH, ENOUGH_OF_A_FLEET, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tuner.cli.view import View
    from tuner.extensions.engines.configs.files import Engine
    from tuner.extensions.engines.configs.found import EngineFile, EngineFolders
    from tuner.extensions.engines.fleet import TuningJob
    from tuner.model.progress import Progress
    from tuner.model.settings import GivenSettings

ENGINES = ("sglang", "vllm")
# Of a budget, at most.
SHARE_OF_PROOFS = 0.25
DTYPES = ("bfloat16", "float16", "float32", "fp8_w8a8")
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("fleet")
@click.argument(
    "models",
    metavar="MODEL...",
    type=click.Path(exists=True, path_type=Path),
    nargs=-1,
    required=True,
)
@click.option(
    "--invariant",
    is_flag=True,
    help="The table of the products of the engine's deterministic mode, in place of files: for all "
    "linear layers of one MODEL or several, with the same bits of a row at every number of rows.",
)
@click.option("--dry-run", is_flag=True, help="Only list the files, and say which are missing.")
@click.option(
    "--engine", type=click.Choice(ENGINES), default="sglang", help="Whose files; sglang by default."
)
@options.count("--tp", default=1, help="Tensor parallelism, in GPUs; 1 by default.")
@options.count("--ep", default=1, help="Expert parallelism, in GPUs: 1, or as --tp.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="The dtype in which the engine serves the weights; by default config.json's.",
)
@click.option("--gpu", metavar="NAME", help="The GPU; by default the first one here.")
@options.setting("gpus")
@click.option("--triton", metavar="VERSION", help="Triton's version; by default the installed one.")
@click.option(
    "--engine-dir",
    metavar="DIR",
    type=_FOLDER,
    help="The engine's package, .../site-packages/sglang; by default the installed one.",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of your own configs that the engine is told of; by default what "
    "SGLANG_MOE_CONFIG_DIR or VLLM_TUNED_CONFIG_FOLDER names.",
)
@click.option(
    "--to",
    metavar="DIR",
    type=options.folder,
    default="engine_configs",
    show_default=True,
    help="Write the files below this folder, at the places where the engine looks.",
)
@click.option(
    "--sessions",
    metavar="DIR",
    type=options.folder,
    default="sessions/fleet",
    show_default=True,
    help="The folder for the sessions, one a shape.",
)
@click.option(
    "--two",
    is_flag=True,
    help="Of SGLang: configs of its own for each of the experts' GEMMs, the second's in a file "
    "of theirs.",
)
@options.setting(
    "trials",
    help="Configs for each number of tokens; by default 100, then neighbours of the best.",
)
@options.setting(
    "enough",
    help=SETTINGS["enough"].help.replace(f"{ENOUGH:.1%}", f"{ENOUGH_OF_A_FLEET:.1%}"),
)
@options.setting("keep_bits")
@click.option(
    "--budget",
    type=options.seconds,
    metavar="TIME",
    help="A time for all shapes, such as 4h, shared by what each is worth.",
)
@click.option(
    "--traffic",
    metavar="TRACE",
    type=options.FILE,
    multiple=True,
    help="A step's timeline with shapes (`tune timeline`): what takes longest there is worth most, "
    "in place of what has the most weights; repeatable.",
)
@click.option(
    "--log",
    metavar="FILE",
    type=options.FILE,
    help="What the engine printed when it ran MODEL: the files that it said it lacks are listed, "
    "of any model.",
)
@click.option(
    "--no-proof", is_flag=True, help="Don't compare files that are there with the engine's default."
)
@options.as_json
def command(
    models: tuple[Path, ...],
    invariant: bool,
    dry_run: bool,
    engine: Engine,
    tp: int,
    ep: int,
    dtype: str | None,
    gpu: str | None,
    gpus: str | None,
    triton: str | None,
    engine_dir: Path | None,
    folder: Path | None,
    to: Path,
    sessions: Path,
    two: bool,
    trials: int | None,
    enough: float | None,
    keep_bits: bool,
    budget: float | None,
    traffic: tuple[Path, ...],
    log: Path | None,
    no_proof: bool,
    as_json: bool,
) -> None:
    """Make the config files that an engine lacks, or has for another Triton, for models.

    MODEL is a Hugging Face config.json, or the folder that it lies in. Each shape is tuned once, in
    a session of its own under --sessions: started again, the command goes on with what is left.
    """
    from tuner.cli.devices_command import list_gpus
    from tuner.extensions.engines.configs.files import require_release
    from tuner.extensions.engines.configs.found import files_of_models
    from tuner.extensions.engines.configs.winners import installed_triton
    from tuner.extensions.engines.fleet import lines_of, object_of, sessions_of

    if as_json and not dry_run:
        raise click.UsageError("--json is for --dry-run")
    if two and engine != "sglang":
        raise click.UsageError("--two is for SGLang: vLLM has no file for the second GEMM alone")
    if log is not None and len(models) > 1:
        raise click.UsageError("--log is of one model")
    gpu = gpu or next((one.name for one in list_gpus()), "")
    if not gpu:
        raise InputError(
            "no NVIDIA GPU found", remedy="name the one that the files are for: --gpu 'NVIDIA H200'"
        )
    triton = triton or installed_triton()
    require_release(triton)
    if not dry_run:
        _require_here(gpu, triton)
    given = {"gpus": gpus, "trials": trials, "enough": enough, "keep_bits": keep_bits}
    known = {name: value for name, value in given.items() if value is not None}
    own = sessions_of(sessions, gpu, triton, keep_bits=keep_bits)
    fleet = _Fleet(engine, gpu, triton, own, to, cast("GivenSettings", {"device": "cuda", **known}))
    listed = {"engine": engine, "gpu": gpu, "triton": triton, "tp": tp}
    if invariant:
        if any((ep > 1, dtype not in (None, "bfloat16"), two, keep_bits, budget, traffic, log)):
            raise click.UsageError(
                "--invariant is for linear layers in bf16: leave --ep, --dtype, --two, "
                "--keep-bits, --budget, --traffic and --log out"
            )
        _list_or_make_table(fleet, models, tp, listed if dry_run else None, as_json=as_json)
        return
    if not dry_run:
        _require_measured_with(engine, engine_dir, folder)
    places = _folders(engine, engine_dir, folder)
    files, without = files_of_models(
        models, places, gpu, triton, tp=tp, ep=ep, dtype=dtype, log=log
    )
    for error in without.values():
        click.echo(str(error), err=True)
    if as_json:
        objects = [object_of(file, two=two) for file in files]
        refused = {model: str(error) for model, error in without.items()}
        click.echo(json.dumps({**listed, "ep": ep, "files": objects, "refused": refused}))
    elif dry_run:
        where = f"{gpu}, Triton {triton}, tp {tp}, ep {ep}"
        click.echo("\n".join(lines_of(files, engine, where, two=two)))
    else:
        _make(fleet, files, two=two, proof=not no_proof, budget_s=budget, traces=traffic)
    if without:
        raise WorkerError(
            f"{len(without)} of {len(models)} models have no files",
            remedy="why is said above; the others' are listed or made",
        )


@dataclass(frozen=True, slots=True)
class _Fleet:
    """What files are made for and with, and where they and their sessions lie."""

    engine: Engine
    gpu: str
    triton: str
    sessions: Path
    to: Path
    settings: GivenSettings


def _make(
    fleet: _Fleet,
    files: Sequence[EngineFile],
    *,
    two: bool,
    proof: bool,
    budget_s: float | None,
    traces: Sequence[Path],
) -> None:
    """Prove the files that are there, then make those that are lacking or stale."""
    from tuner.extensions.engines.configs.files import place
    from tuner.extensions.engines.configs.winners import asked_with, tell_configs
    from tuner.extensions.engines.fleet import jobs_of, make, proofs_of, prove, refusal
    from tuner.extensions.engines.timeline.table import traffic_of

    traffic, began_s = traffic_of(traces) if traces else None, time.monotonic()
    # What vLLM has for its own kernels nothing here runs with.
    proofs = (
        proofs_of(files, fleet.sessions, traffic=traffic)
        if proof and fleet.engine == "sglang"
        else ()
    )
    jobs, refused = jobs_of(files, two=two, sessions=fleet.sessions, traffic=traffic)
    # What could not be written is found now, not once all is tuned.
    for needed in (file.needed for file in files if jobs or proofs):
        if refusal(needed.key):
            continue
        path = fleet.to / place(needed.key, fleet.engine, fleet.gpu, fleet.triton, down=needed.down)
        require_writable(path.parent, "--to")
        if path.exists() and not path.is_file():
            remedy = "move it away, or choose another place with --to"
            raise InputError("is in the place of a file to make", path=path, remedy=remedy)
    for why in refused:
        click.echo(f"cannot be made: {why}", err=True)
    made, failed = None, dict[str, str]()
    if jobs or proofs:
        with _tuning(fleet.settings) as view:

            def update(_: TuningJob, progress: Progress) -> None:
                view.update(progress)

            if proofs:
                failed |= prove(
                    proofs,
                    fleet.sessions,
                    fleet.triton,
                    fleet.settings,
                    say=click.echo,
                    progress=update,
                    budget_s=budget_s and budget_s * SHARE_OF_PROOFS,
                )
                jobs, _ = jobs_of(files, two=two, sessions=fleet.sessions, traffic=traffic)
            if jobs:
                made = make(
                    jobs,
                    fleet.sessions,
                    fleet.to,
                    fleet.engine,
                    fleet.triton,
                    fleet.settings,
                    say=click.echo,
                    progress=update,
                    python=asked_with(fleet.engine),
                    budget_s=budget_s and max(0.0, budget_s - (time.monotonic() - began_s)),
                )
                failed |= made.failed
    if made is not None and made.configs.files:
        tell_configs(made.configs, fleet.engine, fleet.to)
    if not jobs:
        click.echo("nothing to make")
    _require_all([*proofs, *jobs], failed, "have no file, or one that is not proved")
    if refused:
        raise WorkerError(
            f"{len(refused)} of {len(files)} files cannot be made",
            remedy="why is said above; the engine has a default for them",
        )


def _list_or_make_table(
    fleet: _Fleet,
    models: Sequence[Path],
    tp: int,
    listed: Mapping[str, object] | None,
    *,
    as_json: bool,
) -> None:
    """Make the table of deterministic modes, or list its products where something is `listed`."""
    from tuner.extensions.engines.configs.products import tell_table
    from tuner.extensions.engines.configs.winners import asked_with
    from tuner.extensions.engines.invariant_fleet import (
        jobs_of,
        lines_of,
        make,
        marks_of,
        object_of,
        wanted_products,
    )

    wanted = wanted_products(models, fleet.engine, fleet.sessions, tp=tp)
    if listed is not None:
        lines = lines_of(wanted, fleet.engine, fleet.gpu, f"Triton {fleet.triton}, tp {tp}")
        products = {"products": [object_of(product) for product in wanted]}
        click.echo(json.dumps({**listed, **products}) if as_json else "\n".join(lines))
        return
    require_writable(fleet.to, "--to")
    jobs = jobs_of(wanted, fleet.engine)
    with _tuning(fleet.settings) as view:
        table = make(
            jobs,
            fleet.sessions,
            fleet.to,
            fleet.engine,
            fleet.triton,
            fleet.settings,
            say=click.echo,
            progress=lambda _, one: view.update(one),
        )
    if table.table and table.table.products:
        tell_table(table.table, fleet.to, asked_with(fleet.engine))
        for line in marks_of(table.table):
            click.echo(line)
    _require_all(jobs, table.failed, "are not in the table")


@contextmanager
def _tuning(settings: GivenSettings) -> Iterator[View]:
    """Show progress, and say how to go on where it is stopped; raise where there is no GPU."""
    from tuner.cli.console import Console
    from tuner.cli.devices_command import list_gpus
    from tuner.cli.view import make_view
    from tuner.device.select import members_of

    if not list(list_gpus()):
        raise DeviceError(
            "no NVIDIA GPU was found",
            remedy="make the files where it is, or list them alone with --dry-run",
        )
    if (gpus := settings.get("gpus")) is not None:
        members_of("cuda", gpus)
    with ExitStack() as stack:
        stack.enter_context(interrupt_on_sigterm())
        # Not by `tune --resume`: that would go on with one shape, and write no file.
        stack.enter_context(resumed_by(tuple(sys.argv[1:])))
        yield stack.enter_context(make_view(Console(), quiet=False))


def _require_all(jobs: Sequence[TuningJob], failed: Mapping[str, str], what: str) -> None:
    if failed:
        raise WorkerError(
            f"{len(failed)} of {len(jobs)} shapes {what}: {', '.join(failed)}",
            remedy="what each lacks is said above; started again, the command goes on with them",
        )


def _require_here(gpu: str, triton: str) -> None:
    """Raise `InputError` unless what is measured here is what the files will say."""
    from tuner.cli.devices_command import list_gpus
    from tuner.extensions.engines.configs.winners import installed_triton

    found = next((one.name for one in list_gpus()), gpu)
    if found != gpu:
        raise InputError(
            f"files for {gpu!r} cannot be made on {found!r}",
            remedy="leave --gpu out, or list them alone with --dry-run",
        )
    try:
        here = installed_triton()
    except InputError:
        return  # what lacks it says so once it runs
    if here != triton:
        raise InputError(
            f"files for Triton {triton} cannot be made with Triton {here}",
            remedy="leave --triton out, or list them alone with --dry-run",
        )


def _require_measured_with(engine: Engine, package: Path | None, own: Path | None) -> None:
    """Raise `InputError` unless files are listed of the engine that the baseline runs with."""
    from tuner.extensions.engines.configs.used import FOLDERS

    here = _find_engine(engine)
    if package is not None and here and package.resolve() != here.resolve():
        raise InputError(
            f"files are made beside the {engine} that is installed, {here}",
            path=package,
            remedy="leave --engine-dir out, or list them alone with --dry-run",
        )
    named = os.environ.get(FOLDERS[engine])
    if own is not None and own.resolve() != Path(named or "").resolve():
        raise InputError(
            f"the engine is told of {named or 'no folder of your own'}",
            path=own,
            remedy=f"set {FOLDERS[engine]} in place of --folder, or list them with --dry-run",
        )


def _folders(engine: Engine, package: Path | None, own: Path | None) -> EngineFolders:
    from tuner.extensions.engines.configs.files import TITLES
    from tuner.extensions.engines.configs.found import engine_folders
    from tuner.extensions.engines.configs.used import FOLDERS

    if own is None and (named := os.environ.get(FOLDERS[engine])):
        own = Path(named)
    package = package or _find_engine(engine)
    if package is None:
        raise InputError(
            f"{TITLES[engine]} is not installed here",
            remedy=f"name its package with --engine-dir .../site-packages/{engine}",
        )
    return engine_folders(engine, package, own)


def _find_engine(engine: Engine) -> Path | None:
    spec = importlib.util.find_spec(engine)
    places = list((spec and spec.submodule_search_locations) or ())
    return Path(places[0]) if places else None
