"""`tune KERNEL.cu`: search for the best config of every workload, and prove it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.app.environment import program_name
from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm, resumed_by, stdout_kept_for_result
from tuner.model.settings import GivenSettings, ReachSettings, option_of, settings_in, words_of

if TYPE_CHECKING:
    from tuner.app.open import OpenRun
    from tuner.app.plan import RunOptions
    from tuner.app.run import FinishedRun
    from tuner.cli.console import Console
    from tuner.model.cluster import ClusterSettings

WORDS = "tuner.cli.words"


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
@click.argument("source", metavar="KERNEL.cu", required=False, type=click.Path(path_type=Path))
@options.settings(None, None, "session")
@options.resume
@options.trust
@options.settings(None, "store", "sources")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print only the results.")
@options.settings(None, "jobs")
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Find the best config of KERNEL.cu for every workload and prove it against the baseline."""
    options.require_one_choice(values["variants_within"], values["max_variants"])
    from tuner.app.plan import RunOptions
    from tuner.cli.console import Console, fit_to_file

    settings = options.settings_of(context, values)
    # Collect what a resumed run needs to reach the cluster, and to go on with the copy.
    again = _reach(values)
    if values["copy_session"]:
        from tuner.session.database import without_password

        again |= {"store": values["store"] and without_password(values["store"])}
        again |= {"copy_session": True}
    run_options = RunOptions(
        **options.call_settings_of(values),
        command=(program_name(), *context.meta[WORDS]),
        say=options.say,
        may_run=options.asker(values["trust"]),
        cluster=_cluster(values),
        resume_command=tuple(words_of(again)),
    )
    as_json, quiet = values["as_json"], values["quiet"]
    with interrupt_on_sigterm():
        with stdout_kept_for_result(as_json):
            console = Console(stderr=as_json)
            fit_to_file(console)
            following: tuple[str, ...] = context.obj or ()
            done = _run(values, settings, run_options, console, quiet and as_json, following)
        if as_json:
            from tuner.cli.ending import agent_object
            from tuner.report.terminal import json_of

            agent = {"agent": agent_object(done.data, done.failure)} if done.data.author else {}
            click.echo(json.dumps(json_of(done.data) | agent))
        if done.failure is not None:
            raise done.failure


def _reach(values: dict[str, Any]) -> dict[str, Any]:
    names = [stated.name for stated in settings_in(ReachSettings)]
    return {name: values[name] for name in names if values[name]}


def _cluster(values: dict[str, Any]) -> ClusterSettings | None:
    tls = options.tls_files(values["tls_ca"], values["tls_cert"], values["tls_key"])
    given = _reach(values)
    if not values["cluster"]:
        if given:
            raise click.UsageError(f"{', '.join(map(option_of, given))} needs --cluster ADDRESS")
        return None
    from tuner.model.cluster import ClusterSettings

    gpu_model = values["gpu_model"] or ""
    return ClusterSettings(values["cluster"], tls, gpu_model)


def _run(
    values: dict[str, Any],
    settings: GivenSettings,
    run_options: RunOptions,
    console: Console,
    silent: bool,
    following: tuple[str, ...],
) -> FinishedRun:
    """Run to the end, show it, and write the report."""
    from tuner.app.environment import headline
    from tuner.app.run import run
    from tuner.cli.console import is_wide
    from tuner.cli.ending import print_end, print_so_far, write_report
    from tuner.cli.view import make_view
    from tuner.model.errors import AwaitedError, Interrupted

    folders: list[Path] = []
    view = make_view(console, quiet=values["quiet"])

    def announce_run(started: OpenRun) -> None:
        folders.append(started.session.directory)
        if not silent:
            console.print(headline(started.device), soft_wrap=is_wide(console))
        if started.warning:
            # Told before the hours of the search, and once more by the error that ends the run.
            options.say(f"Warning: {started.warning}; the run goes on without it")

    source, resume = values["source"], values["resume"]
    try:
        with view:
            done = run(source, settings, run_options, view, resume=resume, opened=announce_run)
    except Interrupted:
        for folder in () if silent else folders:
            print_so_far(folder, console)
        raise
    # A session that is complete makes its report anew when it is resumed.
    with resumed_by((*run_options.resume_command, "--resume", str(done.folder))):
        if not (run_options.step and isinstance(done.failure, AwaitedError)):
            write_report(done.data, done.folder)
        if not silent:
            resumable = done.failure is not None
            print_end(done.data, done.folder, console, resumable=resumable, following=following)
    return done
