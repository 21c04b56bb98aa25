"""What a run asks of agents; implements `Authors`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import cast

from tuner.app.plan import RunOptions
from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.extensions.agents.base import Agent
from tuner.extensions.agents.history import restore
from tuner.extensions.agents.open_agents import AgentAuthoring, agent_of
from tuner.extensions.agents.profiling import profiling_for
from tuner.model.errors import DeviceError
from tuner.model.languages import refuse_opencl
from tuner.model.settings import LITERAL, GivenSettings
from tuner.session.session import Session
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates


class RoundAuthors:
    """Agents that write candidates in rounds, and kernels for problems that have none."""

    def kernel_for(
        self, problem: Path, settings: GivenSettings, options: RunOptions, agent: object
    ) -> tuple[Path, object]:
        from tuner.extensions.agents.first_kernel import kernel_for

        return kernel_for(problem, settings, options, cast("Agent | None", agent))

    def prepare(
        self,
        plan: Plan,
        options: RunOptions,
        device: Device,
        compiler: Compiler,
        stack: ExitStack,
        agent: object,
    ) -> AgentAuthoring | None:
        """Prepare who writes, an agent made here unless it is given.

        Raises `DeviceError` for a recording, which knows no other template than its own, and
        `InputError` for settings of the agent that cannot be right.
        """
        config = plan.config
        if not config.rounds:
            return None
        refuse_opencl(plan.spec.source, "an agent, which writes CUDA,")
        if device.info.recorded and config.agent != LITERAL:
            raise DeviceError(
                "a recording answers only for the template that it was made with, and "
                f"{config.agent} writes others",
                remedy="use --device cuda on a machine with a GPU, or --device host to try it on a "
                "CPU",
            )
        author = cast("Agent | None", agent) or agent_of(config, options)
        profiling = profiling_for(plan, device, compiler, stack)
        return AgentAuthoring(author, plan, device, profiling)

    def restore(self, plan: Plan, session: Session, candidates: Candidates) -> None:
        restore(plan, session, candidates)


AUTHORS = RoundAuthors()
