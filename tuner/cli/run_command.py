"""`tune KERNEL.cu`: search for the best config of every workload, and prove it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import resumed_by, stdout_kept_for_result, terminated_as_interrupted
from tuner.model.settings import AGENTS, AUTO, DEFAULT_ROUNDS, ENOUGH

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.app.open import OpenRun
    from tuner.app.plan import RunOptions
    from tuner.app.run import FinishedRun
    from tuner.model.cluster import ClusterSettings
    from tuner.model.settings import RunSettings

WORDS = "tuner.cli.words"
# Where there is no terminal to fit into: a config then takes two or three lines.
FILE_COLUMNS = 140


class TopLevelCommand(click.Command):
    """A command that calls itself by the program's name alone, and remembers its words."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Make a context of its own, as if the program had no other commands."""
        words = tuple(args)
        name = info_name if parent is None else parent.info_name
        context = super().make_context(name, args, None, **extra)
        context.meta[WORDS] = words
        return context


@click.command(
    name="run",
    cls=TopLevelCommand,
    hidden=True,
    options_metavar="[OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("kernel", metavar="KERNEL.cu", required=False, type=click.Path(path_type=Path))
@options.kernel("kernel_name")
@options.instantiate
@options.include
@options.space
@click.option(
    "--template", type=options.FILE, help="The template; by default the one that the space names."
)
@click.option(
    "--device",
    metavar="DEVICE",
    default="auto",
    help="auto (a GPU if there is one, else a recording), cuda, cuda:N, hip, hip:N (AMD's), "
    "recorded, recorded:FILE, host (the CPU: it verifies, its times mean nothing) or "
    "command:PROGRAM (yours times).",
)
@options.gpus
@click.option(
    "--searcher",
    metavar="SEARCHER",
    type=options.searcher,
    default="auto",
    help="auto, exhaustive, random, optuna or kernel_tuner:<strategy>.",
)
@options.count(
    "--trials",
    help="How many configs to try on each workload; by default 100, or all where under 200 are "
    "valid.",
)
@options.enough(ENOUGH)
@options.time(help="Stop searching after this time in all: 90s, 5m, 1h30m.")
@options.prune
@click.option(
    "--keep-bits",
    is_flag=True,
    help="Only configs whose outputs have, bit for bit, those of the space's default config.",
)
@click.option(
    "--objective",
    type=click.Choice(["time", "energy", "edp"]),
    default="time",
    help="What to minimize: time, energy above idle, or edp (energy times time). The last two take "
    "minutes longer.",
)
@options.surroundings
@options.peers("Compare with")
@options.variants_within
@options.max_variants
@click.option(
    "--seed",
    metavar="N",
    type=options.seed,
    default="0",
    help="The seed of the search; 0 by default.",
)
@options.workload(help="Tune for this workload instead of those in the space; repeatable.")
@options.operator(help="The variant of the operator to tune, such as ACTIVATION=gelu; repeatable.")
@options.session(help="The folder for all results; by default a new one under sessions/.")
@options.resume()
@options.trust
@options.store
@options.copy_session
@click.option(
    "--agent",
    type=click.Choice(AGENTS),
    default=AUTO,
    help="Who writes further templates: openai (needs --model), files (needs --exchange) or "
    "literal, which only widens ranges.",
)
@click.option("--model", metavar="NAME", help="The model to ask, at OPENAI_BASE_URL.")
@options.count(
    "--rounds",
    type=click.IntRange(min=0),
    help=f"How many templates the agent may write; {DEFAULT_ROUNDS} by default, 0 for literal.",
)
@options.policy
@options.count(
    "--max-tokens",
    help="The most tokens that the model may read and write in all.",
)
@click.option(
    "--max-cost",
    metavar="MONEY",
    type=click.FloatRange(min=0, min_open=True),
    help="The most that the model may cost in all; needs --prices.",
)
@click.option("--prices", type=options.FILE, help="A YAML file of prices per million tokens.")
@click.option(
    "--exchange",
    metavar="DIR",
    type=options.folder,
    help="The folder where --agent files writes requests and reads answers.",
)
@click.option(
    "--wait",
    metavar="TIME",
    type=options.seconds,
    help="How long --agent files waits for an answer; by default for ever.",
)
@options.sources(help="A folder that the agent may read, such as a CUTLASS checkout; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only the results.")
@options.jobs()
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Measure and compile on the workers (`tune worker`) of the Dask scheduler there.",
)
@click.option(
    "--gpu-model",
    metavar="NAME",
    default="",
    help="Which GPUs of the cluster to use, where it has several models: a part of the name.",
)
@options.token
@options.tls
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Find the best config of KERNEL.cu for every workload and prove it against the baseline."""
    options.require_one_choice(values["variants_within"], values["max_variants"])
    from tuner.app.plan import RunOptions

    settings = options.settings_of(context, values)
    run_options = RunOptions(
        session=values["session"],
        jobs=values["jobs"],
        store=values["store"],
        copy_session=values["copy_session"],
        wait_s=values["wait"],
        command=(program_name(), *context.meta[WORDS]),
        say=_say,
        may_run=options.asker(values["trust"]),
        kernel=values["kernel_name"],
        instantiate=values["instantiate"],
        include=values["include"],
        cluster=_cluster(values),
        resume_command=(*_copying_words(values), *_cluster_words(values)),
    )
    as_json, quiet = values["as_json"], values["quiet"]
    with terminated_as_interrupted():
        with stdout_kept_for_result(as_json):
            done = _run(values, settings, run_options, _console(stderr=as_json), quiet and as_json)
        if as_json:
            from tuner.cli.view import agent_object
            from tuner.report.terminal import json_of

            agent = {"agent": agent_object(done.data, done.failure)} if done.data.author else {}
            click.echo(json.dumps(json_of(done.data) | agent))
        if done.failure is not None:
            raise done.failure


# What goes with --cluster, and says again how to reach it when a run is resumed.
_OF_CLUSTER = ("cluster", "gpu_model", "token_file", "tls_ca", "tls_cert", "tls_key")


def _cluster(values: dict[str, Any]) -> ClusterSettings | None:
    tls = options.tls_files(values["tls_ca"], values["tls_cert"], values["tls_key"])
    if values["cluster"] is None:
        given = [name for name in _OF_CLUSTER if values[name]]
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise click.UsageError(f"{names} needs --cluster ADDRESS")
        return None
    from tuner.model.cluster import ClusterSettings

    return ClusterSettings(values["cluster"], values["token_file"], tls, values["gpu_model"])


def _cluster_words(values: dict[str, Any]) -> tuple[str, ...]:
    given = [(name, values[name]) for name in _OF_CLUSTER if values[name]]
    return tuple(word for name, v in given for word in (f"--{name.replace('_', '-')}", str(v)))


def _copying_words(values: dict[str, Any]) -> tuple[str, ...]:
    """Spell out what a resumed run needs to go on with the session's copy."""
    if not values["copy_session"]:
        return ()
    from tuner.session.database import without_password

    store = values["store"]
    named = () if store is None else ("--store", without_password(store))
    return (*named, "--copy-session")


def _say(text: str) -> None:
    click.echo(text, err=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    return console


def _run(
    values: dict[str, Any],
    settings: RunSettings,
    run_options: RunOptions,
    console: Console,
    silent: bool,
) -> FinishedRun:
    """Run to the end, show it, and write the report."""
    from tuner.app.environment import headline
    from tuner.app.run import run
    from tuner.cli.view import make_view, print_end, write_report

    with ExitStack() as stack:
        view = stack.enter_context(make_view(console, quiet=values["quiet"]))

        def opened(started: OpenRun) -> None:
            if not silent:
                console.print(headline(started.device), markup=False, soft_wrap=True)
            if started.warning:
                # Told before the hours of the search, and once more by the error that ends the run.
                _say(f"Warning: {started.warning}; the run goes on without it")

        done = run(
            values["kernel"],
            settings,
            run_options,
            view,
            resume=values["resume"],
            opened=opened,
        )
    # A session that is complete makes its report anew when it is resumed.
    with resumed_by((*run_options.resume_command, "--resume", str(done.folder))):
        write_report(done.data, done.folder)
        if not silent:
            print_end(done.data, done.folder, console, resumable=done.failure is not None)
    return done
