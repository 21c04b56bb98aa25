"""The arguments of the tools that lead a session, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from tuner.app.run import FinishedRun
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.history import memory_text
from tuner.extensions.agents.mcp_agent import Submission
from tuner.extensions.agents.replies import KNOWN_METRICS, MOST_EXPECTATIONS
from tuner.extensions.agents.tools.arguments import ToolArguments, schema
from tuner.model.errors import AgentError
from tuner.model.settings import RunSettings, offering, settings_in
from tuner.report.html import write_report
from tuner.report.sections.summary import headline, verdict
from tuner.report.terminal import config_lines, json_of, results_table
from tuner.session.events import Tool
from tuner.session.rounds import history
from tuner.session.session import Session

# What these hold is checked by `agent.replies`, for all agents alike.
_Expectations = Annotated[
    list[dict[str, Any]],
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": MOST_EXPECTATIONS,
            "items": {
                "type": "object",
                "properties": {
                    "metric": {"type": "string", "enum": list(KNOWN_METRICS)},
                    "factor": {"type": "number"},
                    "workload": {"type": "string"},
                },
                "required": ["metric", "factor"],
                "additionalProperties": False,
            },
        }
    ),
]


@offering("mcp", rounds=Annotated[int, Field(ge=1)])
class StartArguments(ToolArguments):
    """Start to tune a kernel, or go on with a session: the baseline and the kernel's own template
    are measured first. One session at a time. What is left out is as the server was started with.
    """

    kernel: str = Field("", description="The kernel's .cu file.")
    session: str = Field(
        "", description="New folder for all that is found. Default: one under sessions/."
    )
    resume: str = Field(
        "", description="Folder of a session to go on with; then no kernel is named."
    )

    @property
    def settings(self) -> dict[str, Any]:
        offered = (stated.name for stated in settings_in(RunSettings) if stated.mcp)
        return {name: value for name in offered if (value := getattr(self, name)) is not None}


class BriefingArguments(ToolArguments):
    """Read what the round at hand asks for: the kernel, how the candidates do, findings with
    advice, what was tried. Waits until the round is ready.
    """

    whole: bool = Field(
        False,
        description="Give the task, rules and formats again, which are the same in every round.",
    )


class SubmitArguments(ToolArguments):
    """Answer the round with a plan, a whole template and a whole search space. They are checked,
    searched and profiled; gives what is wrong with them, to be submitted again, or what came of
    the round.
    """

    template: str = Field(description="The whole template, without fences.")
    space: str = Field(description="The whole search space in YAML, without fences.")
    hypothesis: str | None = Field(
        None, description="What holds the base back, and the evidence for it."
    )
    change: str | None = Field(
        None, description="What the template does differently, and which parameters it has."
    )
    expectations: _Expectations | None = Field(
        None,
        description="What should move: a metric and its new value over the base's; `workload` is "
        "left out for all tuned ones.",
    )
    base: str | None = Field(
        None, description="The candidate that is built on, where the briefing leaves the choice."
    )
    reference: str | None = Field(
        None, description="A second candidate that something is taken from."
    )
    insist: bool | None = Field(
        None, description="true: have it searched however slow its default config is."
    )

    def submission(self) -> Submission:
        """Make what the run takes: the plan's fields that were given, and the answer."""
        plan = self.model_dump(exclude={"template", "space"}, exclude_none=True)
        return Submission(json.dumps(plan), AgentAnswer(self.template, self.space))


class StatusArguments(ToolArguments):
    """Say where the session stands: phase, trials, best times, and what came of each round."""


class FinishArguments(ToolArguments):
    """End the rounds: the best configs are measured against the baseline and verified once more.
    Gives the results and where they lie.
    """


# The docstrings are what the client reads of the tools.
LEADING: Mapping[str, type[ToolArguments]] = {
    "start": StartArguments,
    "status": StatusArguments,
    "briefing": BriefingArguments,
    "submit": SubmitArguments,
    "finish": FinishArguments,
}


def leading_tools() -> tuple[Tool, ...]:
    """List the tools that lead a session, in the order in which they are used."""
    return tuple(
        Tool(name, " ".join((model.__doc__ or "").split()), schema(model))
        for name, model in LEADING.items()
    )


REPORT = "report.html"
COLUMNS = 140


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: in words, and the results as `--json` prints them, None without any."""

    text: str
    data: Mapping[str, object] | None = None
    failed: bool = False


def recap(session: Session, number: int) -> str:
    """Tell what came of a round that is over, with all of the last problem where it failed."""
    records = [record for record in history(session) if record.number == number]
    if not records:
        return ""
    text = memory_text(records, comparable=not session.on_cpu)
    if records[0].candidate is None and records[0].problems:
        text += f"\n\nThe last answer was refused for:\n{records[0].problems[-1]}"
    return text


def conclude(done: FinishedRun, failure: AgentError | None) -> Ending:
    """Write the report of a run that is over and word its results; `failure` ended its rounds."""
    data, folder = done.data, done.folder
    lines = [headline(data).headline, f"session: {folder}"]
    if data.evaluator:
        lines.append(verdict(data))
    if data.results:
        from tuner.cli.console import Console

        console = Console(file=StringIO(), width=COLUMNS, color_system=None)
        with console.capture() as captured:
            console.print(results_table(data.results, width=COLUMNS))
        table = [line.rstrip() for line in captured.get().splitlines()]
        lines += ["", *table, *config_lines(data.results), "", f"tuned kernels: {folder / 'tuned'}"]
    try:
        write_report(data, folder / REPORT)
        lines.append(f"report: {folder / REPORT}")
    except OSError as error:
        lines.append(f"the report cannot be written: {error.strerror}: {folder / REPORT}")
    if failure is not None:
        lines += ["", str(failure)]
    return Ending("\n".join(lines), json_of(data), failed=failure is not None)
