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
from tuner.extensions.agents.open_agents import AgentAuthoring, authoring_for
from tuner.model.settings import GivenSettings
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
        given = cast("Agent | None", agent)
        return authoring_for(plan, options, device, compiler, stack, given)

    def restore(self, plan: Plan, session: Session, candidates: Candidates) -> None:
        restore(plan, session, candidates)


AUTHORS = RoundAuthors()
