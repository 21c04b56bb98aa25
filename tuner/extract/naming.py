"""What a definition is and which names it has, from its text alone."""

from __future__ import annotations

import re
from typing import Literal

from tuner.extract.chunks import is_function, template_end, without_attributes
from tuner.source.facts import IDENTIFIER
from tuner.source.text import closing, closing_angle, fold, split_list

Kind = Literal[
    "function", "class", "alias", "using", "directive", "macro", "variable", "instantiation",
    "assertion", "invocation",
]  # fmt: skip
CLASS = re.compile(r"\s*(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?)\b")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
_OPERATOR = re.compile(r"\boperator\b")
_LONE = re.compile(r"\s*([A-Z_][A-Z0-9_]{2,})\s*(?=\()")
_QUALIFIED = re.compile(
    r"((?:[A-Za-z_]\w*\s*(?:<[^()]*>)?\s*::\s*)*)(~?[A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*$"
)


def named(masked: str, head: str) -> tuple[Kind, tuple[str, ...]]:
    """Tell what kind of definition a text is and what it names; `head` comes before a body."""
    after = template_end(masked)
    bare = without_attributes(masked[after:])
    declared = bare.strip()
    is_function_head = masked.endswith("}") and is_function(head)
    if re.match(r"template\b(?!\s*<)|extern\s+template\b", masked):
        return "instantiation", ()
    if declared.startswith("static_assert"):
        return "assertion", ()
    if match := re.match(r"using\s+namespace\s+([\w:\s]+);", declared):
        return "directive", (fold(match[1]),)
    if match := re.match(r"namespace\s+(\w+)\s*=", declared):
        return "alias", (match[1],)
    if match := re.match(r"using\s+(\w+)\b[^=;]*=", declared):
        return "alias", (match[1],)
    if declared.startswith("using"):
        last = (IDENTIFIER.findall(piece)[-1:] for piece in declared.split(","))
        return "using", tuple(name for found in last for name in found)
    if match := re.match(r"(?:concept)\s+(\w+)", declared):
        return "variable", (match[1],)
    if declared.startswith("typedef"):
        return _typedef(declared)
    if CLASS.match(declared) and not is_function_head:
        return "class", _class_names(declared)
    if (match := _LONE.match(declared)) and _is_lone(declared, match.end()):
        return "invocation", (match[1],)
    own = function_name(masked[: len(head)] if is_function_head else masked)
    if is_function_head or (own and _is_prototype(bare)):
        return "function", own
    return "variable", _variables(bare)


def _is_lone(declared: str, opening: int) -> bool:
    end = closing(declared, opening)
    return end is not None and declared[end:].lstrip()[:1] in ("", ";", "{")


def _typedef(declared: str) -> tuple[Kind, tuple[str, ...]]:
    pointer = re.search(r"\(\s*[\w:]*\*\s*(\w+)\s*\)\s*\(", declared)
    if pointer is not None:
        return "alias", (pointer[1],)
    last = _VARIABLE.search(declared.rstrip("; \n"))
    own = _class_names(declared) if "{" in declared else ()
    return "alias", (*((last[1],) if last else ()), *own)


def _class_names(declared: str) -> tuple[str, ...]:
    match = re.match(
        r"(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+"
        r"(?:[A-Z_]+\s+)?((?:\w+\s*::\s*)*\w+)", declared
    )  # fmt: skip
    names = [match[1].rsplit("::", 1)[-1].strip()] if match else []
    if re.match(r"(?:typedef\s+)?enum\b", declared) and "{" in declared:
        inside = declared[declared.index("{") + 1 : declared.rfind("}")]
        names += [IDENTIFIER.findall(text)[0] for text, _ in split_list(inside) if text]
    return tuple(names)


def function_name(head: str) -> tuple[str, ...]:
    """Name a function, its class first where it is a member that is defined outside."""
    bare = without_attributes(head[template_end(head) :])
    if _OPERATOR.search(bare):
        qualifier = re.search(r"(\w+)\s*(?:<[^()]*>)?\s*::\s*operator", bare)
        return (qualifier[1],) if qualifier else ()
    groups = []
    at = 0
    while at < len(bare):
        if bare[at] == "(":
            end = closing(bare, at)
            if end is None:
                break
            groups.append(at)
            at = end
        elif bare[at] == "<" and bare[at - 1 : at] != "<" and bare[at + 1 : at + 2] != "<":
            at = closing_angle(bare, at) or at + 1
        elif bare[at] in ";{=":
            break
        else:
            at += 1
    for opening in groups:
        match = _QUALIFIED.search(bare[:opening])
        if match is not None and match[2] not in ("void", "if", "return", "sizeof"):
            around: list[str] = IDENTIFIER.findall(re.sub(r"<[^()]*>", "", match[1]))
            return (*around[-1:], match[2])
    return ()


def _is_prototype(bare: str) -> bool:
    opening = bare.find("(")
    return opening >= 0 and "=" not in bare[:opening] and "{" not in bare[:opening]


def _variables(bare: str) -> tuple[str, ...]:
    found = []
    for text, _ in split_list(bare.strip().rstrip(";"), angles=True):
        declared = re.split(r"=(?!=)|\{", text, maxsplit=1)[0].strip()
        declared = declared.split("(")[0]
        if match := _VARIABLE.search(declared):
            found.append(match[1])
    return tuple(found)
