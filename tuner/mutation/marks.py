"""The file in which a user marks mutants that change no result: `NAME.mutants.yaml`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tuner.model.config import SearchSpace
from tuner.mutation.mutants import Identity, Mutant
from tuner.mutation.subject import MutationSubject
from tuner.space.schema import StrictModel, checked
from tuner.space.yaml import Document, read

Text = Annotated[str, Field(min_length=1)]


class EquivalenceMark(StrictModel):
    """A mutant said to be equivalent where the config has these values."""

    operator: Text = Field(description="the operator's name, `constant`")
    line: Text = Field(description="the text of the line that is changed")
    change: Text = Field(description="what is changed, `32 -> 33`")
    reason: Text = Field(description="why no result can differ")
    occurrence: int = Field(default=1, ge=1, description="which of equal ones, counted from 1")
    config: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="parameters with their values, `{threads: 32}`"
    )

    @property
    def identity(self) -> Identity:
        """The mutant that is marked."""
        return Identity(self.operator, self.line, self.change, self.occurrence)


class MarksModel(StrictModel):
    """A whole file of marks."""

    version: Literal[1] = Field(description="the number 1")
    baseline: list[EquivalenceMark] = Field(default=[], description="a list of marks")
    template: list[EquivalenceMark] = Field(default=[], description="a list of marks")


@dataclass(frozen=True, slots=True)
class Marks:
    """All marks of one file."""

    document: Document
    model: MarksModel

    def matched(self, subject: MutationSubject) -> Mapping[Mutant, str]:
        """Find the marked mutants of a subject, with the reasons.

        Raises `SpaceError` for a mark of this subject that no mutant has.
        """
        known = {mutant.identity: mutant for mutant in subject.mutants}
        config = subject.config
        marks = self.model.baseline if config is None else self.model.template
        found = {}
        for number, mark in enumerate(marks):
            if config is not None and any(config[n] != v for n, v in mark.config.items()):
                continue
            if mark.identity not in known:
                names = {str(identity): identity for identity in known}
                near = get_close_matches(str(mark.identity), names, 1, cutoff=0.0)
                message = f"no mutant of the {subject.group} is {mark.identity}"
                remedy = "there is none"
                if near:
                    remedy = f"the nearest is:\n{entry(names[near[0]], 'your reason')}"
                raise self.document.error(message, subject.group, number, remedy=remedy)
            found[known[mark.identity]] = mark.reason
        return found


def default_path(space: Path) -> Path:
    """Name the file beside a space: `silu_and_mul.mutants.yaml`."""
    return space.with_name(f"{space.stem}.mutants.yaml")


def read_marks(path: Path, space: SearchSpace) -> Marks:
    """Read a file of marks; raise `SpaceError` with its line for what is wrong."""
    document = read(path)
    model = checked(document, MarksModel)
    for group, marks in (("baseline", model.baseline), ("template", model.template)):
        _require_distinct(document, group, marks)
        for number, mark in enumerate(marks):
            for name, value in mark.config.items():
                if wrong := _wrong_value(group, name, value, space):
                    where = (group, number, "config", name)
                    raise document.error(wrong[0], *where, remedy=wrong[1])
    return Marks(document, model)


def entry(identity: Identity, reason: str, *, indent: str = "  ") -> str:
    """Write a mark to paste into the file."""
    lines = [
        f"- operator: {identity.operator}",
        f"  line: {_quoted(identity.line)}",
        f"  change: {_quoted(identity.change)}",
        *([f"  occurrence: {identity.occurrence}"] if identity.occurrence > 1 else []),
        f"  reason: {_quoted(reason)}",
    ]
    return "\n".join(indent + line for line in lines)


def _quoted(text: str) -> str:
    # JSON's strings are YAML's too
    return json.dumps(text, ensure_ascii=False)


def _require_distinct(document: Document, group: str, marks: Sequence[EquivalenceMark]) -> None:
    seen: dict[tuple[object, ...], int] = {}
    for number, mark in enumerate(marks):
        key = mark.identity, tuple(mark.config.items())
        if key in seen:
            line = document.line(group, seen[key])
            message = f"{mark.identity} is marked twice: line {line} has it too"
            raise document.error(message, group, number, remedy="keep one of the two")
        seen[key] = number


def _wrong_value(
    group: str, name: str, value: bool | int | float | str, space: SearchSpace
) -> tuple[str, str] | None:
    values = {parameter.name: parameter.values for parameter in space.parameters}
    if group == "baseline":
        return "the baseline has no config", "delete `config`"
    if name not in values:
        return f"no parameter named {name!r}", f"parameters: {', '.join(values)}"
    if any(value == known and type(value) is type(known) for known in values[name]):
        return None
    return f"{name} cannot be {value!r}", f"values: {', '.join(map(str, values[name]))}"
