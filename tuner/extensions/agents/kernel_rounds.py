"""A problem instead of a kernel: take the kernel beside it, or have an agent write one."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tuner.app.environment import program_name
from tuner.app.instruments import compiler_for
from tuner.app.plan import RunOptions, agent_settings
from tuner.device.select import HOST, gpu_count, open_device
from tuner.extensions.agents.open_agents import agent_of
from tuner.model.errors import DeviceError, InputError
from tuner.model.run_config import RunConfig
from tuner.model.settings import AUTO, LITERAL, GivenSettings, read_settings
from tuner.process.files import read_text

if TYPE_CHECKING:
    from tuner.extensions.agents.base import Agent
    from tuner.extensions.draft.problems.statement import Statement

# Those of a refused attempt lie here, so that nothing that was paid for is lost.
REFUSED = Path("sessions")


def kernel_for(
    problem: Path, settings: GivenSettings, options: RunOptions, agent: Agent | None = None
) -> tuple[Path, Agent | None]:
    """Give the kernel of a problem, written by the settings' agent where there is none yet.

    The agent comes back, for what it has spent counts on. Raises `KernelError` for what states no
    problem, `InputError` where nobody is named who could write a kernel, `DeviceError` where it
    could not be checked, and `AgentError` where none is written that is right.
    """
    from tuner.extensions.draft.problems.kernel import skeleton
    from tuner.extensions.draft.problems.statement import statement_of
    from tuner.extensions.draft.space import write
    from tuner.space.blanks import require_filled

    stated, kernel = statement_of(problem), problem.with_suffix(".cu")
    # A skeleton that nobody has touched is none.
    if kernel.exists() and read_text(kernel) != skeleton(stated):
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
    device = _device(settings)
    agent = agent or agent_of(_config(problem, settings, values["agent"]), options)
    write(kernel, _written(stated, agent, device, options))
    options.say(f"wrote {kernel}")
    return kernel, agent


def _config(problem: Path, settings: GivenSettings, agent: str) -> RunConfig:
    # Of a run that has no search space yet: what says who writes, and for how much.
    asked = read_settings(settings)
    return RunConfig(
        space=problem,
        template=problem,
        workloads=(),
        agent=agent,
        model=asked.model or "",
        max_tokens=asked.max_tokens,
        max_cost=asked.max_cost,
        prices=None if asked.prices is None else Path(asked.prices),
        exchange=None if asked.exchange is None else Path(asked.exchange),
    )


def _device(settings: GivenSettings) -> str:
    name = read_settings(settings).device
    if name.startswith("recorded") or (name == AUTO and not gpu_count()):
        raise DeviceError(
            "nothing here can run a kernel that is yet to be written: no GPU was found"
            if name == AUTO
            else "a recording answers only for the template that it was made with",
            remedy="--device host checks it on the CPU",
        )
    return name


def _written(stated: Statement, agent: Agent, device: str, options: RunOptions) -> str:
    from tuner.extensions.agents.first_kernel import first_kernel, request_for, writer_of
    from tuner.extensions.draft.problems.kernel import skeleton
    from tuner.extensions.draft.space import write

    problem, name = stated.path, stated.path.stem
    writer = writer_of(agent, name)
    if writer is None:
        raise InputError(
            f"there is no kernel for it yet, and {agent.name} writes none",
            path=problem,
            remedy=f"write it: `{program_name()} init` of the problem makes a skeleton",
        )
    options.say(f"{agent.name} writes a kernel for {problem}")

    def check(source: str) -> None:
        _check(source, problem, device, options)

    def refused(attempt: int, source: str, reason: str) -> None:
        options.say(f"attempt {attempt}: refused: {reason.splitlines()[0]}")
        if source:
            write(REFUSED / f"{name}-refused-{attempt}.cu", source)

    sizes = [
        ", ".join(f"{axis}={size}" for axis, size in one.items())
        for one in (*stated.edge_cases, *stated.tuned, *stated.held_out)
    ]
    request = request_for(problem, read_text(problem), skeleton(stated), sizes)
    return first_kernel(writer, request, check, refused)


def _check(source: str, problem: Path, device: str, options: RunOptions) -> None:
    """Draft a space for a source, check it, and verify it as a baseline; raise `InputError`."""
    from tuner.app.check import check
    from tuner.compiler.cache import Cache
    from tuner.compiler.pool import NvrtcPool
    from tuner.extensions.draft.drafting import Asked, draft_source, require_one
    from tuner.extensions.draft.space import write

    with TemporaryDirectory() as made:
        folder = Path(made).resolve()
        kernel = folder / f"{problem.stem}.cu"
        write(kernel, source)
        try:
            with NvrtcPool(1, cache=Cache()) as pool:
                asked = Asked(problem=problem.resolve())
                drafted = draft_source(kernel, folder, asked, compiler=lambda: pool)
            space = require_one(drafted)
            drafted.require_filled("another attempt")
            check(space, sample=2, jobs=options.jobs)
            _verify(space, device, options.jobs)
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", "")) from error


def _verify(space: Path, device_name: str, jobs: int | None) -> None:
    """Compare the baseline with the problem, on small sizes alone where a CPU runs it."""
    from tuner.space.load import load_definition
    from tuner.space.template import Template
    from tuner.tuning.evaluator import Candidate, Evaluator
    from tuner.tuning.verification import LARGEST_HOST_BYTES

    definition = load_definition(space)
    spec = definition.spec
    sizes = (*spec.edge_cases, *spec.workloads)
    if device_name == HOST:
        sizes = tuple(one for one in sizes if spec.footprint_bytes(one) <= LARGEST_HOST_BYTES)
    with ExitStack() as stack:
        device = open_device(device_name, spec, {}, sizes)
        stack.callback(device.close)
        compiler = compiler_for(spec, device, jobs, stack)
        template = Template.load(spec.template, spec.include_dirs)
        candidate = Candidate("baseline", definition.space, template)
        evaluator = Evaluator(spec, candidate, {}, compiler, device)
        for workload in sizes:
            evaluator.verify_baseline(workload)
