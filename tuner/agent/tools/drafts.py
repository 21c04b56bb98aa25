"""From a tool's arguments to something that can be tried: plan, evaluator, workload, config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.agent.base import Answer
from tuner.agent.gate import drafted, find_mismatch
from tuner.agent.tools.arguments import ChoiceArguments, DraftArguments, WorkloadArguments, shown
from tuner.agent.tools.limits import Limits
from tuner.model.config import Config, Parameter, format_value
from tuner.model.errors import InputError, SessionError, SpaceError
from tuner.model.expressions import Value
from tuner.model.kernel import Workload
from tuner.model.trial import INITIAL
from tuner.search.pool import valid_configs
from tuner.session.session import Session
from tuner.space.load import workload_from_text
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator

DRAFT = "draft"
_PREFIX = "tool-"


@dataclass(frozen=True, slots=True)
class Draft:
    """A candidate, or a draft that may become one."""

    plan: Plan
    evaluator: Evaluator

    @property
    def name(self) -> str:
        """What it is called in a tool's answer."""
        return "the draft" if self.plan.candidate == DRAFT else f"`{self.plan.candidate}`"


@dataclass(frozen=True, slots=True)
class Choice:
    """One config of a draft on one workload."""

    draft: Draft
    workload: Workload
    config: Config

    def __str__(self) -> str:
        return f"{self.draft.name}, {self.config or 'no parameters'}, on {self.workload}"


class Drafts:
    """Make drafts of one round; their files are kept under its `folder`, one folder a call.

    Those are as deep as the folders of answers, for the paths in a candidate's space start there.
    `base` is the candidate that stands for those not named. Every mistake is an `InputError` or a
    `RefusedError`, and a folder that cannot be written a `SessionError`.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        base: str | None,
        folder: Path,
        limits: Limits,
    ) -> None:
        self._plan, self._session, self._candidates = plan, session, candidates
        self._base, self._limits = base or INITIAL, limits
        self._folder = folder

    def kept(self) -> int:
        """Say the number of the last call that an interrupted run made."""
        numbers = (one.name.removeprefix(_PREFIX) for one in self._folder.glob(f"{_PREFIX}*"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def folder_of(self, number: int) -> Path:
        """Name the folder of a call's draft."""
        return self._folder / f"{_PREFIX}{number}"

    def text_of(self, candidate: str, what: str) -> str:
        """Return the `template` or the `space` of a candidate, "" being the base."""
        name = candidate or self._base
        known = {one.name: one for one in self._session.candidates()}
        if name not in known:
            raise _unknown(name, known)
        return known[name].template_text if what == "template" else known[name].space_text

    def draft(self, given: DraftArguments, number: int) -> Draft:
        """Take a candidate as it is, or check and write the draft of the `number`-th call."""
        name = given.candidate or self._base
        known = {plan.candidate: plan for plan in self._candidates.plans}
        if name not in known:
            raise _unknown(name, known)
        if not (given.template or given.space):
            return Draft(known[name], self._candidates.evaluator(name))
        template = given.template or self.text_of(name, "template")
        space = given.space or self.text_of(name, "space")
        _require_short("template", template, self._limits.template_characters)
        _require_short("space", space, self._limits.space_characters)
        folder = self.folder_of(number)
        try:
            plan = drafted(Answer(template, space), self._plan, folder, DRAFT)
        except OSError as error:
            raise SessionError(
                f"cannot write a draft: {error.strerror}",
                path=folder,
                remedy="once the cause is gone, continue with "
                f"`--resume {self._session.directory}`",
            ) from error
        return Draft(plan, self._candidates.of(plan))

    def choice(self, given: ChoiceArguments, number: int, *, timed: bool = False) -> Choice:
        """Choose a config and a workload of a draft; one that is `timed` is a tuned one."""
        draft = self.draft(given, number)
        workload = self.workload(given, timed=timed)
        return Choice(draft, workload, _config(draft, workload, given.config))

    def workload(self, given: WorkloadArguments, *, timed: bool) -> Workload:
        """Read a workload; those held out are no business of the tuning."""
        plan = self._plan
        if not given.workload:
            return min(plan.tuned, key=plan.spec.footprint_bytes)
        workload = workload_from_text(plan.spec, given.workload)
        if timed and workload not in plan.tuned:
            tuned = "; ".join(one.key for one in plan.tuned)
            raise InputError(f"{workload.key} is not tuned", remedy=f"tuned workloads: {tuned}")
        known = (*plan.config.workloads, *plan.spec.edge_cases)
        largest = max(known, key=plan.spec.footprint_bytes)
        size, most = plan.spec.footprint_bytes(workload), plan.spec.footprint_bytes(largest)
        if workload not in known and size > most:
            raise InputError(
                f"{workload.key} takes {size} bytes, over the {most} of {largest.key}",
                remedy="no workload may be larger than the largest that the user named",
            )
        return workload


def require_arguments(choice: Choice) -> None:
    """Raise `KernelError` where a kernel that is launched does not take the user's arguments."""
    draft = choice.draft
    mismatch = find_mismatch(draft.plan, draft.evaluator, choice.workload, choice.config)
    if mismatch is not None:
        raise mismatch


def in_words(text: str, plan: Plan) -> str:
    """Take the folders of a candidate's files out of a message."""
    for path in (plan.template.path, plan.spec.path, plan.spec.source):
        # The resolved one first: a relative folder is the end of it.
        for folder in dict.fromkeys((path.resolve().parent, path.parent)):
            text = text.replace(f"{folder}/", "")
    return text


def _config(draft: Draft, workload: Workload, given: Mapping[str, Value]) -> Config:
    space = draft.plan.space
    unknown = [name for name in given if name not in space.names]
    if unknown:
        raise SpaceError(
            f"no parameter is named {unknown[0]!r}", remedy=f"parameters: {', '.join(space.names)}"
        )
    default: Mapping[str, Value] = space.default or {}
    if not default and len(given) < len(space.names):
        pool = valid_configs(space, draft.evaluator.names(workload))
        if not len(pool):
            raise SpaceError(f"no config is valid on {workload}", remedy="loosen the constraints")
        default = pool[0]
    return Config.of(
        (p.name, _value(p, given[p.name]) if p.name in given else default[p.name])
        for p in space.parameters
    )


def _value(parameter: Parameter, given: Value) -> Value:
    for value in parameter.values:
        # To Python `true` and 1 are equal.
        if value == given and isinstance(value, bool) == isinstance(given, bool):
            return value
    raise SpaceError(
        f"{parameter.name} cannot be {shown(given)}",
        remedy=f"values: {', '.join(map(format_value, parameter.values))}",
    )


def _require_short(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise InputError(f"the {what} has {len(text)} characters, over {most}")


def _unknown(name: str, known: Mapping[str, object]) -> InputError:
    message = f"there is no candidate {name[:80]!r}"
    return InputError(message, remedy=f"candidates: {', '.join(known)}")
