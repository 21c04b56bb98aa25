"""Which operator a launch belongs to, and its workload where the shapes were recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from pathlib import Path

from pydantic import Field

from tuner.extensions.engines.timeline.trace import Call, Trace, TracedLaunch, base_name
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.model.kernel import Dim3, Workload
from tuner.space.schema import LARGEST, Scalar, StrictModel, validate_document
from tuner.space.yaml import read as read_yaml

TABLE = Path(__file__).with_name("operators.yaml")
UNKNOWN = "unknown"
# What a kernel is found again by in another trace of the same step.
Key = tuple[str, Dim3 | None, Dim3 | None]


class CallModel(StrictModel):
    call: str = Field(description="a regular expression for the PyTorch operator's name")
    operator: str = Field(description="an operator of kernels/sglang")
    axes: dict[str, Scalar] = Field(description="an expression for every axis")
    choices: dict[str, str] = Field(default={}, description="expressions for choices")
    when: str = Field(default="True", description="an expression")


class KernelModel(StrictModel):
    kernel: str = Field(description="a regular expression for the kernel's name")
    operator: str = Field(default="", description="an operator of kernels/sglang")
    kind: str = Field(default="", description="what it is, where it is no operator")
    engine: str = Field(default="", description="whose kernel it is")
    choices: dict[str, str] = Field(default={}, description="what the name says of the choices")
    launches: int = Field(
        default=1, ge=0, description="how many are one call, 0 for none of its own"
    )


class TableModel(StrictModel):
    version: int = Field(description="1")
    calls: list[CallModel] = Field(description="a list of calls")
    kernels: list[KernelModel] = Field(description="a list of kernels")


@dataclass(frozen=True, slots=True)
class Label:
    """What one launch is: an operator that can be tuned, or a kind of work.

    `workload` is None where the shapes are not known. So many `launches` are one call, 0 where it
    is a further kernel of one.
    """

    operator: str = ""
    kind: str = UNKNOWN
    engine: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    workload: Workload | None = None
    launches: int = 1


@dataclass(frozen=True, slots=True)
class CallRule:
    """How a PyTorch operator is one of ours, and how its axes follow from its inputs."""

    pattern: re.Pattern[str]
    operator: str
    axes: Mapping[str, Expression]
    choices: Mapping[str, Expression]
    when: Expression

    def label(self, call: Call) -> Label:
        """Say what a call is: another work of the same name where `when` does not hold."""
        if not call.shapes:
            return Label(self.operator, kind="")
        names = inputs_of(call)
        with suppress(ExpressionError):  # there may be no such input
            if self.when.evaluate(names):
                return self._label_known(names)
        return Label()

    def _label_known(self, names: Mapping[str, Value]) -> Label:
        try:
            chosen = (
                (name, str(expression.evaluate(names))) for name, expression in self.choices.items()
            )
            choices = tuple(sorted(chosen))
            sizes = {axis: expression.integer(names) for axis, expression in self.axes.items()}
        except ExpressionError:  # another version of it has other inputs
            return Label(self.operator, kind="")
        fits = all(0 < size <= LARGEST for size in sizes.values())
        workload = Workload.of(sizes) if fits else None
        return Label(self.operator, kind="", choices=choices, workload=workload)


@dataclass(frozen=True, slots=True)
class Rules:
    """The table, and what it said of names and calls so far."""

    calls: tuple[CallRule, ...]
    kernels: tuple[tuple[re.Pattern[str], KernelModel], ...]
    _named: dict[str, Label] = field(default_factory=dict, compare=False)
    _called: dict[Call, Label | None] = field(default_factory=dict, compare=False)

    @property
    def operators(self) -> frozenset[str]:
        named = (model.operator for _, model in self.kernels)
        return frozenset(one for one in (*named, *(call.operator for call in self.calls)) if one)

    def label(self, launch: TracedLaunch) -> Label:
        """Say what a launch is, by the PyTorch operator it came from, else by its name."""
        named = self._named.get(launch.name)
        if named is None:
            named = self._named[launch.name] = self._by_name(launch.name)
        called = None
        if (call := launch.call) is not None:
            if call not in self._called:
                labels = (rule.label(call) for rule in self.calls if rule.pattern.search(call.name))
                self._called[call] = next(labels, None)
            called = self._called[call]
        if called is None:
            return named
        if not called.operator:
            return replace(called, engine=named.engine)
        same = named.operator == called.operator
        return replace(
            called,
            engine=named.engine,
            choices=called.choices or (named.choices if same else ()),
            launches=named.launches if same else 0,
        )

    def _by_name(self, name: str) -> Label:
        for pattern, model in self.kernels:
            match = pattern.search(name)
            if match is None:
                continue
            operator = model.operator or match.groupdict().get("operator", "")
            choices = tuple(sorted(model.choices.items()))
            kind = "" if operator else model.kind
            return Label(operator, kind, model.engine, choices, launches=model.launches)
        return Label()


@cache
def rules() -> Rules:
    """Read the table that comes with the program."""
    document = read_yaml(TABLE)
    table = validate_document(document, TableModel)
    calls = tuple(
        CallRule(
            pattern=re.compile(call.call),
            operator=call.operator,
            axes={axis: Expression.parse(text, path=TABLE) for axis, text in call.axes.items()},
            choices={name: Expression.parse(t, path=TABLE) for name, t in call.choices.items()},
            when=Expression.parse(call.when, path=TABLE),
        )
        for call in table.calls
    )
    return Rules(calls, tuple((re.compile(kernel.kernel), kernel) for kernel in table.kernels))


def inputs_of(call: Call) -> dict[str, Value]:
    """Name what is known of a call's inputs: `rows0`, `width0`, `dim0_1`, `value2`, `type0`."""
    names: dict[str, Value] = {}
    for index, shape in enumerate(call.shapes):
        if shape:
            names[f"rows{index}"], names[f"width{index}"] = prod(shape[:-1]), shape[-1]
        names |= {f"dim{index}_{place}": size for place, size in enumerate(shape)}
    names |= {f"value{i}": _number(text) for i, text in enumerate(call.values) if text}
    return names | {f"type{index}": name for index, name in enumerate(call.types)}


def shapes_of(trace: Trace, table: Rules) -> dict[Key, Label]:
    """Tell what each kernel of a trace is, by name and grid: what to know of its replays.

    Left out is a kernel without a workload, and one that has several under the same name and grid.
    """
    found: dict[Key, set[Label]] = {}
    for launch in trace.launches:
        label = table.label(launch)
        if label.operator:
            found.setdefault(key_of(launch), set()).add(label)
    only = ((key, next(iter(some))) for key, some in found.items() if len(some) == 1)
    return {key: label for key, label in only if label.workload is not None}


def label_launches(
    launches: Iterable[TracedLaunch],
    table: Rules,
    shapes: Mapping[Key, Label],
    stated: Mapping[str, Workload],
) -> Iterable[tuple[TracedLaunch, Label]]:
    """Pair launches with what they are.

    A workload that was not recorded comes from another trace's `shapes`, else from what the user
    stated of the operator.
    """
    for launch in launches:
        label = table.label(launch)
        if label.operator and label.workload is None:
            label = shapes.get(key_of(launch), label)
            if label.workload is None:
                label = replace(label, workload=stated.get(label.operator))
        yield launch, label


def key_of(launch: TracedLaunch) -> Key:
    return _base_name(launch.name), launch.grid, launch.block


_base_name = cache(base_name)


def _number(text: str) -> Value:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
