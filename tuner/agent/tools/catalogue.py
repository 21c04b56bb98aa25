"""Which tools there are, and what the agent is told of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.agent.base import Tool
from tuner.agent.tools import reading
from tuner.agent.tools.arguments import (
    Arguments,
    ChoiceArguments,
    NotesArguments,
    ReadArguments,
    RenderArguments,
    SearchArguments,
    SearchSourceArguments,
    schema,
)
from tuner.agent.tools.limits import Limits
from tuner.device.base import DeviceInfo

_DRAFT = (
    "`template` and `space` may hold a whole draft of yours; what is left out is taken from the "
    "`candidate`."
)


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool with the model of its arguments; `rest` says how to see what an answer cuts off."""

    tool: Tool
    model: type[Arguments]
    rest: str


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a session's device and profiler can do: a tool that they cannot serve isn't offered."""

    verifies: bool
    times: bool
    profiles: bool


def offers(info: DeviceInfo, can: Abilities, limits: Limits) -> tuple[Offer, ...]:
    """List the tools, always in the same order."""
    return (*_of_drafts(info, can, limits), *_of_texts(limits))


def _of_drafts(info: DeviceInfo, can: Abilities, limits: Limits) -> Iterator[Offer]:
    yield _offer(
        "render",
        "Show the CUDA that a template gives for one config.",
        RenderArguments,
        "ask for fewer lines with first_line and last_line",
    )
    yield _offer(
        "compile",
        f"Compile one config for {info.architecture}: errors with the template's lines, or "
        "registers, spills, shared memory, occupancy and its limiter, and what the machine code "
        "consists of.",
        ChoiceArguments,
    )
    if can.verifies:
        yield _offer(
            "verify",
            "Run one config with every kind of input and say whether its results are within the "
            "tolerances.",
            ChoiceArguments,
        )
    if can.times:
        whose = " The times are a CPU's." if info.on_cpu else ""
        yield _offer(
            "measure",
            f"Verify and time one config on a tuned workload, beside the baseline.{whose}",
            ChoiceArguments,
        )
    if can.profiles:
        yield _offer(
            "profile",
            "Profile one config on a tuned workload: what bounds it, its metrics, and findings "
            "with advice.",
            ChoiceArguments,
        )
    if can.times:
        yield _offer(
            "search",
            f"Search a space on one tuned workload with at most {limits.configs} configs, "
            f"{limits.round_configs} in a round: the best of them, and what failed. The whole "
            "search follows when your answer is accepted; this is to try an idea.",
            SearchArguments,
        )


def _of_texts(limits: Limits) -> Iterator[Offer]:
    yield _offer(
        "read_source",
        "Read the baseline, a candidate's template or space, or a file of CUDA's headers or of the "
        "user's folders of sources; list a folder.",
        ReadArguments,
        "ask for fewer lines with first_line and last_line",
    )
    yield _offer(
        "search_source",
        "Find a text in CUDA's headers and the user's folders of sources: up to "
        f"{limits.matches} lines with their places.",
        SearchSourceArguments,
    )
    notes = "; ".join(f"{name}: {reading.title(name)}" for name in reading.names())
    yield _offer("read_notes", f"Read a note on GPUs and on this program. {notes}.", NotesArguments)


def _offer(
    name: str, description: str, model: type[Arguments], rest: str = "ask for less"
) -> Offer:
    if "template" in model.model_fields:
        description = f"{description} {_DRAFT}"
    return Offer(Tool(name, description, schema(model)), model, rest)
