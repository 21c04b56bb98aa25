"""The part of a search-space file that declares names, values and constraints."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ruamel.yaml import YAML

from tuner.model.config import (
    RESERVED_NAMES,
    Config,
    Derived,
    Parameter,
    SearchSpace,
    format_value,
)
from tuner.model.errors import KernelError, suggest_name
from tuner.model.expressions import Expression, Value, map_expressions
from tuner.model.kernel import DEVICE_NAMES, DTYPE_BYTES, KernelSpec, LaunchSpec
from tuner.model.languages import CUDA, Language
from tuner.space.schema import SpaceModel
from tuner.space.yaml import Document

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS = {"operator": "an operator macro", "parameters": "a parameter", "derived": "a derived name"}
_BOOLEAN_WORDS = {"on": "true", "yes": "true", "off": "false", "no": "false"}


@dataclass(frozen=True, slots=True)
class ExpressionReader:
    """Read the expressions of a file over some known names; derived ones are written out."""

    document: Document
    known: Collection[str]
    derived: Mapping[str, Expression] = field(default_factory=dict)

    def read(self, value: object, *location: str | int) -> Expression:
        """Parse the value at `location` and check its names."""
        document, known = self.document, {*self.known, *self.derived}
        text = value if isinstance(value, bool | int | float) else str(value)
        word = document.plain(*location)
        if word is not None and word not in known and word.lower() in _BOOLEAN_WORDS:
            remedy = f"write {_BOOLEAN_WORDS[word.lower()]}"
            message = f"`{text}` is a name here, not a boolean"
            raise document.error(message, *location, remedy=remedy)
        parsed = Expression.parse(text, path=document.path, line=document.line(*location))
        parsed.require(known)
        return parsed.define(self.derived)

    def optional(self, value: object, *location: str | int) -> Expression | None:
        return None if value is None else self.read(value, *location)

    def all(self, values: Iterable[object] | None, *location: str | int) -> tuple[Expression, ...]:
        """Parse the list at `location`; none where there is no list."""
        return tuple(self.read(value, *location, i) for i, value in enumerate(values or ()))


def identifier(document: Document, name: str, *location: str | int) -> None:
    """Raise `SpaceError` unless `name` can be a name in Python and in C++."""
    if not _IDENTIFIER.fullmatch(name):
        remedy = "a name has letters, digits and underscores, and does not start with a digit"
        raise document.error(f"`{name}` is not a name", *location, remedy=remedy)


def check_names(document: Document, model: SpaceModel) -> None:
    """Raise `SpaceError` where a name is not one, means something else, or is taken twice."""
    identifier(document, model.kernel, "kernel")
    seen: dict[str, str] = {}
    declared = [(name, "an axis", ("axes", i)) for i, name in enumerate(model.axes)]
    for key, kind in _KINDS.items():
        declared += [(name, kind, (key, name)) for name in getattr(model, key)]
    for name, kind, location in declared:
        identifier(document, name, *location)
        if name in RESERVED_NAMES:
            what = "a number of the device" if name in DEVICE_NAMES else "a word of the language"
            message = f"`{name}` cannot be {kind}: it is {what}"
            raise document.error(message, *location, remedy="choose another name")
        if name in seen:
            message = f"`{name}` is {kind} and was {seen[name]} before"
            raise document.error(message, *location, remedy="choose another name for one of them")
        seen[name] = kind
    for name, choices in model.operator.items():
        if not choices:
            remedy = "list its choices, the default first: [silu, gelu]"
            raise document.error(f"`{name}` has no choices", "operator", name, remedy=remedy)
        for i, choice in enumerate(choices):
            identifier(document, choice, "operator", name, i)
            if choice in choices[:i]:
                message = f"`{name}` has the choice `{choice}` twice"
                raise document.error(message, "operator", name, i, remedy="delete one")


def definitions(document: Document, model: SpaceModel) -> Mapping[str, Expression]:
    """Read the derived names, each written out in parameters, axes and numbers of the device.

    Raises `ExpressionError` for a name that is unknown, and `SpaceError` for one that stands
    further down or depends on itself.
    """
    known = {*model.axes, *model.operator, *model.parameters, *DEVICE_NAMES, *model.derived}
    reader, expressions = ExpressionReader(document, known), dict[str, Expression]()
    for name, text in model.derived.items():
        own = reader.read(text, "derived", name)
        if later := [other for other in model.derived if other in own.names - expressions.keys()]:
            circle = _leads_to(model, later, name)
            message = f"`{name}` is derived from `{later[0]}`, which stands further down"
            remedy = f"move `{later[0]}` above `{name}`"
            if circle:
                message = f"`{name}` is derived from itself"
                remedy = "write one of the names in the circle out"
            raise document.error(message, "derived", name, remedy=remedy)
        expressions[name] = own.define(expressions)
    return expressions


def _leads_to(model: SpaceModel, names: Collection[str], wanted: str) -> bool:
    seen, waiting = set[str](), [*names]
    while waiting and wanted not in seen:
        name = waiting.pop()
        if name in model.derived and name not in seen:
            seen.add(name)
            waiting += _IDENTIFIER.findall(str(model.derived[name]))
    return wanted in seen


def search_space(document: Document, model: SpaceModel) -> SearchSpace:
    """Build the search space from parameters, conditions, the default and the suggestions."""
    defined = definitions(document, model)
    known = {*model.axes, *model.operator, *model.parameters, *DEVICE_NAMES}
    reader = ExpressionReader(document, known, defined)
    written = (model.derived.values(), model.constraints, model.prune)
    texts = [*(str(text) for group in written for text in group)]
    texts += (str(launch.model_dump()) for launch in model.launch)
    texts += (str(argument.shape) for argument in (*model.arguments, *model.scratch))
    words = set(_IDENTIFIER.findall("\n".join(texts)))
    space = SearchSpace(
        parameters=tuple(
            Parameter(name, _values(document, name, values), document.line("parameters", name))
            for name, values in model.parameters.items()
        ),
        constraints=reader.all(model.constraints, "constraints"),
        prune=reader.all(model.prune, "prune"),
        derived=tuple(
            Derived(name, expression, name in words) for name, expression in defined.items()
        ),
    )
    default = None
    if model.default is not None:
        default = _config(document, model.default, space, "default")
    suggestions = tuple(
        _config(document, {**(default or {}), **suggestion}, space, "suggestions", i)
        for i, suggestion in enumerate(model.suggestions)
    )
    return replace(space, default=default, suggestions=suggestions)


def _values(document: Document, name: str, values: list[Value]) -> tuple[Value, ...]:
    here = ("parameters", name)
    if not values:
        raise document.error(f"`{name}` has no values", *here, remedy="list at least one")
    for i, value in enumerate(values):
        word = document.plain(*here, i)
        if word and (boolean := _BOOLEAN_WORDS.get(word.lower())):
            remedy = f"write {boolean} for the boolean, '{word}' for the text"
            raise document.error(f"`{word}` is a text, not a boolean", *here, i, remedy=remedy)
        if isinstance(value, str) and (not value.strip() or "\n" in value):
            what = "more than one line" if value.strip() else "an empty text"
            message = f"`{name}` has {what} as a value"
            raise document.error(message, *here, i, remedy="write a word; branch in the template")
    booleans = [isinstance(value, bool) for value in values]
    if any(booleans) and not all(booleans):
        message = f"`{name}` mixes booleans with other values"
        remedy = "list only numbers, or [false, true]: in an expression 1 == True"
        raise document.error(message, *here, remedy=remedy)
    for i, value in enumerate(values):
        for other in values[:i]:
            if value == other or format_value(value) == format_value(other):
                message = (
                    f"`{name}` has {_write_value(other)} and {_write_value(value)}: the same value"
                )
                raise document.error(message, *here, i, remedy="delete one")
    return tuple(values)


def _config(
    document: Document, values: Mapping[str, Value], space: SearchSpace, *here: str | int
) -> Config:
    what = f"`{here[0]}`"
    for name in values:
        if name not in space.names:
            remedy = f"parameters: {', '.join(space.names)}"
            message = f"{what} has `{name}`, which is not a parameter"
            raise document.error(message, *here, name, remedy=remedy)
    chosen: dict[str, Value] = {}
    for parameter in space.parameters:
        if parameter.name not in values:
            message = f"{what} gives no value for `{parameter.name}`"
            raise document.error(message, *here, remedy="give every parameter one value")
        value = values[parameter.name]
        boolean = isinstance(value, bool)
        alike = [other for other in parameter.values if isinstance(other, bool) is boolean]
        same = [other for other in alike if value == other]
        if not same:
            message = f"{what} has {parameter.name}: {_write_value(value)}"
            remedy = (
                f"values of `{parameter.name}`: {', '.join(map(_write_value, parameter.values))}"
            )
            raise document.error(message, *here, parameter.name, remedy=remedy)
        chosen[parameter.name] = same[0]
    config = Config.of(chosen)
    for constraint in space.constraints:
        if constraint.names <= set(space.names) and not constraint.evaluate(config):
            named = "the default" if here[0] == "default" else "a suggested"
            message = f"{named} config breaks the constraint `{constraint.text}`"
            remedy = f"change the config, or the constraint on line {constraint.line}"
            raise document.error(message, *here, remedy=remedy)
    return config


def _write_value(value: Value) -> str:
    return repr(value) if isinstance(value, str) else format_value(value)


def chosen_operators(spec: KernelSpec, asked: Mapping[str, str]) -> Mapping[str, str]:
    """Complete the operator's choices with the defaults; raise `KernelError` for unknown ones."""
    known = {operator.name: operator.values for operator in spec.operators}
    for name, value in asked.items():
        if name not in known:
            message = f"{spec.name} has no operator choice named {name!r}"
            remedy = f"choices: {', '.join(known) or 'it has none'}"
            raise KernelError(message, path=spec.path, remedy=remedy)
        if value not in known[name]:
            remedy = f"{name} is one of {', '.join(known[name])}"
            raise KernelError(f"{name} cannot be {value!r}", path=spec.path, remedy=remedy)
    return {name: asked.get(name, values[0]) for name, values in known.items()}


_Bound = TypeVar("_Bound", KernelSpec, SearchSpace, tuple[Derived, ...])


def bind(what: _Bound, operators: Mapping[str, str]) -> _Bound:
    """Put a choice of operators into every expression; a choice made before gives way."""
    return map_expressions(what, lambda expression: expression.bind(operators))


def bind_dtypes(spec: KernelSpec, operators: Mapping[str, str]) -> KernelSpec:
    """Put a choice of operators into the dtypes of arguments, and of tensor maps over them."""
    chosen = {
        argument.name: argument.dtype_by.dtypes[operators[argument.dtype_by.operator]]
        for argument in spec.arguments
        if argument.dtype_by is not None
    }

    def with_dtypes(launch: LaunchSpec) -> LaunchSpec:
        dtypes = [chosen.get(tensor_map.of, tensor_map.dtype) for tensor_map in launch.maps]
        maps = (
            replace(map_spec, dtype=dtype, element_bytes=DTYPE_BYTES[dtype])
            for map_spec, dtype in zip(launch.maps, dtypes, strict=True)
        )
        return replace(launch, maps=tuple(maps))

    arguments = (replace(a, dtype=chosen.get(a.name, a.dtype)) for a in spec.arguments)
    return replace(
        spec,
        arguments=tuple(arguments),
        baseline=tuple(map(with_dtypes, spec.baseline)),
        launch=tuple(map(with_dtypes, spec.launch)),
    )


_OPTIONS: Mapping[str, Mapping[str, str]] = YAML(typ="safe", pure=True).load(
    Path(__file__).with_name("nvrtc_options.yaml")
)
_MACRO = re.compile(r"-[DU][A-Za-z_]\w*(\([\w, ]*\))?(=[^\r\n]*)?", re.ASCII)


def refusal(option: str, language: Language = CUDA) -> tuple[str, str] | None:
    """Say what is wrong with an option and what would be right; None where it may pass."""
    if not option.startswith("-"):
        return f"the option `{option}` starts with no -", "write a value with its option: -DNAME=1"
    given, _, value = option.partition("=")
    if given in ("-I", "--include-path") or given.startswith("-I"):
        return f"`{option}` adds a folder", "list the folder under `include`"
    if language.option is not None:
        if language.option.fullmatch(option):
            return None
        message = f"the compiler option `{option}` is not allowed for {language.name}"
        return message, f"allowed: {language.options}"
    if _MACRO.fullmatch(option):
        return None
    values = _OPTIONS["values"]
    name = _OPTIONS["short"].get(given, given if given.startswith("--") else f"-{given}")
    if name not in values:
        hint = suggest_name(name, values)
        allowed = f"allowed: -DNAME=value, -UNAME, {', '.join(values)}"
        return f"the compiler option `{given}` is not allowed here", hint + allowed
    if not re.fullmatch(values[name], value):
        return f"`{given}` does not take {value!r}", f"its value must match {values[name]!r}"
    return None
