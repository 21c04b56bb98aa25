"""Split C++ text into the declarations at one level, without a grammar that macros could upset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tuner.extensions.draft.extract.names import DEVICE_NAMES
from tuner.extensions.draft.extract.reading import Reading, SourceCode
from tuner.source.facts import IDENTIFIER, Span
from tuner.source.host import Edit, apply_edits
from tuner.source.syntax import closing, closing_angle, fold, mask, split_list, top_level

_DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n\\]|\\\n|\\.)*")
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b(?P<name>[^;{}=()]*)\{|extern\s{3,}\{")
# a macro with its arguments, which nothing but a line's end follows
_LONE_MACRO = re.compile(
    r"(?!__|(?:alignas|decltype|requires|explicit|noexcept|static_assert|operator)\b)"
    r"[A-Za-z_]\w{2,}\s*(?=\()"
)
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
        if close is not None:
            rest = masked[close:limit]
            following = rest.lstrip()[:1]
            if not rest.partition("\n")[0].strip() and following not in ("{", ";", ":", ",", ""):
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


def is_function(head: str) -> bool:
    """Whether what stands before a brace is a function's head."""
    bare = without_attributes(head[template_end(head) :])
    opening = top_level(bare, "(")
    if _STARTS.match(bare) or opening is None:
        return False
    equals = top_level(bare, "=")
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
    # requires A<T> && (B) && C<T, 4>
    joined = _REQUIRES.match(head, at)
    while joined is not None:
        match = re.compile(r"\s*(?:(?=\()|([\w:]+)\s*)").match(head, joined.end())
        at = match.end() if match else len(head)
        if match and head[at : at + 1] == ("<" if match[1] else "("):
            at = (closing_angle if match[1] else closing)(head, at) or len(head)
        joined = re.compile(r"\s*(?:&&|\|\|)").match(head, at)
    return at


def without_attributes(text: str) -> str:
    """Blank attributes with their parentheses; offsets stay."""
    for match in ATTRIBUTE.finditer(text):
        end = match.end()
        if text[end : end + 1] == "(":
            end = closing(text, end) or end
        text = text[: match.start()] + " " * (end - match.start()) + text[end:]
    return text


ItemKind = Literal[
    "function", "class", "alias", "using", "directive", "macro", "variable", "instantiation",
    "assertion", "invocation",
]  # fmt: skip
CLASS = re.compile(r"\s*(?:typedef\s+)?(?:struct|class|union|enum(?:\s+(?:class|struct))?)\b")
_SIMPLE: dict[ItemKind, re.Pattern[str]] = {
    "assertion": re.compile(r"static_assert"),
    "directive": re.compile(r"using\s+namespace\s+([\w:\s]+);"),
    "alias": re.compile(
        r"(?:namespace\s+(?=\w+\s*=)|using\s+(?=\w+\b[^=;]*=)"
        r"|typedef.*?\(\s*[\w:]*\*\s*(?=\w+\s*\)\s*\())(\w+)",
        re.DOTALL,
    ),
    "variable": re.compile(r"concept\s+(\w+)"),
}
_VARIABLE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")
_OPERATOR = re.compile(r"\boperator\b")

_QUALIFIED = re.compile(
    r"((?:[A-Za-z_]\w*\s*(?:<[^()]*>)?\s*::\s*)*)(~?[A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*$"
)


def read_kind(masked: str, head: str) -> tuple[ItemKind, tuple[str, ...]]:
    """Tell what kind of definition a text is and what it names; `head` comes before a body."""
    after = template_end(masked)
    bare = without_attributes(masked[after:])
    declared = bare.strip()
    is_function_head = masked.endswith("}") and is_function(head)
    if re.match(r"template\b(?!\s*<)|extern\s+template\b", masked):
        return "instantiation", ()
    for kind, pattern in _SIMPLE.items():
        if match := pattern.match(declared):
            return kind, tuple(map(fold, match.groups()))
    if declared.startswith("using"):
        pieces = (IDENTIFIER.findall(piece)[-1:] for piece in declared.split(","))
        return "using", tuple(name for found in pieces for name in found)
    if declared.startswith("typedef"):
        last = _VARIABLE.search(declared.rstrip("; \n"))
        inside = _class_names(declared) if "{" in declared else ()
        return "alias", (*((last[1],) if last else ()), *inside)
    if CLASS.match(declared) and not is_function_head:
        # `struct { ... } typedef A;` is a way to say it, too
        behind = re.search(r"\}\s*typedef\s+(\w+)\s*;?$", declared)
        return "class", (*_class_names(declared), *(behind.groups() if behind else ()))
    if match := _LONE_MACRO.match(declared):
        end = closing(declared, match.end())
        if end is not None and declared[end:].lstrip()[:1] in ("", ";", "{"):
            return "invocation", (match[0].rstrip(),)
    own = function_name(masked[: len(head)] if is_function_head else masked)
    # a prototype has its parentheses before any value
    if is_function_head or (own and re.match(r"[^={(]*\(", bare)):
        return "function", own
    texts = (text for text, _ in split_list(bare.strip().rstrip(";"), angles=True))
    heads = (re.split(r"=(?!=)|\{", text, maxsplit=1)[0].strip() for text in texts)
    matches = (_VARIABLE.search(head.split("(")[0]) for head in heads)
    return "variable", tuple(match[1] for match in matches if match)


def _class_names(declared: str) -> tuple[str, ...]:
    match = re.match(rf"{CLASS.pattern}\s+(?:[A-Z_]+\s+)?((?:\w+\s*::\s*)*\w+)", declared)
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


_HOST = re.compile(
    r"<<<|\bcuda(?:Stream|Error|Event|Launch|Get|Set|Malloc|Memcpy|Free|Func|Device|Occupancy)\w*"
    r"|\b(?:torch|at|c10)\s*::\s*(?:(?:native|cuda|detail|memory|cuda_utils)\s*::\s*)*+"
    rf"(?!(?:{'|'.join(DEVICE_NAMES)})\b)|\b(?:tvm|pybind11|py|thrust)\s*::"
    r"|\bstd\s*::\s*(?:vector|string|optional|function|map|unordered_map|cerr|cout|runtime_error"
    r"|ostringstream|stringstream|shared_ptr|unique_ptr|mutex|getenv|invalid_argument)\b"
    r"|\b(?:TORCH_|AT_|TVM_|PYBIND|CHECK_)\w+|\bthrow\b|\bCU(?:tensorMap|stream|result|function)\b"
)
_MEMBER = re.compile(r"(?:\.|->)\s*([A-Za-z_]\w*)")
# several names of one type
_CUDA_NAME = re.compile(r"\b(?:nv_)?(half2?)\b|\b(nv_bfloat162?)\b")


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One definition, with comments above it in `text`, and the code alone in `code`.

    `conditions` are the #ifs around it that only the compiler can decide, `head` is what comes
    before a body, `lead` how far into `text` the code begins; `is_made`: by a macro in that line.
    """

    path: Path
    line: int
    kind: ItemKind
    names: tuple[str, ...]
    text: str
    code: str
    head: str
    namespace: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    lead: int = 0
    is_made: bool = False

    @property
    def key(self) -> tuple[Path, int, str, tuple[str, ...]]:
        return self.path, self.line, self.kind, self.names

    @property
    def name(self) -> str:
        return self.names[0] if self.names else fold(self.code)[:40]

    @property
    def is_kernel(self) -> bool:
        """Whether it is a `__global__` function with a body."""
        marked = self.kind == "function" and "__global__" in self.head
        return marked and bool(self.names) and self.code.endswith("}")

    def with_edits(self, edits: Iterable[tuple[Span, str]]) -> SourceItem:
        """Put texts in the place of spans of the code, given in order, and in `text` too."""
        placed = [Edit(*span, new) for span, new in edits]
        moved = (Edit(self.lead + e.start, self.lead + e.end, e.text) for e in placed)
        text, code = apply_edits(self.text, moved), apply_edits(self.code, placed)
        return replace(self, text=text, code=code)

    def uses(self) -> frozenset[str]:
        """List the names it refers to; members of something else are not names of their own."""
        members = {match.start(1) for match in _MEMBER.finditer(self.code)}
        text = "\n".join([self.code, *self.conditions])
        return frozenset(m[0] for m in IDENTIFIER.finditer(text) if m.start() not in members)


def says_host(code: str) -> bool:
    """Whether code holds what only a host compiler takes."""
    return _HOST.search(code) is not None


def items_of(
    reading: Reading, path: Path, namespace: tuple[str, ...] = (), conditions: tuple[str, ...] = ()
) -> Iterator[SourceItem]:
    """List the definitions of a source and its headers in the order of the #includes."""
    code = reading.files[path.resolve()]
    scopes: list[str | None] = []
    open_ones: list[list[str]] = []
    for chunk in chunks(code.masked):
        held = (*conditions, *(" && ".join(group) for group in open_ones))
        within = (*namespace, *(scope for scope in scopes if scope is not None))
        if chunk.what == "open":
            scopes.append(chunk.name)
        elif chunk.what == "close":
            del scopes[-1:]
        elif chunk.what == "code":
            yield _item(code, chunk, within, held)
        elif (included := code.included.get(code.line(chunk.start))) is not None:
            if included.path is not None:
                yield from items_of(reading, included.path, within, held)
        elif not _conditional(code.masked[chunk.start : chunk.end], open_ones):
            item = _item(code, chunk, (), held)
            if item.kind == "macro":
                yield item


def _conditional(directive: str, open_ones: list[list[str]]) -> bool:
    match = re.match(r"#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)", directive, re.DOTALL)
    if match is None:
        return False
    rest = fold(match[2])
    asked = {"ifdef": f"defined({rest})", "ifndef": f"!defined({rest})", "else": ""}
    condition = asked.get(match[1], f"({rest})")
    if match[1] == "endif":
        del open_ones[-1:]
    elif match[1] in ("elif", "else") and open_ones:
        last = open_ones[-1]
        open_ones[-1] = [*last[:-1], f"!{last[-1]}", *([condition] if condition else [])]
    else:
        open_ones.append([condition])
    return True


def _item(
    code: SourceCode, chunk: Chunk, namespace: tuple[str, ...], conditions: tuple[str, ...]
) -> SourceItem:
    start, end = chunk.start, chunk.end
    masked = code.masked[start:end]
    # the comment right above belongs to what follows, one above a blank line to the file
    begin = code.text.rfind("\n", 0, start) + 1
    while begin > 0:
        row = slice(code.text.rfind("\n", 0, begin - 1) + 1, begin - 1)
        if code.text[row].endswith("*/"):
            # a comment of several lines may have blank ones
            opening = code.text.rfind("/*", 0, row.stop - 1)
            row = slice(code.text.rfind("\n", 0, opening) + 1, row.stop)
        if not code.text[row].strip() or code.masked[row].strip():
            break
        begin = row.start
    # a blank line in a comment of several lines ends nothing
    if (ends := code.text.find("*/", begin, start)) >= 0 and "/*" not in code.text[begin:ends]:
        begin = code.text.rfind("/*", 0, begin)
        begin = code.text.rfind("\n", 0, begin) + 1
    above = begin if not code.masked[begin:start].strip() else start
    macro = re.match(r"#\s*(?:define|undef)\s+(\w+)", masked)
    head = macro[0] if macro is not None else _head(masked)
    kind: ItemKind
    names: tuple[str, ...]
    kind, names = ("macro", (macro[1],)) if macro is not None else read_kind(masked, head)
    if macro is None:
        end += code.masked[end : end + 1] == ";"
    return SourceItem(
        code.path, code.line(start), kind, names, code.text[above:end], masked, head,
        namespace, conditions, start - above,
    )  # fmt: skip


def _head(masked: str) -> str:
    at = template_end(masked)
    while at < len(masked):
        if masked[at] == "{" and is_function(masked[:at]):
            return masked[:at]
        if masked[at] == "{" and CLASS.match(without_attributes(masked[template_end(masked) :])):
            return masked[:at]
        inside = closing(masked, at) if masked[at] in "([{" else None
        at = inside or at + 1
    return masked


def items_in(text: str, like: SourceItem) -> Iterator[SourceItem]:
    """List the definitions in a text that a macro makes at the place of `like`."""
    code = SourceCode(like.path, text, mask(text), {})
    for chunk in chunks(code.masked):
        if chunk.what == "code":
            yield replace(_item(code, chunk, like.namespace, like.conditions), line=like.line)


def without_repeats(items: Iterable[SourceItem]) -> Iterator[SourceItem]:
    """Leave out what is defined for a framework's type where CUDA's own has it: they are one."""
    known: set[tuple[str, ...]] = set()
    for item in items:
        if item.kind in ("class", "function") and item.code.rstrip("; \n").endswith("}"):
            head = _CUDA_NAME.sub(lambda name: f"__{name[1] or name[2]}", fold(item.head))
            key = (item.kind, head, *item.namespace, "", *item.conditions)
            if head and key in known:
                continue
            known.add(key)
        yield item
