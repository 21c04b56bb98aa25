"""Have an agent write the first kernel of a problem, check each answer, and return its mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tuner.extensions.agents.files import (
    PROBLEM,
    REQUEST,
    FilesAgent,
    read_answer_file,
    refused_aside,
    written,
)
from tuner.extensions.agents.openai import Dialogue, OpenAIAgent
from tuner.extensions.agents.prompts import prompt
from tuner.extensions.agents.replies import read_kernel, require_whole, well_formed
from tuner.model.errors import AgentError, InputError, ReplyError
from tuner.session.events import Tool

REPAIRS = 3
KERNEL = "kernel.cu"


class KernelWriter(Protocol):
    """An author of a whole CUDA source; both raise `ReplyError` for a reply that holds none."""

    def write(self, request: str) -> str:
        """Write the source that a request asks for."""

    def rewrite(self, problem: str) -> str:
        """Write it again, after what was wrong with the last one."""


def writer_of(agent: object, name: str) -> KernelWriter | None:
    """Let an agent write the kernel of the problem `name`; None for one that can't."""
    if isinstance(agent, OpenAIAgent):
        return ModelWriter(agent)
    if isinstance(agent, FilesAgent):
        return FolderWriter(agent, agent.exchange / f"kernel-{name}")
    return None


def first_kernel(
    writer: KernelWriter,
    request: str,
    check: Callable[[str], None],
    refused: Callable[[int, str, str], None],
) -> str:
    """Have a source written until `check` raises no `InputError` for it, at most four times.

    `refused` is told of each source that is not taken: its number, the source, and why. Raises
    `AgentError` with the last reason, and where the agent cannot go on.
    """
    problem = ""
    for attempt in range(1, REPAIRS + 2):
        source = ""
        try:
            source = writer.rewrite(problem) if problem else writer.write(request)
            check(source)
        except (ReplyError, InputError) as error:
            problem = well_formed(str(error))
            refused(attempt, source, problem)
        else:
            return source
    raise AgentError(
        f"no right kernel was written in {REPAIRS + 1} attempts; of the last one: {problem}",
        remedy="write it by hand: `tune init` of the problem writes a skeleton",
    )


class _Unkept:
    """A transcript that is over when the kernel is written: there is no session yet."""

    def again(self) -> None:
        return None

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Forget it; the agent's budget has counted it already."""


class _NoTools:
    def tools(self) -> Sequence[Tool]:
        return ()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"there is no tool {name!r}"


class ModelWriter:
    """A model writes: one conversation, in which each reply is one fenced block."""

    def __init__(self, agent: OpenAIAgent) -> None:
        self._dialogue = Dialogue(agent.client, _NoTools(), _Unkept())

    def write(self, request: str) -> str:
        self._dialogue.say("user", request)
        return read_kernel(self._dialogue.reply())

    def rewrite(self, problem: str) -> str:
        self._dialogue.say("user", prompt("rewrite_kernel", problem=problem))
        return read_kernel(self._dialogue.reply())


class FolderWriter:
    """Somebody writes `kernel.cu` beside `request.md`, in a folder of the exchange."""

    def __init__(self, agent: FilesAgent, folder: Path) -> None:
        self._agent, self._folder = agent, folder

    def write(self, request: str) -> str:
        written(self._folder / REQUEST, request + "\n")
        return self._awaited()

    def rewrite(self, problem: str) -> str:
        aside = refused_aside(self._folder, (KERNEL,))
        again = f"Write {KERNEL} again; what was refused is in {aside.name}."
        written(self._folder / PROBLEM, f"{problem}\n\n{again}\n")
        return self._awaited()

    def _awaited(self) -> str:
        if not self._agent.wait_for(self._folder, (KERNEL,), "start again"):
            raise AgentError(
                "it was stopped before the kernel was written",
                remedy=f"to go on, remove {self._agent.stop} and start again",
            )
        text, problem = read_answer_file(self._folder / KERNEL)
        if problem:
            raise ReplyError(problem)
        require_whole(text, "kernel")
        (self._folder / PROBLEM).unlink(missing_ok=True)
        return text


def request_for(problem: Path, text: str, skeleton: str, sizes: Sequence[str]) -> str:
    """Write what is asked: the problem's text, the kernel's signature, the sizes it runs on."""
    return prompt("first_kernel", problem=problem.name, text=text, skeleton=skeleton, sizes=sizes)
