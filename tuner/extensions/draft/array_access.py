"""What a kernel does with an array: at one place, in all, and which arrays are its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.source.accesses import Bound
from tuner.source.facts import KernelFunction, SourceFile
from tuner.source.syntax import Node, fold, parse_tree, part, text_of, walk


@dataclass(frozen=True, slots=True)
class Access:
    """A place where an array is touched; `index` counts its elements from the start.

    Where it is not `exact`, whoever is handed the place may go on from there; `counts` are the
    other things that are handed with it. `adds`: an atomic sum, whose terms come in any order.
    `handed` names code that gets it and that is not in the file: with `assumed` its name alone says
    what that does, else it is unknown. `is_wide`: it is no element of the array's own type.
    """

    array: str
    index: str
    bounds: tuple[Bound, ...]
    at: int
    line: int
    loop_end: int = 0
    exact: bool = True
    reads: bool = True
    writes: bool = False
    counts: tuple[str, ...] = ()
    adds: bool = False
    handed: str = ""
    assumed: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """What is done with one array, each with the first line that does it.

    `handed` names code that gets it and that is not in the file: what that does is unknown.
    `assumed` is set where only the name of such code says what it does.
    """

    read: int | None = None
    written: int | None = None
    handed: tuple[str, int] | None = None
    assumed: bool = False

    @classmethod
    def of(cls, accesses: Sequence[Access]) -> Use:
        known = [access for access in accesses if not access.handed or access.assumed]
        unknown = [access for access in accesses if access.handed and not access.assumed]
        handed = next(iter([*unknown, *(access for access in accesses if access.handed)]), None)
        return cls(
            next((access.line for access in known if access.reads), None),
            next((access.line for access in known if access.writes), None),
            (handed.handed, handed.line) if handed is not None else None,
            assumed=handed is not None and not unknown,
        )

    @property
    def role(self) -> str:
        """The role that this makes sure, or the one that is safe where something is unknown."""
        if self.handed is not None and not self.assumed:
            return "inout"
        if self.written is None:
            return "input"
        return "output" if self.read is None else "inout"


@dataclass(frozen=True, slots=True)
class OwnArray:
    """An array of one dimension that a kernel declares; `size` is "" where the launch says it."""

    name: str
    c_type: str
    size: str


def own_arrays(source: SourceFile, kernel: KernelFunction) -> tuple[OwnArray, ...]:
    """List the arrays of one dimension in a kernel's body, in shared memory or its threads'."""
    found = []
    tree = parse_tree(source.masked)
    around = tree.descendant_for_byte_range(kernel.body[0], kernel.body[1] - 1)
    for node in walk(around) if around is not None else ():
        name, parent = part(node, "declarator"), node.parent
        if node.type != "array_declarator" or parent is None or name is None:
            continue
        whole = parent.parent if parent.type == "init_declarator" else parent
        kind = part(whole, "type")
        if name.type == "identifier" and kind is not None:
            said = [fold(text_of(one, source.masked)) for one in (name, kind, part(node, "size"))]
            found.append(OwnArray(name=said[0], c_type=said[1], size=said[2]))
    return tuple(found)


def unwrap_name(text: str) -> str:
    """Drop the parentheses around a single name."""
    match = re.fullmatch(r"\((\w+)\)", text)
    return match[1] if match else text


def name_of(node: Node | None) -> str:
    """Give the last name of a callee or a declarator, without what is around it."""
    while node is not None and node.type not in ("identifier", "field_identifier"):
        plain = ("identifier", "field_identifier", "pointer_declarator", "array_declarator")
        named = part(node, "name") or part(node, "field") or part(node, "declarator")
        node = named or next((child for child in node.named_children if child.type in plain), None)
    return node.text.decode() if node is not None and node.text is not None else ""


def split_at(text: str, sign: str) -> list[str]:
    """Split a text at a sign outside of brackets."""
    pieces, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == sign and depth == 0:
            pieces.append(text[start:at].strip())
            start = at + 1
    return [*pieces, text[start:].strip()]
