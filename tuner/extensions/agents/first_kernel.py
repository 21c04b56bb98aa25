"""Take the kernel beside a problem, or have an agent write one and correct its mistakes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from tuner.app.check import check
from tuner.app.drafters import drafter
from tuner.app.environment import program_name
from tuner.app.instruments import compiler_for
from tuner.app.plan import RunOptions, agent_settings
from tuner.device.select import HOST, gpu_count, open_device
from tuner.extensions.agents.base import Agent
from tuner.extensions.agents.files import (
    PROBLEM,
    REQUEST,
    FilesAgent,
    read_answer_file,
    refused_aside,
    write_request,
)
from tuner.extensions.agents.open_agents import agent_of
from tuner.extensions.agents.openai import Dialogue, OpenAIAgent
from tuner.extensions.agents.prompts import prompt
from tuner.extensions.agents.replies import read_kernel, repair_surrogates, require_whole
from tuner.model.errors import AgentError, DeviceError, InputError, ReplyError, Untellable
from tuner.model.settings import AUTO, LITERAL, GivenSettings, RunConfig, read_settings
from tuner.process.files import read_text
from tuner.session.events import Tool
from tuner.space.blanks import require_filled
from tuner.space.load import load_definition
from tuner.space.template import Template
from tuner.tuning.evaluator import Candidate, Evaluator
from tuner.tuning.verification import LARGEST_HOST_BYTES

REPAIRS = 3
KERNEL = "kernel.cu"
# Sources of refused attempts lie here, so that nothing that was paid for is lost.
REFUSED = Path("sessions")


def kernel_for(
    problem: Path, settings: GivenSettings, options: RunOptions, agent: Agent | None = None
) -> tuple[Path, Agent | None]:
    """Give the kernel of a problem, written by the settings' agent where there is none yet.

    The agent comes back, for what it has spent counts on. Raises `KernelError` for what states no
    problem, `InputError` where nobody is named who could write a kernel, `DeviceError` where it
    could not be checked, and `AgentError` where none is written that is right.
    """
    task, kernel = drafter().read_problem(problem), problem.with_suffix(".cu")
    # A skeleton that nobody has touched is none.
    if kernel.exists() and read_text(kernel) != task.skeleton:
        require_filled(kernel)
        return kernel, agent
    values = agent_settings(settings, drafted=True)
    if agent is None and values["agent"] == LITERAL:
        raise InputError(
            f"there is no kernel for it yet: no {kernel}",
            path=problem,
            remedy=f"`{program_name()} init {shlex.quote(str(problem))}` writes a skeleton; or "
            "--model NAME or --exchange DIR name an agent that writes one",
        )
    device = read_settings(settings).device
    if not options.step:
        _require_runnable(device)
    if agent is None:
        asked = read_settings(settings)
        # Of a run that has no search space yet: what says who writes, and for how much.
        config = RunConfig(
            space=problem,
            template=problem,
            workloads=(),
            agent=values["agent"],
            model=asked.model or "",
            max_tokens=asked.max_tokens,
            max_cost=asked.max_cost,
            prices=None if asked.prices is None else Path(asked.prices),
            exchange=None if asked.exchange is None else Path(asked.exchange),
        )
        agent = agent_of(config, options)
    writer: KernelWriter
    if isinstance(agent, OpenAIAgent):
        writer = ModelWriter(agent)
    elif isinstance(agent, FilesAgent):
        writer = FolderWriter(agent, agent.exchange / f"kernel-{problem.stem}")
    else:
        raise InputError(
            f"there is no kernel for it yet, and {agent.name} writes none",
            path=problem,
            remedy=f"write it: `{program_name()} init` of the problem makes a skeleton",
        )
    options.say(f"{agent.name} writes a kernel for {problem}")

    def check(source: str) -> None:
        _require_runnable(device)
        _check_source(source, problem, device, options)

    def keep_refused(attempt: int, source: str, reason: str) -> None:
        options.say(f"attempt {attempt}: refused: {reason.splitlines()[0]}")
        if source:
            drafter().write(REFUSED / f"{problem.stem}-refused-{attempt}.cu", source)

    request = prompt(
        "first_kernel",
        problem=problem.name,
        text=read_text(problem),
        skeleton=task.skeleton,
        sizes=[", ".join(f"{axis}={n}" for axis, n in sizes.items()) for sizes in task.sizes],
    )
    drafter().write(kernel, first_kernel(writer, request, check, keep_refused))
    options.say(f"wrote {kernel}")
    return kernel, agent


def _require_runnable(device: str) -> None:
    if device.startswith("recorded") or (device == AUTO and not gpu_count()):
        raise DeviceError(
            "nothing here can run a kernel that is yet to be written: no GPU was found"
            if device == AUTO
            else "a recording answers only for the template that it was made with",
            remedy="--device host checks it on the CPU",
        )


def _check_source(source: str, problem: Path, device_name: str, options: RunOptions) -> None:
    """Draft a space for a source, check it, and verify it as a baseline; raise `InputError`."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        kernel = folder / f"{problem.stem}.cu"
        drafter().write(kernel, source)
        try:
            space = drafter().draft_for_problem(kernel, problem.resolve())
            check(space, sample=2, jobs=options.jobs)
            _verify(space, device_name, options.jobs)
        except Untellable as error:
            raise Untellable(error.message, path=problem, remedy=error.remedy) from error
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", "")) from error


def _verify(space: Path, device_name: str, jobs: int | None) -> None:
    """Compare the baseline with the problem, on small sizes alone where a CPU runs it.

    Not all that are small end there in time, such as a recurrence of many steps.
    """
    definition = load_definition(space)
    spec = definition.spec
    sizes = (*spec.edge_cases, *spec.workloads)
    if device_name == HOST:
        sizes = tuple(size for size in sizes if spec.footprint_bytes(size) <= LARGEST_HOST_BYTES)
    with ExitStack() as stack:
        device = open_device(device_name, spec, {}, sizes)
        stack.callback(device.close)
        compiler = compiler_for(spec, device, jobs, stack)
        template = Template.load(spec.template, spec.include_dirs)
        candidate = Candidate("baseline", definition.space, template)
        evaluator = Evaluator(spec, candidate, {}, compiler, device)
        for workload in sizes:
            may_last = device_name == HOST and workload in spec.workloads
            evaluator.verify_baseline(workload, may_last=may_last)


class KernelWriter(Protocol):
    """An author of a whole CUDA source; both raise `ReplyError` for a reply that holds none."""

    def write(self, request: str) -> str:
        """Write the source that a request asks for."""

    def rewrite(self, problem: str) -> str:
        """Write it again, after what was wrong with the last one."""


def first_kernel(
    writer: KernelWriter,
    request: str,
    check: Callable[[str], None],
    refused: Callable[[int, str, str], None],
) -> str:
    """Have a source written until `check` raises no `InputError` for it, at most four times.

    `refused` is told of each source that is not taken: its number, the source, and why. Raises
    `AgentError` with the last reason, and where the agent cannot go on; `Untellable` where the
    problem is at fault.
    """
    problem = ""
    for attempt in range(1, REPAIRS + 2):
        source = ""
        try:
            source = writer.rewrite(problem) if problem else writer.write(request)
            check(source)
        except Untellable:  # no other source would be taken
            raise
        except (ReplyError, InputError) as error:
            problem = repair_surrogates(str(error))
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
        write_request(self._folder / REQUEST, request + "\n")
        return self._await_kernel()

    def rewrite(self, problem: str) -> str:
        aside = refused_aside(self._folder, (KERNEL,))
        again = f"Write {KERNEL} again; what was refused is in {aside.name}."
        write_request(self._folder / PROBLEM, f"{problem}\n\n{again}\n")
        return self._await_kernel()

    def _await_kernel(self) -> str:
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
