"""What is mutated, the baseline or the template at a config, and its mutants marked equivalent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tuner.compiler.base import CompileRequest, CompileResult
from tuner.device.base import CompileTarget, DeviceInfo, Program
from tuner.extensions.study.mutation.mutants import Identity, Mutant, all_mutants, keep_reached
from tuner.model.config import Config, SearchSpace
from tuner.model.errors import SpaceError
from tuner.model.kernel import KernelSpec, Launch, Workload
from tuner.source import hide_host_code, parse_source, read_source
from tuner.source.facts import SourceFile
from tuner.space.schema import StrictModel, validate_document
from tuner.space.template import Rendered, Template
from tuner.space.yaml import Document, read

# The host device would take long over more; edge cases are there to be verified.
LARGEST_BYTES = 16 << 20
LARGEST_EDGE_CASE_BYTES = 64 << 20
OF_EACH_KIND = 2


@dataclass(frozen=True)
class MutationSubject:
    """A kernel's source as its launches see it; `config` is None for the baseline.

    `chosen` workloads take the place of those that are small enough for the `host` device; `near`
    are the edge cases that the file leaves to us.
    """

    spec: KernelSpec
    space: SearchSpace
    operators: Mapping[str, str]
    device: DeviceInfo
    config: Config | None = None
    chosen: tuple[Workload, ...] = ()
    near: tuple[Workload, ...] = ()

    @property
    def path(self) -> Path:
        """The user's file that the mutants are made of."""
        return self.spec.source if self.config is None else self.spec.template

    @property
    def name(self) -> str:
        return "baseline" if self.config is None else str(self.config)

    @property
    def group(self) -> str:
        """The key of the marks on its mutants."""
        return "baseline" if self.config is None else "template"

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        """Small ones to verify on, the smallest first: tuned, held out, and every edge case.

        Raises `SpaceError` where the config is valid on none of them.
        """
        if self.chosen:
            return self.chosen
        found = []
        for kind in (self.spec.tuned, self.spec.held_out):
            usable = [workload for workload in kind if self._usable(workload, LARGEST_BYTES)]
            found += sorted(usable, key=self.spec.footprint_bytes)[:OF_EACH_KIND]
        edge_cases = (*self.spec.edge_cases, *self.near)
        found += [w for w in edge_cases if self._usable(w, LARGEST_EDGE_CASE_BYTES)]
        if found:
            return tuple(sorted(dict.fromkeys(found), key=self.spec.footprint_bytes))
        first, config = self.spec.tuned[0], self.config
        message = f"no workload is small enough for the `host` device: {LARGEST_BYTES >> 20} MiB"
        remedy = "add a small one to `edge_cases`, which is verified and never timed"
        broken = config and self.space.violated(config, self._target.names(first))
        if broken:
            message = f"{self.name} breaks `{broken.text}` on {first}"
            message += ", and is valid on no small workload"
            remedy = "choose another config"
        raise SpaceError(message, path=self.spec.path, remedy=remedy)

    @cached_property
    def mutants(self) -> tuple[Mutant, ...]:
        """Every mutant of the source as the first workload has it, reached or not."""
        return self._mutants(self.workloads[0])

    @cached_property
    def reached(self) -> tuple[Mutant, ...]:
        launches = [launch for workload in self.workloads for launch in self.launches(workload)]
        kernels = dict.fromkeys(launch.kernel for launch in launches)
        return keep_reached(self.mutants, self._parsed(self.workloads[0]), kernels, self.operators)

    @property
    def source(self) -> SourceFile:
        """The source whose places the mutants name."""
        return self._parsed(self.workloads[0])

    @property
    def largest_bytes(self) -> int:
        """How much memory the arrays take on the largest workload."""
        return max(map(self.spec.footprint_bytes, (*self.spec.workloads, *self.workloads)))

    @property
    def small_workloads(self) -> tuple[Workload, ...]:
        """Those of the workloads that also a slow device can run."""
        small = (w for w in self.workloads if self.spec.footprint_bytes(w) <= LARGEST_BYTES)
        return tuple(small) or self.workloads[:1]

    def text(self, workload: Workload) -> str:
        return self._hide_host_code(self._parsed(workload).text)

    def mutate(self, workload: Workload, mutant: Mutant) -> str | None:
        """Return a mutant's source for one workload; None where it has no such place.

        A template may render differently for every workload: there the same place is changed.
        """
        source = self._parsed(workload)
        if source.text == self._parsed(self.workloads[0]).text:
            return self._hide_host_code(mutant.apply(source.text))
        found = self._placed(workload).get(self._places[mutant.identity])
        return None if found is None else self._hide_host_code(found.apply(source.text))

    def place(self, mutant: Mutant) -> int:
        """Return the line of the user's file that a mutant changes."""
        if self.config is None:
            return mutant.line
        return self._render(self.workloads[0]).template_line(mutant.line)

    def diff(self, mutant: Mutant) -> str:
        """Write a mutant's change to the source, as the first workload has it."""
        name = self.path.name.removesuffix(".j2")
        return mutant.diff(self._parsed(self.workloads[0]).text, name)

    def launches(self, workload: Workload) -> tuple[Launch, ...]:
        names = self._target.names(workload)
        if self.config is None:
            return self.spec.baseline_launches(names)
        return self.spec.candidate_launches({**names, **self.config})

    def request(self, text: str, workload: Workload) -> CompileRequest:
        return self._target.request(text, self.launches(workload))

    def program(self, text: str, workload: Workload, result: CompileResult) -> Program:
        program: Program = self._target.program(text, workload, self.launches(workload), result)
        # Without the config itself: what a recording knows by that is the kernel as it was.
        return replace(program, scratch=self._target.scratch(workload, self.config))

    @cached_property
    def _target(self) -> CompileTarget:
        return CompileTarget(self.spec, self.operators, self.device)

    @cached_property
    def _template(self) -> Template:
        template = Template.load(self.spec.template, self.spec.include_dirs)
        template.check(self.space, self.spec)
        return template

    @cached_property
    def _parsed(self) -> Callable[[Workload], SourceFile]:
        if self.config is None:
            source = read_source(self.path)
            return lambda _: source
        return cache(lambda workload: parse_source(self._render(workload).source, self.path))

    @cached_property
    def _placed(self) -> Callable[[Workload], Mapping[tuple[str, int, int], Mutant]]:
        return cache(lambda workload: _number_places(self._mutants(workload)))

    @cached_property
    def _places(self) -> Mapping[Identity, tuple[str, int, int]]:
        return {m.identity: place for place, m in _number_places(self.mutants).items()}

    def _mutants(self, workload: Workload) -> tuple[Mutant, ...]:
        return all_mutants(self._parsed(workload), rendered=self.config is not None)

    def _render(self, workload: Workload) -> Rendered:
        assert self.config is not None
        names = {**workload.values, **self.operators, **self.config}
        return self._template.render(names, self.space.derived)

    def _hide_host_code(self, text: str) -> str:
        return text if self.config is not None else hide_host_code(parse_source(text, self.path))

    def _usable(self, workload: Workload, largest_bytes: int) -> bool:
        if self.spec.footprint_bytes(workload) > largest_bytes:
            return False
        names = self._target.names(workload)
        if self.config is not None and self.space.violated(self.config, names) is not None:
            return False
        return bool(self.launches(workload))


def _number_places(mutants: tuple[Mutant, ...]) -> dict[tuple[str, int, int], Mutant]:
    """Number the mutants of each operator in each line: equal in all renderings of a template."""
    counted: Counter[tuple[str, int]] = Counter()
    places = {}
    for mutant in mutants:
        key = mutant.identity.operator, mutant.line
        counted[key] += 1
        places[(*key, counted[key])] = mutant
    return places


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

    def match_mutants(self, subject: MutationSubject) -> Mapping[Mutant, str]:
        """Find the marked mutants of a subject, with the reasons.

        Raises `SpaceError` for a mark of this subject that no mutant has.
        """
        mutants = {mutant.identity: mutant for mutant in subject.mutants}
        config = subject.config
        marks = self.model.baseline if config is None else self.model.template
        found = {}
        for number, mark in enumerate(marks):
            if config is not None and any(config[n] != v for n, v in mark.config.items()):
                continue
            if mark.identity not in mutants:
                names = {str(identity): identity for identity in mutants}
                near = get_close_matches(str(mark.identity), names, 1, cutoff=0.0)
                message = f"no mutant of the {subject.group} is {mark.identity}"
                remedy = "there is none"
                if near:
                    remedy = f"the nearest is:\n{entry(names[near[0]], 'your reason')}"
                raise self.document.error(message, subject.group, number, remedy=remedy)
            found[mutants[mark.identity]] = mark.reason
        return found


def default_path(space: Path) -> Path:
    """Name the file beside a space: `silu_and_mul.mutants.yaml`."""
    return space.with_name(f"{space.stem}.mutants.yaml")


def read_marks(path: Path, space: SearchSpace) -> Marks:
    """Read a file of marks; raise `SpaceError` with its line for what is wrong."""
    document = read(path)
    model = validate_document(document, MarksModel)
    values = {parameter.name: parameter.values for parameter in space.parameters}
    for group, marks in (("baseline", model.baseline), ("template", model.template)):
        seen: dict[tuple[object, ...], int] = {}
        for number, mark in enumerate(marks):
            key = mark.identity, tuple(mark.config.items())
            if key in seen:
                line = document.line(group, seen[key])
                message = f"{mark.identity} is marked twice: line {line} has it too"
                raise document.error(message, group, number, remedy="keep one of the two")
            seen[key] = number
        for number, mark in enumerate(marks):
            for name, value in mark.config.items():
                known = values.get(name, ())
                if group == "baseline":
                    message, remedy = "the baseline has no config", "delete `config`"
                elif name not in values:
                    message, remedy = (
                        f"no parameter named {name!r}",
                        f"parameters: {', '.join(values)}",
                    )
                elif not any(value == one and type(value) is type(one) for one in known):
                    message = f"{name} cannot be {value!r}"
                    remedy = f"values: {', '.join(map(str, known))}"
                else:
                    continue
                raise document.error(message, group, number, "config", name, remedy=remedy)
    return Marks(document, model)


def entry(identity: Identity, reason: str) -> str:
    """Write a mark to paste into the file."""
    # JSON's strings are YAML's too
    line, change, why = (
        json.dumps(text, ensure_ascii=False) for text in (identity.line, identity.change, reason)
    )
    occurrence = f"    occurrence: {identity.occurrence}\n" if identity.occurrence > 1 else ""
    return (
        f"  - operator: {identity.operator}\n    line: {line}\n    change: {change}\n"
        f"{occurrence}    reason: {why}"
    )
