"""From a config to a source with its launch, as Kernel Tuner's arguments describe both."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tuner.extensions.compat.bench import ConfiguredKernel, Values
from tuner.model.config import Config, Parameter, SearchSpace
from tuner.model.errors import InputError
from tuner.model.expressions import Expression
from tuner.model.kernel import Launch
from tuner.process.files import read_text
from tuner.search.factory import require_listed
from tuner.search.pool import Pool, valid_configs

# A number, an expression over the parameters, or a function of a dict of them.
Size = int | float | str | Callable[[Values], Any]
Text = str | Callable[[Values], str]
BLOCK_SIZES = ("block_size_x", "block_size_y", "block_size_z")
# What Kernel Tuner launches where no parameter says how many threads.
THREADS = 256
# The most elements of a symbol in constant memory: 64 KiB of bytes.
MOST_CONSTANTS = 1 << 16
_UNROLL = re.compile(r"^([ \t]*#pragma\s+unroll)\s+(loop_unroll_factor\w*)[ \t]*$", re.MULTILINE)


def evaluate(size: Any, values: Values) -> Any:
    """Compute a number, an expression or a function for a config."""
    if callable(size):
        return size(dict(values))
    if isinstance(size, str):
        return Expression.parse(size).evaluate(values)
    return size.item() if isinstance(size, np.generic) else size


@dataclass(frozen=True, slots=True)
class SourceKernel:
    """A kernel with how it is launched, in Kernel Tuner's terms.

    `divisors` are those of the grid for x, y and z: None is the block's size there. `block` is one
    to three sizes; without it they are the parameters of `block_names`. `define` is None where each
    parameter is a macro, and `constants` has symbols in constant memory by name.
    """

    name: str
    source: Text
    problem_size: Any
    divisors: tuple[Any, Any, Any] = (None, None, None)
    block: Any = None
    block_names: tuple[str, ...] = BLOCK_SIZES
    define: Mapping[str, Any] | None = None
    shared_bytes: Size = 0
    constants: Mapping[str, Any] = field(default_factory=dict)

    def instance(self, config: Config) -> ConfiguredKernel:
        """Write the source and the launch of a config; raise `InputError` where that can't be."""
        if self.block is not None:
            block = _three(int(size) for size in _sizes(self.block, config))
        else:
            names_of_sizes = zip(self.block_names, (THREADS, 1, 1), strict=True)
            block = _three(int(config.get(name, default)) for name, default in names_of_sizes)
        grid = self._grid(config)
        text = self.source(dict(config)) if callable(self.source) else self.source

        def unroll(pragma: re.Match[str]) -> str:
            # It takes no macro; 0 leaves the loop to the compiler.
            if pragma[2] not in config:
                return pragma[0]
            return f"{pragma[1]} {config[pragma[2]]}" if config[pragma[2]] else ""

        text = _UNROLL.sub(unroll, text)
        for name, values in self.constants.items():
            text = write_constant(text, name, values)
        names = dict(zip(("grid_size_x", "grid_size_y", "grid_size_z"), grid, strict=True))
        macros: Mapping[str, Any] = (
            self.define
            if self.define is not None
            else {
                **names,
                **dict(zip(BLOCK_SIZES, block, strict=True)),
                **config,
                "kernel_tuner": 1,
            }
        )
        head = "".join(f"#define {name} {_macro(of, config)}\n" for name, of in macros.items())
        shared = int(evaluate(self.shared_bytes, config))
        # An instance of a template may name parameters: `add<float, block_size_x>`.
        function, opening, words = self.name.partition("<")
        words = re.sub(
            r"\b[A-Za-z_]\w*", lambda match: _macro(config.get(match[0], match[0]), config), words
        )
        name = f"{function}{opening}{words}"
        return ConfiguredKernel(config, f"{head}#line 1\n{text}", Launch(name, grid, block, shared))

    def thread_limit(self, parameters: Mapping[str, Any], most: int) -> str:
        """Write the restriction that no block has more threads than a device allows."""
        named = [name for name in self.block_names if name in parameters]
        return f"{' * '.join(named) or THREADS} <= {most}"

    def _grid(self, config: Config) -> tuple[int, int, int]:
        counts, sizes = [], _three(_sizes(self.problem_size, config))
        for size, by, name in zip(sizes, self.divisors, self.block_names, strict=True):
            parts = [by] if callable(by) or isinstance(by, str) else by
            if by is None:
                parts = [name] if name in config else []
            divisor = math.prod(evaluate(part, config) for part in parts)
            counts.append(math.ceil(size / divisor))
        return _three(counts)


def _sizes(given: Any, config: Config) -> list[Any]:
    sizes = given(dict(config)) if callable(given) else given
    if isinstance(sizes, str) or not isinstance(sizes, Sequence | np.ndarray):
        sizes = (sizes,)
    return [evaluate(size, config) for size in sizes]


def _three(sizes: Iterable[Any]) -> tuple[Any, Any, Any]:
    found = [*sizes, 1, 1]
    if not 3 <= len(found) <= 5:
        raise InputError(f"{len(found) - 2} sizes of a launch", remedy="give one, two or three")
    return found[0], found[1], found[2]


def _macro(value: Any, config: Config) -> str:
    value = value(dict(config)) if callable(value) else value
    return str(int(value) if isinstance(value, bool) else value)


def write_constant(source: str, name: str, values: Any) -> str:
    """Give a symbol in constant memory its values where it is declared."""
    declared = re.compile(rf"(__constant__[^;=(){{}}]*\b{re.escape(name)}\b\s*(?:\[[^;=]*\])?)\s*;")
    match = declared.search(source)
    numbers = np.asarray(values).reshape(-1)
    if match is None:
        raise InputError(
            f"cmem_args names {name!r}, which the source declares nowhere as __constant__",
            remedy=f"declare it, as in `__constant__ float {name}[{numbers.size}];`",
        )
    if numbers.nbytes > MOST_CONSTANTS:
        raise InputError(
            f"cmem_args gives {name!r} {numbers.nbytes} bytes",
            remedy=f"constant memory has {MOST_CONSTANTS}: pass it as an argument",
        )
    text = ", ".join(repr(number.item()) for number in numbers)
    text = text if match[1].rstrip().endswith("]") and numbers.size else text.partition(",")[0]
    opening, closing = ("{", "}") if match[1].rstrip().endswith("]") else ("", "")
    return declared.sub(lambda match: f"{match[1]} = {opening}{text}{closing};", source, count=1)


def read_source(source: Any) -> tuple[Text, tuple[Path, ...]]:
    """Read Kernel Tuner's `kernel_source`: text, a file, a list of files, or a function.

    The folders of files come back too, for what they include.
    """
    files = list(source) if isinstance(source, list | tuple) else [source]
    first = files[0]
    if callable(first):
        return first, ()
    is_file = isinstance(first, Path) or not re.search(r"[\n{}]", str(first))
    if not is_file:
        return str(first), ()
    paths = [Path(file) for file in files]
    folders = tuple(dict.fromkeys(path.resolve().parent for path in paths))
    return read_text(paths[0]), folders


def list_configs(
    parameters: Mapping[str, Sequence[Any]], restrictions: Any = None
) -> tuple[SearchSpace, Pool]:
    """List the configs that keep to Kernel Tuner's `restrictions`, in the parameters' order."""
    texts, functions = [], []
    for restriction in listed_restrictions(restrictions):
        if isinstance(restriction, str):
            texts.append(Expression.parse(restriction))
        elif callable(restriction) and not hasattr(restriction, "preProcess"):
            functions.append(restriction)
        else:
            raise InputError(
                f"the restriction {restriction!r} is neither a text nor a function",
                remedy='write it as an expression, "block_size_x * 4 <= 1024", or as a function',
            )
    listed = tuple(
        Parameter(name, tuple(dict.fromkeys(map(_plain, values))))
        for name, values in parameters.items()
    )
    if empty := [parameter.name for parameter in listed if not parameter.values]:
        raise InputError(f"the parameter {empty[0]!r} has no values", remedy="list one or more")
    known = {parameter.name for parameter in listed}
    for text in texts:
        text.require(known)
    space = SearchSpace(listed, constraints=tuple(texts))
    pool = valid_configs(space, {})
    if functions:
        require_listed(pool)
        kept = [config for config in pool if all(function(dict(config)) for function in functions)]
        pool = Pool.of(listed, kept)
    if not len(pool):
        raise InputError("no config keeps to the restrictions", remedy="loosen them")
    return space, pool


def listed_restrictions(given: Any) -> list[Any]:
    """Give one restriction, several or none as a list."""
    if given is None:
        return []
    return [given] if callable(given) or isinstance(given, str) else list(given)


def _plain(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, bool | int | float | str):
        raise InputError(
            f"a parameter has the value {value!r}", remedy="values are numbers, texts and booleans"
        )
    return plain
