"""The file in which a user marks mutants that change no result: `NAME.mutants.yaml`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tuner.model.config import SearchSpace
from tuner.model.errors import SpaceError
from tuner.mutation.mutants import Identity, Mutant
from tuner.mutation.subject import MutationSubject
from tuner.space.yaml import Document, read

Group = Literal["baseline", "template"]
Text = Annotated[str, Field(min_length=1)]
_START = "start with `version: 1`, then `baseline:` or `template:` with a list of marks"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MarkModel(_Model):
    """One equivalent mutant."""

    operator: Text
    line: Text
    change: Text
    reason: Text
    occurrence: int = Field(default=1, ge=1)
    config: dict[str, bool | int | float | str] = Field(default_factory=dict)


class MarksModel(_Model):
    """A whole file of marks."""

    version: Literal[1]
    baseline: list[MarkModel] = Field(default_factory=list)
    template: list[MarkModel] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EquivalenceMark:
    """A mutant said to be equivalent where the config has these values; `at` is its line."""

    identity: Identity
    reason: str
    config: Mapping[str, bool | int | float | str]
    group: Group
    at: int


@dataclass(frozen=True, slots=True)
class Marks:
    """All marks of one file."""

    path: Path
    marks: tuple[EquivalenceMark, ...]

    def matched(self, subject: MutationSubject) -> Mapping[Mutant, str]:
        """Find the marked mutants of a subject, with the reasons.

        Raises `SpaceError` for a mark of this subject that no mutant has.
        """
        known = {mutant.identity: mutant for mutant in subject.mutants}
        found = {}
        for mark in self.marks:
            if not _applies(mark, subject):
                continue
            if mark.identity not in known:
                raise self._unknown(mark, known)
            found[known[mark.identity]] = mark.reason
        return found

    def _unknown(self, mark: EquivalenceMark, known: Mapping[Identity, Mutant]) -> SpaceError:
        names = {str(identity): identity for identity in known}
        near = get_close_matches(str(mark.identity), names, 1, cutoff=0.0)
        written = (
            f"the nearest is:\n{entry(names[near[0]], 'your reason')}" if near else "there is none"
        )
        return SpaceError(
            f"no mutant of the {mark.group} is {mark.identity}",
            path=self.path,
            line=mark.at,
            remedy=written,
        )


def default_path(space: Path) -> Path:
    """Name the file beside a space: `silu_and_mul.mutants.yaml`."""
    return space.with_name(f"{space.stem}.mutants.yaml")


def read_marks(path: Path, space: SearchSpace) -> Marks:
    """Read a file of marks; raise `SpaceError` with its line for what is wrong."""
    document = read(path)
    try:
        model = MarksModel.model_validate(document.data)
    except ValidationError as error:
        raise _mistake(document, error) from error
    groups: tuple[tuple[Group, list[MarkModel]], ...] = (
        ("baseline", model.baseline),
        ("template", model.template),
    )
    marks: dict[tuple[object, ...], EquivalenceMark] = {}
    for group, entries in groups:
        for number, model_of_mark in enumerate(entries):
            mark = _mark(model_of_mark, group, document.line(group, number))
            _check_config(document, mark, number, space)
            key = group, mark.identity, tuple(mark.config.items())
            if key in marks:
                raise document.error(
                    f"{mark.identity} is marked twice: line {marks[key].at} has it too",
                    group,
                    number,
                    remedy="keep one of the two",
                )
            marks[key] = mark
    return Marks(path, tuple(marks.values()))


def entry(identity: Identity, reason: str, *, indent: str = "  ") -> str:
    """Write a mark to paste into the file."""
    return "\n".join(_entry_lines(identity, reason, indent))


def _entry_lines(identity: Identity, reason: str, indent: str) -> Iterator[str]:
    yield f"{indent}- operator: {identity.operator}"
    yield f"{indent}  line: {_quoted(identity.line)}"
    yield f"{indent}  change: {_quoted(identity.change)}"
    if identity.occurrence > 1:
        yield f"{indent}  occurrence: {identity.occurrence}"
    yield f"{indent}  reason: {_quoted(reason)}"


def _quoted(text: str) -> str:
    # JSON's strings are YAML's too
    return json.dumps(text, ensure_ascii=False)


def _mark(model: MarkModel, group: Group, line: int) -> EquivalenceMark:
    identity = Identity(model.operator, model.line, model.change, model.occurrence)
    return EquivalenceMark(identity, model.reason, model.config, group, line)


def _applies(mark: EquivalenceMark, subject: MutationSubject) -> bool:
    if subject.config is None:
        return mark.group == "baseline"
    config = subject.config
    return mark.group == "template" and all(config[n] == v for n, v in mark.config.items())


def _check_config(
    document: Document, mark: EquivalenceMark, number: int, space: SearchSpace
) -> None:
    values = {parameter.name: parameter.values for parameter in space.parameters}
    for name, value in mark.config.items():
        where = (mark.group, number, "config", name)
        if mark.group == "baseline":
            raise document.error("the baseline has no config", *where, remedy="delete `config`")
        if name not in values:
            known = ", ".join(values)
            raise document.error(
                f"no parameter named {name!r}", *where, remedy=f"parameters: {known}"
            )
        if not any(value == v and type(value) is type(v) for v in values[name]):
            known = ", ".join(map(str, values[name]))
            raise document.error(f"{name} cannot be {value!r}", *where, remedy=f"values: {known}")


def _mistake(document: Document, error: ValidationError) -> SpaceError:
    first = min(error.errors(include_url=False), key=lambda e: document.line(*e["loc"]))
    location, kind = first["loc"], first["type"]
    key = ".".join(map(str, location))
    keys = MarkModel.model_fields if len(location) > 1 else MarksModel.model_fields
    if kind == "extra_forbidden":
        message, remedy = f"unknown key `{location[-1]}`", f"keys here: {', '.join(keys)}"
    elif kind == "missing":
        message, remedy = f"the key `{location[-1]}` is missing", f"keys here: {', '.join(keys)}"
        remedy = remedy if len(location) > 1 else _START
    elif location[-1] == "reason":
        message, remedy = "the reason is empty", "say why no result can differ"
    else:
        message, remedy = f"`{key}`: {first['msg'].lower()}", f"keys here: {', '.join(keys)}"
    return document.error(message, *location, remedy=remedy)
