"""Split C++ text into the declarations at one level, without a grammar that macros could upset."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tuner.source.facts import IDENTIFIER
from tuner.source.syntax import closing, closing_angle, fold, split_list

_DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n\\]|\\\n|\\.)*")
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b(?P<name>[^;{}=()]*)\{|extern\s{3,}\{")
_LONE_MACRO = re.compile(r"[A-Z_][A-Z0-9_]{2,}\s*(?=\()")
_TEMPLATE = re.compile(r"\s*template\s*(?=<)")
_REQUIRES = re.compile(r"\s*requires\b")
_ACCESS = re.compile(r"(?:public|private|protected)\s*:(?!:)")
# attributes whose parentheses are no parameter list
ATTRIBUTE = re.compile(
    r"\b(?:__align__|alignas|__attribute__|__launch_bounds__|__cluster_dims__|__maxnreg__|__declspec"
    r"|__block_size__|\w*LAUNCH_BOUNDS\w*|explicit|noexcept|decltype|requires)\s*(?=\()|\[\[.*?\]\]"
)
_CLASS = re.compile(r"\b(?:struct|class|union|enum)\b")
_STARTS = re.compile(r"\s*(?:typedef|using|friend|static_assert|concept)\b")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A directive, a scope's opening or end, or a declaration, with its place in the text.

    `name` is that of a namespace that opens, None where names inside do not need it.
    """

    what: Literal["directive", "open", "close", "code"]
    start: int
    end: int
    name: str | None = None


def chunks(masked: str, start: int = 0, end: int | None = None) -> Iterator[Chunk]:
    """Yield what stands at one level of masked C++ text; an end that never comes is its end."""
    limit = len(masked) if end is None else end
    at = start
    while at < limit:
        if masked[at] in " \t\n\v;":
            at += 1
            continue
        chunk = _chunk(masked, at, limit)
        yield chunk
        at = max(chunk.end, at + 1)


def _chunk(masked: str, at: int, limit: int) -> Chunk:
    if masked[at] == "#":
        match = _DIRECTIVE.match(masked, at, limit)
        return Chunk("directive", at, match.end() if match else at + 1)
    if masked[at] == "}":
        return Chunk("close", at, at + 1)
    if match := _SCOPE.match(masked, at, limit):
        # what is inside one without a name, an inline one or `extern "C"` is named without it
        name = "" if match[0].startswith(("inline", "extern")) else match["name"].strip()
        return Chunk("open", at, match.end(), name or None)
    if match := _ACCESS.match(masked, at, limit):
        return Chunk("directive", at, match.end())
    return Chunk("code", at, _end(masked, at, limit))


def _end(masked: str, start: int, limit: int) -> int:
    if match := _LONE_MACRO.match(masked, start, limit):
        close = closing(masked, match.end())
        if close is not None and _stands_alone(masked, close, limit):
            return close
    at = start
    while at < limit:
        character = masked[at]
        if character == ";":
            return at + 1
        if character == "}":
            return at
        if character == "#" and not masked[masked.rfind("\n", 0, at) + 1 : at].strip():
            match = _DIRECTIVE.match(masked, at, limit)
            at = match.end() if match else at + 1
            continue
        if character in "([{":
            close = closing(masked, at)
            if close is None:
                return limit
            if character == "{" and is_function(masked[start:at]):
                return close
            at = close
            continue
        at += 1
    return limit


def _stands_alone(masked: str, close: int, limit: int) -> bool:
    end = masked.find("\n", close)
    row = masked[close : limit if end < 0 else end]
    following = masked[close:limit].lstrip()[:1]
    return not row.strip() and following not in ("{", ";", ":", ",", "")


def is_function(head: str) -> bool:
    """Whether what stands before a brace is a function's head."""
    bare = without_attributes(head[template_end(head) :])
    opening = _top_level(bare, "(")
    if _STARTS.match(bare) or opening is None:
        return False
    equals = _top_level(bare, "=")
    named = bare[:opening]
    if equals is not None and equals < opening and "operator" not in named:
        return False
    return not (_CLASS.match(bare.lstrip()) and "{" in bare[:opening])


def template_end(head: str) -> int:
    """Find the end of `template <...>` and a `requires` clause in parentheses or of one name."""
    at = 0
    while match := _TEMPLATE.match(head, at):
        end = closing_angle(head, match.end())
        if end is None:
            return at
        at = end
    if match := _REQUIRES.match(head, at):
        at = _after_requirement(head, match.end())
    return at


def _after_requirement(head: str, at: int) -> int:
    # requires A<T> && (B) && C<T, 4>
    while True:
        rest = head[at:]
        lead = len(rest) - len(rest.lstrip())
        if rest.lstrip().startswith("("):
            end = closing(head, at + lead)
            at = end if end is not None else len(head)
        else:
            match = re.compile(r"\s*[\w:]+\s*").match(head, at)
            at = match.end() if match else len(head)
            if head[at : at + 1] == "<":
                at = closing_angle(head, at) or len(head)
        joined = re.compile(r"\s*(?:&&|\|\|)").match(head, at)
        if joined is None:
            return at
        at = joined.end()


def without_attributes(text: str) -> str:
    """Blank attributes with their parentheses; offsets stay."""
    for match in ATTRIBUTE.finditer(text):
        end = match.end()
        if text[end : end + 1] == "(":
            end = closing(text, end) or end
        text = text[: match.start()] + " " * (end - match.start()) + text[end:]
    return text


def _top_level(text: str, character: str) -> int | None:
    depth = 0
    for at, found in enumerate(text):
        if found == character and depth == 0 and not _is_operator(text, at):
            return at
        depth += (found in "([{<") - (found in ")]}>" and text[at - 1 : at] != "-")
        depth = max(depth, 0)
    return None


def _is_operator(text: str, at: int) -> bool:
    # `==`, `<=` and `operator()`
    if text[at] == "=":
        return text[at + 1 : at + 2] == "=" or text[at - 1 : at] in ("=", "<", ">", "!")
    return re.search(r"\boperator\s*$", text[:at]) is not None


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
