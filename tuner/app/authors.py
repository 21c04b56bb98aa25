"""Who writes further candidates in rounds: an extension."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from tuner import plugins

if TYPE_CHECKING:
    from tuner.app.plan import RunOptions
    from tuner.compiler.base import Compiler
    from tuner.device.base import Device
    from tuner.model.errors import AgentError
    from tuner.model.settings import GivenSettings
    from tuner.session.session import Session
    from tuner.space.plan import Plan
    from tuner.tuning.evaluator import Candidates
    from tuner.tuning.run import Run

    # A session's rounds, run or resumed: what ended them too early, None where nothing did.
    RunRounds = Callable[[Run], AgentError | None]


class Authoring(Protocol):
    """Who will write in a run, with all that serves it."""

    def early_warning(self, session: Session, rounds: int) -> str:
        """Where a round is left, ask whether the agent can be had; say why not, "" if so."""

    @property
    def run_rounds(self) -> RunRounds: ...


@runtime_checkable
class Authors(Protocol):
    """What a run asks of the extension whose agents write; an `agent` is known to it alone."""

    def kernel_for(
        self, problem: Path, settings: GivenSettings, options: RunOptions, agent: object
    ) -> tuple[Path, object]:
        """Give the kernel of a problem, written where there is none yet, and its agent."""

    def prepare(
        self,
        plan: Plan,
        options: RunOptions,
        device: Device,
        compiler: Compiler,
        stack: ExitStack,
        agent: object,
    ) -> Authoring | None:
        """Prepare who writes; None where no round is asked for. The stack closes what is opened."""

    def restore(self, plan: Plan, session: Session, candidates: Candidates) -> None:
        """Take up the candidates that a session's rounds have made."""


def authors() -> Authors:
    """Import the extension whose agents write."""
    found: Authors = plugins.load(plugins.AUTHORS, "agents", Authors)
    return found
