"""What names and numbers stand for on one way of host code to a launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tuner.extensions.draft.host_code import Condition
from tuner.extensions.draft.translate import Scope, parse_expression, translate
from tuner.source.accesses import Assigned, bare, handed_by_reference
from tuner.source.facts import IDENTIFIER, SourceFile, Span, within
from tuner.source.host import Edit, apply_edits
from tuner.source.syntax import (
    Node,
    ancestors,
    closing,
    fold,
    number,
    parse_tree,
    part,
    span_of,
    text_of,
    walk,
)

_MAX_DEPTH = 12
_NULL = ("nullptr", "NULL")
_CAST = re.compile(
    r"^(?:\((?:const\s+)?(?:unsigned|signed|int|long|size_t|u?int\d*_t|float|double|[\w:]+\s*\*)"
    r"(?:\s+\w+|\s*\*)*\s*\)|(?:static|reinterpret|const)_cast<[^<>]*>)\s*(?=[\w(&-])"
)
# `int64_t(row)`
_FUNCTIONAL = re.compile(r"(?:unsigned|int|long|size_t|u?int\d+_t|float|double)\s*(?=\()")
_COMMAND_LINE = re.compile(r"\b(?:argc|argv|getenv|ato(?:i|l|ll)|strto\w+|sto(?:i|l|ul|ll|ull))\b")
_ELSEWHERE = frozenset(
    ("for_statement", "while_statement", "do_statement", "for_range_loop", "lambda_expression",
     "switch_statement")
)  # fmt: skip
_UNSET = "unset__"
_LONGEST = 2_000
_COMPARED = re.compile(r"\(?([^<>=&|?]+?)(<|>)=?([^<>=&|?]+?)\)?")

_WHOLE_FLOAT = re.compile(r"(\d+)(?:\.0*)?(?:[eE]\+?(\d{1,2}))?[fF]?")


@dataclass(frozen=True, slots=True)
class Frame:
    """One function up to the call that leads on; `passed` maps its parameters to its caller's.

    `conditions` are what has to hold in it to come there.
    """

    span: Span
    line: int
    variables: Mapping[str, Assigned]
    passed: Mapping[str, str]
    conditions: tuple[Condition, ...] = ()


# the launch's own function first, the outermost caller last
Path = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Number:
    # a whole number that the source states, and the line where
    value: int
    line: int


@dataclass(frozen=True, slots=True)
class Host:
    """What the names mean on one way to the launch; level 0 is the launch's own function."""

    source: SourceFile
    path: Path

    def follow(self, text: str, level: int = 0) -> tuple[str, int]:
        """Follow a name through variables and callers; return what it stands for, and the level."""
        for _ in range(_MAX_DEPTH):
            text = plain(text)
            before = self.before(text, level)
            if before is None:
                break
            text, level = before
        return text, level

    def before(self, name: str, level: int) -> tuple[str, int] | None:
        """Give what a name is set to, or what the caller passes for it, one level up; or None."""
        frame = self.path[level]
        if name in frame.variables:
            return frame.variables[name].text, level
        if name in frame.passed and level + 1 < len(self.path):
            return frame.passed[name], level + 1
        return None

    def number(
        self, text: str, level: int = 0, line: int | None = None, depth: int = 0
    ) -> Number | None:
        """Compute a whole number from what the source states, where it does."""
        text = plain(text)
        line = self.path[level].line if line is None else line
        value = _literal(text)
        if value is not None:
            return Number(value, line)
        if depth > _MAX_DEPTH:
            return None
        if IDENTIFIER.fullmatch(text):
            if (before := self.before(text, level)) is not None:
                variable = self.path[level].variables.get(text)
                at = None if variable is None else self.source.line_at(variable.at)
                return self.number(*before, at, depth + 1)
            constants = [c for c in self.source.constants if c.name == text]
            if len(constants) != 1:
                return None
            return self.number(constants[0].value, level, constants[0].line, depth + 1)
        source, node = parse_expression(text) or ("", None)
        if node is None or node.type != "conditional_expression" or node.named_child_count != 3:
            stated = self._insert_numbers(text, level, line, depth + 1)
            value = None if stated is None else _literal(stated)
            return None if value is None else Number(value, line)
        # `argc > 1 ? atoi(argv[1]) : 1 << 20`: the one that needs no command line
        test, *texts = (text_of(child, source) for child in node.named_children)
        holds = self.holds(test, level, depth + 1)
        if holds is not None:
            return self.number(texts[0 if holds else 1], level, line, depth + 1)
        numbers = [self.number(text, level, line, depth + 1) for text in texts]
        if not _COMMAND_LINE.search(text):
            # which branch is taken nobody knows: a stride may be 0 in the other one
            values = {None if one is None else one.value for one in numbers}
            return numbers[0] if len(values) == 1 else None
        named = [found for found in numbers if found is not None]
        return named[0] if len(named) == 1 else None

    def holds(self, condition: str, level: int = 0, depth: int = 0) -> bool | None:
        """Tell whether a condition in one of the functions holds; None where nobody knows."""
        stated = self._insert_numbers(plain(condition), level, self.path[level].line, depth)
        value = None if stated is None else translate(stated, Scope())
        found = None if value is None else number(value)
        return None if found is None else bool(found)

    @property
    def is_ruled_out(self) -> bool:
        """Whether a condition on the way is known not to be as the launch needs it."""
        return any(
            self.holds(condition.text, level) is (not condition.holds)
            for level, frame in enumerate(self.path)
            for condition in frame.conditions
        )

    def _insert_numbers(self, text: str, level: int, line: int, depth: int) -> str | None:
        # numbers in place of names; None where one is unknown
        edits: list[Edit] = []
        for match in IDENTIFIER.finditer(text):
            # `4u` and `0x10` hold letters that are no names
            if match.start() and text[match.start() - 1].isdigit():
                continue
            found = self.number(match[0], level, line, depth)
            if found is None:
                return None
            edits.append(Edit(*match.span(), str(found.value)))
        return apply_edits(text, edits)


def answer_conditions(text: str, answers: Mapping[str, bool]) -> str:
    # `condition ? value : other`, as far as conditions have an answer
    for _ in range(_MAX_DEPTH):
        source, node = parse_expression(plain(text)) or ("", None)
        if node is None or node.type != "conditional_expression" or node.named_child_count != 3:
            break
        test, *texts = (text_of(child, source) for child in node.named_children)
        asked = bare(test)
        is_negated = asked not in answers and asked.startswith("!")
        holds = answers.get(bare(asked[1:]) if is_negated else asked)
        if holds is None:
            break
        text = texts[0 if holds is not is_negated else 1]
    return text


def plain(text: str) -> str:
    """Strip casts and the parentheses around a whole expression."""
    text = text.strip()
    for _ in range(_MAX_DEPTH):
        if text.startswith("(") and closing(text, 0) == len(text):
            text = text[1:-1].strip()
        elif match := _CAST.match(text):
            text = text[match.end() :].strip()
        elif (match := _FUNCTIONAL.match(text)) and closing(text, match.end()) == len(text):
            text = text[match.end() + 1 : -1].strip()
        else:
            break
    return text


def _literal(text: str) -> int | None:
    value = 0 if text in _NULL else number(text)
    if value is not None and not isinstance(value, bool):
        return value
    whole = _WHOLE_FLOAT.fullmatch(text)
    return int(whole[1]) * 10 ** int(whole[2] or 0) if whole else None


def branch_values(masked: str, around: Span, at: int) -> dict[str, str]:
    """Map the variables of the function `around` to what they are at `at`, each as one expression.

    What a loop sets, is counted or is handed out by address or reference is left out.
    """
    root = parse_tree(masked).descendant_for_byte_range(around[0], max(at, around[0]))
    values: dict[str, str] = {}
    declared: dict[str, int] = {}
    lost = handed_by_reference(masked, (around[0], max(at, around[0])))
    for node in walk(root) if root is not None else ():
        if node.start_byte >= at:
            break
        if node.start_byte < around[0]:
            continue
        named = part(node, "left" if node.type == "assignment_expression" else "declarator")
        is_plain = named is not None and named.type == "identifier"
        name = fold(text_of(named, masked)) if is_plain else ""
        if node.type in ("init_declarator", "declaration") and name:
            lost |= {name} & declared.keys()
            declared[name] = node.start_byte
            values[name] = fold(text_of(part(node, "value"), masked)) or _UNSET
        elif node.type == "assignment_expression" and name in declared:
            if (value := _assigned(node, name, values[name], masked, (declared[name], at))) is None:
                lost.add(name)
            else:
                values[name] = value
        elif node.type in ("update_expression", "pointer_expression"):
            lost.add(fold(text_of(part(node, "argument"), masked)))
    return {
        name: text
        for name, text in values.items()
        if name not in lost and _UNSET not in text and len(text) < _LONGEST
    }


def _assigned(node: Node, name: str, old: str, masked: str, seen: Span) -> str | None:
    # what the variable is after an assignment; `seen` from its declaration to the launch
    conditions, is_other = [], False
    for child, outer in pairwise((node, *ancestors(node))):
        if outer.start_byte <= seen[0]:
            break
        if outer.type in _ELSEWHERE:
            return None
        if outer.type != "if_statement" or child == part(outer, "condition"):
            continue
        if within(seen[1], [span_of(child)]):
            continue
        if within(seen[1], [span_of(outer)]):
            return old  # on the other branch
        told = fold(text_of(part(outer, "condition"), masked))
        is_other |= child == part(outer, "alternative")
        conditions.append(f"!{told}" if child == part(outer, "alternative") else told)
    value = fold(text_of(part(node, "right"), masked))
    sign = fold(text_of(part(node, "operator"), masked))
    value = value if sign == "=" else f"{name} {sign[:-1]} ({value})"
    own = re.compile(rf"(?<![\w.]){name}\b")
    if len(conditions) == 1 and (compared := _COMPARED.fullmatch(conditions[0])):
        left, right = compared[1].strip(), compared[3].strip()
        if name in (left, right) and value in (left, right):
            least = (compared[2] == ">") is (left == name)
            return f"{'min' if least else 'max'}({old}, {value})"
    value = own.sub(f"({old})", value)
    if is_other and _UNSET in old:
        return old.replace(_UNSET, value)
    asked = own.sub(f"({old})", " && ".join(conditions))
    return f"({asked}) ? ({value}) : ({old})" if conditions else value
