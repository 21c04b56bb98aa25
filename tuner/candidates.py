"""The candidates of one run, each with the evaluator that tries it."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.compiler.base import Compiler
from tuner.device.base import Device
from tuner.evaluate import Candidate, Evaluator
from tuner.plan import Plan


class Candidates:
    """Plans by the name of their candidate, in the order in which they came."""

    def __init__(self, plan: Plan, compiler: Compiler, device: Device) -> None:
        self._compiler, self._device = compiler, device
        self._plans: dict[str, Plan] = {}
        self._evaluators: dict[str, Evaluator] = {}
        self.add(plan)

    def add(self, plan: Plan) -> None:
        """Add a candidate; `plan` has its template, its space and its launches."""
        self._plans[plan.candidate] = plan
        self._evaluators[plan.candidate] = self.of(plan)

    def of(self, plan: Plan) -> Evaluator:
        """Make the evaluator of a plan that is no candidate yet."""
        return evaluator_of(plan, self._compiler, self._device)

    def plan(self, name: str) -> Plan:
        """Return the plan of a candidate."""
        return self._plans[name]

    def evaluator(self, name: str) -> Evaluator:
        """Return what tries a candidate's configs."""
        return self._evaluators[name]

    @property
    def plans(self) -> Sequence[Plan]:
        """All of them."""
        return tuple(self._plans.values())


def evaluator_of(plan: Plan, compiler: Compiler, device: Device) -> Evaluator:
    """Make the evaluator of a plan's candidate."""
    candidate = Candidate(plan.candidate, plan.space, plan.template)
    return Evaluator(plan.spec, candidate, plan.operators, compiler, device)
