"""What a CUDA source says about itself: kernels, constants, launches, each with its place."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tuner.model.errors import KernelError

# character offsets into the text, the end exclusive
Span = tuple[int, int]
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# the `f` of `0.5f` is none
_NAMED = re.compile(r"\.?\d[\w.]*|([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One parameter of a kernel.

    `c_type` is the pointed-to type, without qualifiers; `const` qualifies what a pointer points to.
    `dtype` is None where the type is a template parameter, a struct or otherwise unknown here.
    """

    name: str
    c_type: str
    pointers: int = 0
    const: bool = False
    dtype: str | None = None
    line: int = 1

    @property
    def declaration(self) -> str:
        const = "const " if self.const else ""
        return f"{const}{self.c_type}{'*' * self.pointers} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """One template parameter; `kind` is `typename` or the C type of a value."""

    name: str
    kind: str
    span: Span
    line: int
    default: str | None = None

    @property
    def is_type(self) -> bool:
        return self.kind in ("typename", "class")


@dataclass(frozen=True, slots=True)
class LaunchBounds:
    """`__launch_bounds__(max_threads, min_blocks)` as text, with the places of both."""

    max_threads: str
    max_threads_span: Span
    line: int
    min_blocks: str | None = None
    min_blocks_span: Span | None = None


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """One `__global__` function with a body.

    `parameters_known` is False where the list holds macros or preprocessor conditionals.
    """

    name: str
    path: Path
    line: int
    span: Span
    body: Span
    name_at: int
    parameters: tuple[KernelParameter, ...]
    parameters_known: bool = True
    template: tuple[TemplateParameter, ...] = ()
    bounds: LaunchBounds | None = None
    namespace: tuple[str, ...] = ()
    # What `__cluster_dims__` says.
    cluster: tuple[str, ...] = ()

    @property
    def qualified_name(self) -> str:
        """The name with its namespaces, as a launch outside them states it."""
        return "::".join((*self.namespace, self.name))


SymbolKind = Literal["function", "class", "alias", "macro", "constant"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """Anything with a name that code can refer to."""

    name: str
    kind: SymbolKind
    span: Span


ConstantKind = Literal["define", "constexpr", "const"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A named value known when the source is compiled; `number` is None for other expressions."""

    name: str
    kind: ConstantKind
    value: str
    span: Span
    line: int
    number: int | bool | None = None


@dataclass(frozen=True, slots=True)
class Unroll:
    """`#pragma unroll`, with its factor where it has one."""

    line: int
    factor: str | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """A launch in host code, all expressions as text.

    `grid` and `block` hold one to three extents. `definitions` are the host variables assigned once
    before it, with their values; `at` is the launch's offset, `set_at` where a pointer that it goes
    through is set to the kernel. `guessed` are the template parameters that it does not say;
    `cluster` is what its attributes say.
    """

    kernel: str
    template_arguments: tuple[str, ...]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    arguments: tuple[str, ...]
    line: int
    definitions: Mapping[str, str] = field(default_factory=dict)
    at: int = 0
    guessed: tuple[str, ...] = ()
    set_at: int | None = None
    cluster: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One CUDA source; `masked` is its text with comments and strings blanked, same offsets.

    From `host_from` on, if given, there is host code of other files that says how the kernels are
    launched, and that is no part of the source. `unlaunched` says template arguments of kernels
    that nothing launches.
    """

    path: Path
    text: str
    masked: str
    kernels: tuple[KernelFunction, ...]
    definitions: tuple[Symbol, ...] = ()
    constants: tuple[Constant, ...] = ()
    unrolls: tuple[Unroll, ...] = ()

    launches: tuple[LaunchSite, ...] = ()
    unlaunched: tuple[LaunchSite, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    host_from: int | None = None

    @property
    def own_text(self) -> str:
        """The text without the host code of other files."""
        return self.text[: self.host_from]

    def line_at(self, offset: int) -> int:
        """Count the lines up to an offset."""
        return self.text.count("\n", 0, offset) + 1

    def launches_of(self, kernel: str) -> tuple[LaunchSite, ...]:
        """List the launches of a kernel, by its bare name."""
        return tuple(site for site in self.launches if bare_name(site.kernel) == kernel)

    def kernel(self, name: str) -> KernelFunction:
        """Find a kernel by the name that a launch states (`ns::k<8>` finds `k`).

        Of overloads with different parameters the first is returned, its list marked unknown.
        """
        bare = bare_name(name)
        functions = [kernel for kernel in self.kernels if kernel.name == bare]
        if not functions:
            raise unknown_kernel(bare, [kernel.name for kernel in self.kernels], self.path)
        types = {tuple((p.c_type, p.pointers, p.const) for p in k.parameters) for k in functions}
        return replace(functions[0], parameters_known=False) if len(types) > 1 else functions[0]

    def reachable(self, kernels: Iterable[KernelFunction]) -> tuple[Span, ...]:
        """List the pieces of code that `kernels` are made of: themselves and all they refer to."""
        by_name: dict[str, list[Span]] = {}
        for definition in self.definitions:
            by_name.setdefault(definition.name, []).append(definition.span)
        pending = [kernel.span for kernel in kernels]
        seen: dict[Span, None] = {}
        while pending:
            span = pending.pop()
            if span in seen:
                continue
            seen[span] = None
            for name in dict.fromkeys(_NAMED.findall(self.masked, *span)):
                pending += by_name.get(name, ())
        return tuple(seen)


def within(at: int, spans: Iterable[Span]) -> bool:
    """Whether an offset is inside one of the spans."""
    return any(start <= at < end for start, end in spans)


def unknown_kernel(name: str, names: list[str], path: Path) -> KernelError:
    """Make the error for a kernel that is not among the `names` that a source has."""
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    remedy = f"{hint}kernels in it: {', '.join(names)}"
    return KernelError(f"no __global__ function named {name!r}", path=path, remedy=remedy)


# every piece of a reading asks for the lines of the same few texts
@lru_cache(maxsize=16)
def _line_starts(text: str) -> tuple[int, ...]:
    return (0, *(match.end() for match in re.finditer("\n", text)))


class LineIndex:
    """Turn character offsets into line numbers."""

    def __init__(self, text: str) -> None:
        self._starts = _line_starts(text)

    def at(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def start(self, line: int) -> int:
        return self._starts[line - 1]

    def __len__(self) -> int:
        return len(self._starts)


def bare_name(name: str) -> str:
    """Strip namespaces and template arguments: `ns::k<a::b>` becomes `k`."""
    return name.split("<", 1)[0].rsplit("::", 1)[-1].strip()
