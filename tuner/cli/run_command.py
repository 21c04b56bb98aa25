"""`tune KERNEL.cu`: search for the best config of every workload, and prove it."""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tuner.app.environment import program_name
from tuner.app.plans import AGENTS, AUTO, DEFAULT_ROUNDS
from tuner.cli import options
from tuner.cli.exits import stdout_kept_for_result, terminated_as_interrupted
from tuner.model.errors import AgentError

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.app.plans import Request
    from tuner.report.data import ReportData

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
@options.space()
@click.option(
    "--template", type=options.FILE, help="Template; otherwise the one that the space names."
)
@click.option(
    "--device",
    metavar="DEVICE",
    default="auto",
    help="auto (a GPU if there is one, else a recording), cuda, cuda:N, recorded, recorded:FILE "
    "or host (the CPU: to verify, not to time).",
)
@click.option(
    "--searcher",
    metavar="SEARCHER",
    type=options.searcher,
    default="auto",
    help="auto, exhaustive, random, optuna or kernel_tuner:<strategy>.",
)
@options.trials("Configs to try for each workload; all if under 200 are valid, else 100.")
@options.time("Stop after 90s, 5m or 1h30m in all.")
@click.option(
    "--objective",
    type=click.Choice(["time", "energy", "edp"]),
    default="time",
    help="What the winner is least in; energy above idle, or energy times time, take minutes more.",
)
@options.peers("Compare with")
@options.variants_within()
@options.max_variants()
@click.option("--seed", metavar="N", type=options.seed, default="0", help="Seed of the search; 0.")
@options.workload("Tune for this one instead of those in the space")
@options.operator("tune, such as ACTIVATION=gelu")
@options.session("Folder for all that is found; sessions/... else.")
@options.resume()
@options.store()
@click.option(
    "--agent",
    type=click.Choice(AGENTS),
    default=AUTO,
    help="Who writes further templates: openai (with --model), files (with --exchange) or literal, "
    "which only widens ranges.",
)
@click.option("--model", metavar="NAME", help="A model at OPENAI_BASE_URL, for --agent openai.")
@options.rounds(f"How often the agent may write; {DEFAULT_ROUNDS}, and 0 for literal.", least=0)
@options.policy()
@click.option(
    "--max-tokens",
    metavar="N",
    type=click.IntRange(min=1),
    help="Tokens that the model may read and write in all.",
)
@click.option(
    "--max-cost",
    metavar="MONEY",
    type=click.FloatRange(min=0, min_open=True),
    help="What the model may cost in all, by --prices.",
)
@click.option("--prices", type=options.FILE, help="YAML file of prices per million tokens.")
@click.option(
    "--exchange",
    metavar="DIR",
    type=options.folder,
    help="Folder where requests are written and answers are read, for --agent files.",
)
@click.option(
    "--wait", metavar="TIME", type=options.seconds, help="Wait so long for an answer; no end."
)
@options.sources("agent")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--quiet", is_flag=True, help="Show only the end.")
@options.jobs()
@click.pass_context
def command(context: click.Context, /, **values: Any) -> None:
    """Find the best config of KERNEL.cu for every workload and prove it against the baseline."""
    options.require_one_choice(values["variants_within"], values["max_variants"])
    from tuner.app.plans import Request
    from tuner.cli.view import agent_object
    from tuner.report.terminal import json_of

    given = (n for n in values if context.get_parameter_source(n) is ParameterSource.COMMANDLINE)
    words = (program_name(), *context.meta[WORDS])
    request = Request(**values, given=frozenset(given), words=words)
    kept = stdout_kept_for_result() if request.as_json else nullcontext()
    with terminated_as_interrupted():
        with kept, ExitStack() as stack:
            data, failure = _tune(request, _console(request), stack)
        if request.as_json:
            agent = {"agent": agent_object(data, failure)} if data.author else {}
            click.echo(json.dumps(json_of(data) | agent))
        if failure is not None:
            raise failure


def _console(request: Request) -> Console:
    from rich.console import Console

    console = Console(stderr=request.as_json, highlight=False)
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    return console


def _tune(
    request: Request, console: Console, stack: ExitStack
) -> tuple[ReportData, AgentError | None]:
    """Run to the end; what ended an agent's rounds too early comes back, for after the results."""
    from tuner.app.environment import headline
    from tuner.app.open import resumed, started
    from tuner.app.run import tune
    from tuner.cli.view import make_view, print_end, write_report
    from tuner.report.data import from_session

    run = (resumed if request.resume else started)(request, stack)
    session, silent = run.session, request.quiet and request.as_json
    if run.knowledge is not None:
        # Interrupted or not, what was found is kept.
        stack.callback(run.knowledge.keep, session)
    if not silent:
        console.print(headline(run.device), markup=False, soft_wrap=True)
    if run.warning:
        # Told before the hours of the search, and once more by the error that ends the run.
        click.echo(f"Warning: {run.warning}; the run goes on without it", err=True)
    failure: AgentError | None = None
    with make_view(console, quiet=request.quiet) as view:
        try:
            tune(
                run.plan,
                session=session,
                device=run.device,
                compiler=run.compiler,
                listener=view,
                watches=run.watches,
                author=run.author,
                meter=run.meter,
                knowledge=run.knowledge,
            )
        except AgentError as error:
            failure = error
    data = from_session(session, run.plan.spec)
    write_report(data, session.directory)
    if not silent:
        print_end(data, session.directory, console, resumable=failure is not None)
    return data, failure
