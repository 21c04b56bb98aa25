"""What a script of Kernel Tuner beside a source says of its parameters; nothing of it is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from tuner.extensions.draft.python.literals import Literals, bindings
from tuner.extensions.draft.python.source import calls_in, passed_to
from tuner.model.errors import ExpressionError
from tuner.model.expressions import Expression, Value
from tuner.process.files import read_text

_TUNES = re.compile(r"\b(?:tune_kernel|run_kernel)\b")
_NAMED = "tune_params"
_MOST_FILES = 40
_MOST_BYTES = 1 << 20
_MOST_TRIED = 10_000


# what Kernel Tuner divides a size by where nothing is said, and the block's extents
EXTENTS = tuple(f"block_size_{axis}" for axis in "xyz")
_DIVISORS = tuple(f"grid_div_{axis}" for axis in "xyz")


@dataclass(frozen=True, slots=True)
class TuningScript:
    """The values of `tune_params`, what they have to keep to, and what each extent of the grid
    divides a size by, as a product; None where the script does not say it in texts. `sizes` are
    those of its problem, as far as they are numbers.
    """

    values: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    restrictions: tuple[str, ...] = ()
    divisors: tuple[str | None, ...] = ()
    sizes: tuple[int, ...] = ()

    def first_allowed(self, names: Sequence[str]) -> dict[str, Value]:
        """Give the first values of some parameters that keep to the restrictions of them alone."""
        asked = []
        for text in self.restrictions:
            with suppress(ExpressionError):
                if Expression.parse(text).names <= {*names}:
                    asked.append(text)
        every = islice(product(*(self.values[name] for name in names)), _MOST_TRIED)
        configs = (dict(zip(names, values, strict=True)) for values in every)
        allowed = (config for config in configs if all(holds(text, config) for text in asked))
        return next(allowed, {name: self.values[name][0] for name in names})


def holds(text: str, values: Mapping[str, Value]) -> bool:
    """Tell whether a condition holds for some values; what cannot be computed does not."""
    with suppress(ExpressionError):  # `n % 0`
        return bool(Expression.parse(text).evaluate(values))
    return False


NO_SCRIPT = TuningScript()


def read_tuning_script(source: Path) -> TuningScript:
    """Read the script beside a source that names it and tunes a kernel."""
    for path in sorted(source.parent.glob("*.py"))[:_MOST_FILES]:
        try:
            text = read_text(path) if path.stat().st_size <= _MOST_BYTES else ""
            tree = ast.parse(text) if _TUNES.search(text) and source.name in text else None
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        if tree is not None and (values := dict(_parameters(tree))):
            return TuningScript(values, *_asked(tree, values))
    return NO_SCRIPT


def _asked(
    tree: ast.Module, values: Mapping[str, object]
) -> tuple[tuple[str, ...], tuple[str | None, ...], tuple[int, ...]]:
    literals, stated = Literals(tree), _stated(tree)
    known = _known(literals, stated)
    calls = [*calls_in(tree)]
    given = [passed_to((), call) for call in calls]
    named = next((one for one in given if one.keys() & {"restrictions", *_DIVISORS}), {})
    asked = named.get("restrictions")
    for _ in range(2):
        own = stated.get(asked.id, [asked]) if isinstance(asked, ast.Name) else [asked]
        asked = own[0] if len(own) == 1 else None
    texts = [
        _restriction(one, literals, known)
        for one in (asked.elts if isinstance(asked, ast.List) else [asked])
    ]
    divisors: list[str | None] = []
    for key, extent in zip(_DIVISORS, EXTENTS, strict=True):
        by = [extent] if extent in values else None
        by = literals.try_evaluate(named[key], known) if key in named else by
        texts_alone = isinstance(by, list) and all(isinstance(one, str) for one in by)
        terms = by or ["1"] if texts_alone else []
        # `n + 1` is a factor as a whole
        factors = [one if re.fullmatch(r"\w+", one) else f"({one})" for one in terms]
        divisors.append(" * ".join(factors) or None)
    tunes = (call for call in calls if _TUNES.search(ast.unparse(call.func)) and len(call.args) > 2)
    size = next((literals.try_evaluate(call.args[2], known) for call in tunes), None)
    sizes = size if isinstance(size, tuple | list) else [size]
    plain = tuple(one for one in sizes if type(one) is int)
    return tuple(filter(None, texts)), tuple(divisors), plain if len(plain) == len(sizes) else ()


def _restriction(node: ast.expr | None, literals: Literals, known: Mapping[str, object]) -> str:
    # a text, or `lambda p: p["block_size_x"] <= 64` as one
    if isinstance(node, ast.Lambda) and len(node.args.args) == 1:
        own = re.escape(node.args.args[0].arg)
        numbers = {name: value for name, value in known.items() if type(value) is int}
        said = ast.unparse(node.body)
        text = re.sub(r"(?<!['\"])\b\w+\b", lambda m: str(numbers.get(m[0], m[0])), said)
        return re.sub(rf"\b{own}\[['\"](\w+)['\"]\]", r"\1", text)
    text = literals.try_evaluate(node)
    return text if isinstance(text, str) else ""


def _stated(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """List what names are set to, in functions too: `fw, fh = 5, 5`."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        for target, value in bindings(node):
            found.setdefault(target, []).append(value)
    return found


def _known(literals: Literals, stated: Mapping[str, list[ast.expr]]) -> dict[str, object]:
    known: dict[str, object] = {}
    for target, values in stated.items():
        value = literals.try_evaluate(values[0], known) if len(values) == 1 else None
        known |= {} if value is None else {target: value}
    return known


def _parameters(tree: ast.Module) -> Iterator[tuple[str, tuple[Value, ...]]]:
    literals, stated = Literals(tree), _stated(tree)
    known = _known(literals, stated)
    for named in map(partial(literals.try_evaluate, names=known), stated.get(_NAMED, ())):
        for name, values in named.items() if isinstance(named, dict) else ():
            yield from _checked(name, values)
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value
            ):
                if name == _NAMED:
                    values = literals.try_evaluate(value, known)
                    yield from _checked(literals.try_evaluate(key), values)


def _checked(name: Any, values: Any) -> Iterator[tuple[str, tuple[Value, ...]]]:
    listed = values if isinstance(values, list) else []
    numbers = [value for value in listed if type(value) in (int, bool)]
    if isinstance(name, str) and name.isidentifier() and numbers and len(numbers) == len(values):
        yield name, tuple(dict.fromkeys(numbers))
