"""A rendered variant as somebody reads it: without what its config never runs, names kept.

Each step finds places in a text and what to write there, and leaves the meaning as it is. Whoever
shows the result compares the machine code (`kernel.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise

from tuner.source.syntax import Node, integer, mask, parse_tree, walk

# What replaces a part of a text: from, to, and the new text.
Edit = tuple[int, int, str]
_GUARD = re.compile(r"^#ifndef (\w+)\n#define \1\b[^\n]*\n#endif\n", re.MULTILINE)
# What stands in for the GPU where there is none (extensions/cpu).
_HOST = re.compile(
    r"^#if(?:ndef __CUDA_ON_HOST__\n|def __CUDA_ON_HOST__\n.*?^#else\n)(.*?)^#endif\n",
    re.MULTILINE | re.DOTALL,
)
_HEADER = re.compile(r"\A(?://[^\n]*\n)*")
_COMMENT = re.compile(r"^[ ]*//[^\n]*\n(?:[ ]*//[^\n]*\n)*", re.MULTILINE)
_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
# With which the other side of an operator stays as it is.
_NEUTRAL = {"&&": True, "||": False, "+": 0, "-": 0, "*": 1, "/": 1}
_PARENTHESES = "parenthesized_expression"
# What needs no parentheses, and where nothing does.
_PLAIN = ("identifier", "number_literal", "call_expression", "field_expression")
_BARE = ("init_declarator", "argument_list", "return_statement")
_SIZES = {"uint4": 16, "uint2": 8, "unsigned": 4}
_JUMPS = ("break_statement", "return_statement", "continue_statement")
_DECLARED = ("function_definition", "struct_specifier", "alias_declaration", "declaration")


def readable(source: str, macros: Mapping[str, str]) -> str:
    """Leave out what is never reached with this source's constants and `macros`."""
    text = _HOST.sub(r"\1", source)
    text = _GUARD.sub(lambda match: "" if match[1] in macros else match[0], text)
    for name, value in macros.items():
        places = re.finditer(rf"\b{name}\b", mask(text))
        text = _apply(text, [(*place.span(), value) for place in places])
    while True:
        for step in _STEPS:
            if edits := [*step(_Unit(text))]:
                text = _apply(text, edits)
                break
        else:
            return _tidy(text)


def _tidy(text: str) -> str:
    """Drop comments about no one thing, or about names that are gone, and straighten lines."""
    masked = mask(text)

    def kept(match: re.Match[str]) -> str:
        named = re.findall(r"\bk[A-Z]\w+", match[0])
        orphan = text[match.end() : match.end() + 1] == "\n"
        gone = any(re.search(rf"\b{name}\b", masked) is None for name in named)
        return "" if orphan or gone else match[0]

    head = _HEADER.match(text)
    start = head.end() if head else 0
    text = text[:start] + "".join(_COMMENT.sub(kept, text)[len(_COMMENT.sub(kept, text[:start])) :])
    text = re.sub(r"^[ ]+(?=#pragma)", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=;)[ ]{2,}//", "  //", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _apply(text: str, edits: list[Edit]) -> str:
    """Replace the outermost of these places."""
    made, at = [], 0
    for start, end, new in sorted(edits, key=lambda edit: (edit[0], -edit[1])):
        if start >= at:
            made += [text[at:start], new]
            at = end
    return "".join([*made, text[at:]])


class _Unit:
    """A text with its tree, its calls, and the whole numbers that names in it stand for."""

    def __init__(self, text: str) -> None:
        self.text, self.masked = text, mask(text)
        self.nodes = list(walk(parse_tree(text)))
        self.values: dict[str, int] = {}
        self.calls: dict[str, list[Node]] = {}
        # A name that is declared twice may be another thing at each place.
        self.names = Counter(filter(None, map(self.declares, self.nodes)))
        for node in self.nodes:
            called = node.child_by_field_name("function")
            if node.type == "call_expression" and called is not None:
                self.calls.setdefault(self.of(called).partition("<")[0], []).append(node)
            at = node.child_by_field_name("declarator")
            constant = re.match(r"(?:const|constexpr) (?:int|bool|unsigned)\b", self.of(node))
            if node.type != "declaration" or not constant or at is None:
                continue
            name, value = self.declares(at), self.value(at.child_by_field_name("value"))
            if name is not None and self.names[name] == 1 and value is not None:
                self.values[name] = value

    def of(self, node: Node | None) -> str:
        return self.text[node.start_byte : node.end_byte] if node is not None else ""

    def count(self, name: str) -> int:
        """Count where a name stands."""
        return len(re.findall(rf"\b{name}\b", self.masked))

    def arguments(self, call: Node) -> list[Node]:
        given = call.child_by_field_name("arguments")
        return given.named_children if given is not None else []

    def declares(self, node: Node) -> str | None:
        """Name what a variable's declarator, or a parameter, declares."""
        if node.type not in ("init_declarator", "parameter_declaration"):
            return None
        return self._innermost(node.child_by_field_name("declarator"))

    def name_of(self, node: Node) -> str | None:
        """Name what a declaration, a function, a type or a template declares."""
        if node.type == "template_declaration":
            inner = next((child for child in node.named_children if child.type in _DECLARED), None)
            return self.name_of(inner) if inner is not None else None
        return self._innermost(
            node.child_by_field_name("name") or node.child_by_field_name("declarator")
        )

    def _innermost(self, node: Node | None) -> str | None:
        while node is not None and node.type not in ("identifier", "type_identifier"):
            inner = node.child_by_field_name("name") or node.child_by_field_name("declarator")
            node = inner or next(iter(node.named_children), None)
        return self.of(node) or None

    def is_constant(self, text: str) -> bool:
        return text.isdigit() or text in ("true", "false") or text in self.values

    def number(self, text: str) -> int | None:
        return int(text) if text.isdigit() else self.values.get(text)

    def value(self, node: Node | None) -> int | None:
        """Compute an expression of known names; None where it depends on others."""
        if node is None:
            return None
        text = self.of(node)
        if node.type == "number_literal":
            return integer(text) if text.isdigit() else None
        if node.type in ("true", "false"):
            return node.type == "true"
        if node.type == "identifier":
            return self.values.get(text)
        if node.type in (_PARENTHESES, "condition_clause"):
            return self.value(node.named_children[0]) if len(node.named_children) == 1 else None
        if node.type == "sizeof_expression":
            size = re.fullmatch(r"sizeof\((\w+)\)", text)
            alias = re.search(rf"using {size[1]} = (\w+);", self.masked) if size else None
            return _SIZES.get(alias[1]) if alias else None
        if node.type == "unary_expression" and text.startswith("!"):
            inner = self.value(node.child_by_field_name("argument"))
            return None if inner is None else not inner
        if node.type == "conditional_expression":
            return self.value(self.chosen(node))
        return self._binary(node) if node.type == "binary_expression" else None

    def _binary(self, node: Node) -> int | None:
        operator = self.of(node.child_by_field_name("operator"))
        left = self.value(node.child_by_field_name("left"))
        right = self.value(node.child_by_field_name("right"))
        if operator in ("&&", "||"):
            decides = operator == "||"
            if any(side is not None and bool(side) is decides for side in (left, right)):
                return decides
            return None if left is None or right is None else not decides
        if left is None or right is None or operator not in _ARITHMETIC:
            return None
        if operator in "/%" and (right <= 0 or left < 0):
            return None
        return _ARITHMETIC[operator](left, right)

    def chosen(self, node: Node) -> Node | None:
        """Choose the branch of a condition that is known."""
        known = self.value(node.child_by_field_name("condition"))
        if known is None:
            return None
        return node.child_by_field_name("consequence" if known else "alternative")

    def lines(self, start: int, end: int, new: str = "") -> Edit:
        """Take whole lines out, with a comment that is about nothing else."""
        text = self.text
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        last = len(text) if last < 0 else last + 1
        if text[first:start].strip() or re.sub(r"//.*", "", text[end : last - 1]).strip():
            return start, end, new
        following = text[last : text.find("\n", last)].strip()
        whole = text[start:end].rstrip(";").endswith("}")
        while first and (not following or following == "}" or whole):
            above = text.rfind("\n", 0, first - 1) + 1
            if not text[above:first].strip().startswith("//"):
                break
            first = above
        return first, last, new


def _fold(unit: _Unit) -> Iterator[Edit]:
    """Keep the branch that is taken of each condition that is known, and simplify sums."""
    for node in unit.nodes:
        start, end, around = node.start_byte, node.end_byte, node.parent
        if node.type == "if_statement" and (
            unit.value(node.child_by_field_name("condition")) is not None
        ):
            taken = unit.chosen(node)
            if taken is not None and taken.type == "else_clause":
                taken = taken.named_children[-1]
            body = unit.of(taken)
            alone = around is not None and around.type == "compound_statement"
            if alone and taken is not None and taken.type == "compound_statement":
                lines = body[1:-1].strip("\n").rstrip().split("\n")
                body = "\n".join(line.removeprefix("  ") for line in lines).lstrip()
            if body:
                yield start, end, body
            elif around is not None and around.type == "else_clause":
                yield around.start_byte - 1, around.end_byte, ""
            else:
                yield unit.lines(start, end) if alone else (start, end, ";")
        elif node.type == "conditional_expression" and (chosen := unit.chosen(node)) is not None:
            if around is not None and around.type == _PARENTHESES and chosen.type in _PLAIN:
                start, end = around.start_byte, around.end_byte
            yield start, end, unit.of(chosen)
        elif node.type == "binary_expression":
            operator = unit.of(node.child_by_field_name("operator"))
            left, right = (node.child_by_field_name(side) for side in ("left", "right"))
            neutral = _NEUTRAL.get(operator)
            if operator in ("&&", "||") and (known := unit.value(node)) is not None:
                yield start, end, str(bool(known)).lower()
            elif operator == "%" and unit.value(right) == 1:
                yield start, end, "0"
            elif neutral is not None and unit.value(right) == neutral:
                yield start, end, unit.of(left)
            elif neutral is not None and unit.value(left) == neutral and operator not in "-/":
                yield start, end, unit.of(right)
        elif node.type == _PARENTHESES and around is not None and around.type in _BARE:
            yield start, end, unit.of(node)[1:-1]
        elif node.type == "static_assert_declaration" and (
            unit.value(node.child_by_field_name("condition"))
        ):
            yield unit.lines(start, end)


def _bind_template(unit: _Unit) -> Iterator[Edit]:
    """Take a template's first number out where every use passes the same constant."""
    for node in unit.nodes:
        parameters = node.child_by_field_name("parameters")
        name = unit.name_of(node) if node.type == "template_declaration" else None
        if parameters is None or name is None or not parameters.named_children:
            continue
        first, *others = parameters.named_children
        own = unit.declares(first)
        functions = (one for one in unit.nodes if one.type == "template_function")
        uses = [function for function in functions if unit.of(function.named_children[0]) == name]
        if own is None or not uses or unit.count(name) != len(uses) + 1:
            continue
        lists = [unit.arguments(use) for use in uses]
        given = {unit.of(nodes[0]) for nodes in lists}
        if len(given) > 1 or not unit.is_constant(*given):
            continue
        body = node.named_children[-1]
        yield (
            (first.start_byte, others[0].start_byte, "")
            if others
            else (node.start_byte, body.start_byte, "")
        )
        yield from _rename(unit, body, own, given.pop())
        for one, (passed, *more) in zip(uses, lists, strict=True):
            end = more[0].start_byte if more else one.end_byte
            yield (passed.start_byte if more else one.named_children[0].end_byte), end, ""


def _bind_arguments(unit: _Unit) -> Iterator[Edit]:
    """Take out a function's arguments that it does not use, or that are one constant always."""
    for node in unit.nodes:
        name = unit.name_of(node) if node.type == "function_definition" else None
        calls = unit.calls.get(name or "", ())
        if name is None or not calls or unit.count(name) != len(calls) + 1:
            continue
        taken = next(one for one in walk(node) if one.type == "parameter_list").named_children
        body = node.child_by_field_name("body")
        assert body is not None
        for at, parameter in enumerate(taken):
            own = unit.declares(parameter)
            given = {unit.of(unit.arguments(call)[at]) for call in calls}
            if own is None or any("(" in one for one in given):
                continue
            uses = [*_rename(unit, body, own, next(iter(given)))]
            if uses and not (len(given) == 1 and unit.is_constant(*given)):
                continue
            yield from uses
            for parts in (taken, *map(unit.arguments, calls)):
                one = parts[at]
                if at + 1 < len(parts):
                    yield one.start_byte, parts[at + 1].start_byte, ""
                else:
                    yield (parts[at - 1].end_byte if at else one.start_byte), one.end_byte, ""
            return


def _rename(unit: _Unit, within: Node, name: str, new: str) -> Iterator[Edit]:
    # By words: the tree has no inline PTX.
    for match in re.finditer(rf"(?<![\w.>]){name}\b", unit.masked[: within.end_byte]):
        if match.start() >= within.start_byte:
            yield *match.span(), new


def _name_once(unit: _Unit) -> Iterator[Edit]:
    """Call a thing by its first name: numbers by theirs, types of templates of types."""
    assigned = {
        unit.of(node.child_by_field_name("left"))
        for node in unit.nodes
        if node.type == "assignment_expression"
    }
    for node in unit.nodes:
        whole, scope = unit.of(node), node.parent
        local = re.fullmatch(r"const int (\w+) = (\w+);|constexpr int (\w+) = (k\w+);", whole)
        if local and scope is not None:
            name, value = filter(None, local.groups())
            if value not in assigned:
                yield unit.lines(node.start_byte, node.end_byte)
                hidden = [
                    one
                    for one in walk(scope)
                    if one.type in ("compound_statement", "function_definition", "for_statement")
                    and node.end_byte < one.start_byte
                    and any(unit.declares(inner) == name for inner in walk(one))
                ]
                for edit in _rename(unit, scope, name, value):
                    shadowed = any(one.start_byte <= edit[0] < one.end_byte for one in hidden)
                    if edit[0] > node.end_byte and not shadowed:
                        yield edit
                return
        of = re.fullmatch(r"using \w+ = ((\w+)<(\w+)>::type);?", whole)
        if of:
            exact = rf"<>\nstruct {of[2]}<{unit.number(of[3])}>"
            for head in (exact, rf"<int \w+>\nstruct {of[2]}"):
                if match := re.search(rf"template {head} {{\n  using type = (\w+);", unit.text):
                    yield node.start_byte, node.end_byte, whole.replace(of[1], match[1])
                    break


_LOOP = re.compile(
    r"for \(int (?P<name>\w+) = (?P<from>\w+); (?P<while>(?P=name) < (?P<to>\w+)|[^;]+);"
    r" (?:\+\+(?P=name)|(?P=name) \+= (?P<step>\w+)|[^)]+)\) {\n"
)


def _call_constants(unit: _Unit) -> Iterator[Edit]:
    """Write what a function always gives in the place of its calls."""
    for node in unit.nodes:
        always = re.fullmatch(r"{\s*return (true|false);\s*}", unit.of(node))
        if node.type == "compound_statement" and always and node.parent is not None:
            for call in unit.calls.get(unit.name_of(node.parent) or "", ()):
                yield call.start_byte, call.end_byte, always[1]


def _run_once(unit: _Unit) -> Iterator[Edit]:
    """Write the body of a loop that has one turn without the loop."""
    for node in unit.nodes:
        body, scope = node.child_by_field_name("body"), node.parent
        head = _LOOP.match(unit.of(node)) if node.type == "for_statement" else None
        if head is None or body is None or scope is None or not body.named_children:
            continue
        jumps = [one.type for one in walk(node) if one.type in _JUMPS]
        numbers = [unit.number(head[part] or "1") for part in ("from", "to", "step")]
        if head["to"] and not jumps and None not in numbers:
            start, stop, step = (number for number in numbers if number is not None)
            if start < stop <= start + step:
                yield _inlined(unit, node, body, scope, partial(_with, head["name"], start))
                return
        if body.named_children[-1].type == "break_statement" and len(jumps) == 1:
            text = unit.of(node)
            end = body.named_children[-1].start_byte - node.start_byte
            made = f"if ({head['while']}) {{\n{text[head.end() : end].rstrip()}"
            made = _with(head["name"], numbers[0] or 0, made)
            yield node.start_byte, node.end_byte, made + text[text.rfind("\n") :]
            return


def _with(name: str, value: int, text: str) -> str:
    return re.sub(rf"\b{name}\b", str(value), text)


def _inlined(unit: _Unit, loop: Node, body: Node, scope: Node, named: Callable[[str], str]) -> Edit:
    """Write a loop's body in its place, without what was declared before in the same words."""
    before, lines = unit.text[scope.start_byte : loop.start_byte], []
    for part in body.named_children:
        if part.type != "declaration" or named(unit.of(part)) not in before:
            first = unit.text.rfind("\n", 0, part.start_byte) + 1
            lines += unit.text[first : part.end_byte].split("\n")
    first = unit.text.rfind("\n", 0, loop.start_byte) + 1
    above = unit.text.rfind("\n", 0, first - 1) + 1
    pragma = unit.text[above:first].lstrip().startswith("#pragma unroll")
    made = "\n".join(line.removeprefix("  ") for line in lines)
    return (above if pragma else first), loop.end_byte, named(made)


def _join(unit: _Unit) -> Iterator[Edit]:
    """Write an array of one thing without the index, and a name with its value."""
    for node in unit.nodes:
        text, scope, after = unit.of(node), node.parent, node.next_named_sibling
        if node.type != "declaration" or scope is None:
            continue
        bare = re.fullmatch(r"(\w+) (\w+);", text)
        if bare and after is not None and unit.of(after).startswith(f"{bare[2]} = "):
            yield node.start_byte, after.end_byte, f"{bare[1]} {unit.of(after)}"
        one = re.fullmatch(r"\w+ (\w+)\[(\w+)\](?: = {})?;", text)
        if one and unit.number(one[2]) == 1:
            within = unit.masked[node.end_byte : scope.end_byte]
            used = [*re.finditer(rf"\b{one[1]}\[0\]", within)]
            if used and len(used) == len(re.findall(rf"\b{one[1]}\b", within)):
                yield node.start_byte, node.end_byte, text.replace(f"[{one[2]}]", "")
                for match in used:
                    yield node.end_byte + match.start(), node.end_byte + match.end(), one[1]


def _drop_unreached(unit: _Unit) -> Iterator[Edit]:
    """Take out what follows a jump."""
    for node in unit.nodes:
        parts = node.named_children if node.type == "compound_statement" else []
        for before, after in pairwise(parts):
            if before.type in _JUMPS and after.type != "comment":
                yield unit.lines(after.start_byte, parts[-1].end_byte)
                break


def _drop_unused(unit: _Unit) -> Iterator[Edit]:
    """Take out functions, types and names that nothing else names, with their comments."""
    declared: dict[str, list[Node]] = {}
    for node in unit.nodes:
        if node.type not in (*_DECLARED, "template_declaration") or "__global__" in unit.of(node):
            continue
        calls = any(one.type == "call_expression" for one in walk(node))
        inside = node.parent is not None and node.parent.type == "template_declaration"
        name = unit.name_of(node)
        if name and not inside and not (node.type == "declaration" and calls):
            declared.setdefault(name, []).append(node)
    for name, nodes in declared.items():
        rest = unit.masked
        for node in nodes:
            blank = " " * (node.end_byte - node.start_byte)
            rest = rest[: node.start_byte] + blank + rest[node.end_byte :]
        unused = re.search(rf"\b{name}\b", rest) is None
        counts = {len(unit.arguments(one)) for one in unit.calls.get(name, ())}
        for node in nodes:
            takes = next((one for one in walk(node) if one.type == "parameter_list"), None)
            overload = len(nodes) > 1 and takes is not None and counts
            if unused or (overload and takes and len(takes.named_children) not in counts):
                end = node.end_byte + (unit.text[node.end_byte : node.end_byte + 1] == ";")
                yield unit.lines(node.start_byte, end)


_STEPS = (
    _fold,
    _bind_template,
    _bind_arguments,
    _call_constants,
    _name_once,
    _run_once,
    _join,
    _drop_unreached,
    _drop_unused,
)
