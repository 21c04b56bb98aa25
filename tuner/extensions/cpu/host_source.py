"""Translate a preprocessed kernel to C++: shared memory as statics, inline PTX as calls."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tuner.compiler.includes import UNIT_NAME
from tuner.extensions.cpu.ptx import AsmOperand, statement
from tuner.extensions.cpu.ptx_instructions import UnknownInstructionError

# A line `# 12 "file.h" 1 3`: what follows is line 12 of that file; 1 says that it was just entered.
MARKER = re.compile(r'^# (\d+) "((?:[^"\\\n]|\\.)*)"([ \d]*)\n', re.M)

STRING = r'(?:u8|[uUL])?R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"|(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"'
# Numbers and words are taken whole, so that a quote after them is told from a digit separator.
TOKEN = re.compile(
    rf"(?P<marker>^\#[^\n]*$)|(?P<string>{STRING})|(?P<character>'(?:\\.|[^'\\\n])+')"
    r"|(?P<number>\.?\d(?:'?\w|\.|(?<=[eEpP])[+-])*)|(?P<word>[^\W\d][\w$]*)|(?P<mark>[^\w\s])",
    re.DOTALL | re.MULTILINE,
)


def _unquote_literal(literal: str) -> str:
    # `\\n` and `\\t` both become line ends.
    if "R" in literal[: literal.index('"')]:
        return literal[literal.index("(") + 1 : literal.rindex(")")]
    return re.sub(r"\\[nt]", "\n", literal[literal.index('"') + 1 : -1])


def _line_at(text: str, position: int, line: int) -> int:
    """Return the line of `position` in its file; `line` is that of the text's start."""
    start = 0
    for marker in MARKER.finditer(text, 0, position):
        start, line = marker.end(), int(marker[1])
    return line + text.count("\n", start, position)


def _same_lines(removed: str, replacement: str) -> str:
    lines = removed.splitlines(keepends=True)
    kept = (line if MARKER.match(line) else "\n" * line.endswith("\n") for line in lines)
    return replacement + "".join(kept)


_PARENTHESES = r"\([^()]*\)"
for _ in range(4):
    _PARENTHESES = rf"\((?:[^()]|{_PARENTHESES})*\)"
_ATTRIBUTE = rf"__attribute__\s*{_PARENTHESES}|alignas\s*{_PARENTHESES}"
_EXTERN = re.compile(
    rf"\bextern\b(?P<before>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b__shared__\b"
    rf"(?P<after>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b(?P<name>\w+)\s*\[\s*\]\s*;",
)
_WITH_ARGUMENTS = frozenset({"__attribute__", "alignas", "decltype", "__typeof__"})


def _dynamic(match: re.Match[str]) -> str:
    # `extern __shared__ T name[];` becomes a reference to the block's dynamic shared memory: a
    # pointer would be another thing to `reinterpret_cast<S&>(name)`.
    kind = re.sub(_ATTRIBUTE, " ", f"{match['before']} {match['after']}")
    kind = " ".join(MARKER.sub("", kind).split())
    reference = f"static {kind} (&{match['name']})[] __attribute__((unused)) = "
    cast = f"*reinterpret_cast<{kind} (*)[]>(::cuda_on_host::dynamic_shared);"
    return _same_lines(match[0], reference + cast)


def _rewrite_static(text: str, keyword: int, position: int) -> tuple[int, str]:
    """Rewrite the declaration whose `__shared__` is at `keyword` and ends at `position`.

    Return where it ends and what replaces it from `keyword` on. The declared names become
    references to guarded statics of the same type. What isn't a plain list of variables and arrays
    (a pointer to an array, say) stays a mere static.
    """
    start = max(text.rfind(mark, 0, keyword) for mark in ";{}")
    again = re.search(r"\bstatic\b", text[start + 1 : keyword])
    storage = "" if again or re.compile(r"\s*static\b").match(text, position) else "static"
    declared = _parse_declaration(text, position)
    if declared is None:
        return position, storage
    end, names = declared
    pieces, done, guards = [storage], position, ""
    for name in names:
        shape, held = f"on_host_shape_{name[0]}", f"on_host_held_{name[0]}"
        pieces += [text[done : name.start()], shape]
        done = name.end()
        guards += (
            f" static ::cuda_on_host::Shared<decltype({shape}), __alignof__({shape})> {held};"
            f" static auto& {name[0]} __attribute__((unused)) = {held}.value;"
            f" static const bool on_host_met_{name[0]} __attribute__((unused))"
            f' = {held}.enter("shared variable `{name[0]}`");'
        )
    return end, "".join([*pieces, text[done:end], guards])


def _parse_declaration(text: str, position: int) -> tuple[int, list[re.Match[str]]] | None:
    """Find the names that a declaration declares and its end; None where it is not understood."""
    names: list[re.Match[str]] = []
    last: re.Match[str] | None = None
    named = False
    depth = angles = 0
    previous = ""
    for token in TOKEN.finditer(text, position):
        mark, outside = token["mark"] or " ", depth == angles == 0
        ends = mark == ";" and depth == 0
        if token["marker"]:
            continue
        if ends or (outside and mark == ","):
            if last is None:
                return None
            names += [] if named else [last]
            if ends:
                return token.end(), names
            last, named = None, False
        elif mark in "([{":
            if outside and mark == "(" and previous not in _WITH_ARGUMENTS:
                return None
            if outside and mark == "[" and last is not None and not named:
                names.append(last)
                named = True
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark in "<>" and depth == 0:
            angles += 1 if mark == "<" else -1
        elif outside and token["word"] and token[0] not in _WITH_ARGUMENTS and not named:
            last = token
        if depth < 0 or (outside and mark == "="):
            return None
        previous = token[0]
    return None


HEADERS = Path(__file__).with_name("headers").resolve()
LAUNCH_UNIT = "launch"
REMEDY = (
    "the `host` device can't run this: provide a substitute under `#ifdef __CUDA_ON_HOST__`, or "
    "verify on a GPU"
)
PTX_REMEDY = (
    "write it with a function of <tune/tensor.h> or <tune/wgmma.h>, which the `host` device runs, "
    "give it a substitute under `#ifdef __CUDA_ON_HOST__`, or verify on a GPU"
)

_ASSEMBLY = frozenset({"asm", "__asm__", "__asm"})
_QUALIFIER = re.compile(r"\s*(?:\b(?:volatile|__volatile__|inline|goto)\b\s*)*\(")


class NotOnHostError(Exception):
    """Carry the compile error for something that only a GPU can run."""


def to_host(preprocessed: str) -> str:
    """Rewrite the user's part of a preprocessed unit, every line staying where it is.

    `asm` with an instruction that is not known is an error where a function that is called has it,
    or raises `NotOnHostError` with its line.
    """
    return "".join(
        _rewrite_text(text, file, line) if file else text
        for text, file, line in _parts(preprocessed)
    )


def entry_name(index: int) -> str:
    return f"cuda_on_host_kernel_{index}"


def entries(drawn: str, kernels: Sequence[str]) -> str:
    """Write what a unit ends with: by what the kernels are launched, in a namespace so called.

    What is exported has names that a source may not use (`refusal`).
    """
    harness = (HEADERS / "on_host/entries.h").read_text(encoding="utf-8")
    lines = [f'\n# 1 "entries.h"\n{harness.replace("harness", drawn)}\n# 1 "{LAUNCH_UNIT}"']
    for index, kernel in enumerate(kernels):
        exported = f'extern "C" __attribute__((visibility("default"))) ::{drawn}::Kernel'
        lines.append(f"{exported} {entry_name(index)} = ::{drawn}::kernel(&{kernel});")
    return "\n".join([*lines, ""])


def has_assembly(preprocessed: str) -> bool:
    return any(file and _ASSEMBLY_STATEMENT.search(text) for text, file, _ in _parts(preprocessed))


def _parts(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield runs of own source with the file and line of their start; system headers have none.

    Consecutive markers of one file stay in one run: a statement may lie across them. Whether a
    file is a system header its first marker says: later ones also mark uses of its macros.
    """
    start, file, line = 0, "", 1
    own: dict[str, str] = {}
    for marker in MARKER.finditer(text):
        system = "3" in marker[3].split() or marker[2].startswith("<")
        name = own.setdefault(marker[2], "" if system else marker[2])
        if name == file:
            continue
        yield text[start : marker.start()], file, line
        start, file, line = marker.start(), name, int(marker[1])
    yield text[start:], file, line


# NVRTC takes `Cast<T>::of<n>(x)` for a call; the standard, and g++, want `template` before `of`.
_CALL_OF_TEMPLATE = re.compile(r">::(?=(?!template\b)\w+<[\w\s,:<>]*>\s*\()")


def _with_template(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    start = max(before.rfind(mark) for mark in ";{}")
    defines = re.match(r"\s*template\b", MARKER.sub("", before[start + 1 :]))
    return match[0] if defines else ">::template "


# a project declares CUDA's types ahead; here they are other names of classes
_AHEAD = re.compile(r"\b(?:struct|class)\s+(?:__nv_bfloat16[2]?|__half2?|__nv_fp8\w+)\s*;")


def _rewrite_text(text: str, file: str, line: int) -> str:
    text = _AHEAD.sub(lambda match: _same_lines(match[0], ";"), text)
    text = _CALL_OF_TEMPLATE.sub(_with_template, _EXTERN.sub(_dynamic, text))
    pieces: list[str] = []
    done = 0
    for word in TOKEN.finditer(text):
        start, end = word.span()
        if start < done or not word["word"]:
            continue
        if word[0] == "__shared__":
            end, replacement = _rewrite_static(text, start, end)
        elif word[0] == "__noinline__":
            replacement = "__attribute__((noinline))"
        elif word[0] in _ASSEMBLY:
            assembly = _assembly(text, end)
            number = _line_at(text, start, line)
            end, instead = assembly.end, _in_cpp(assembly, _name_file(file), number)
            replacement = _same_lines(text[start:end], instead)
        else:
            continue
        pieces += [text[done:start], replacement]
        done = end
    return "".join(pieces) + text[done:]


def _in_cpp(assembly: _Assembly, file: str, line: int) -> str:
    try:
        return statement(assembly.template, assembly.outputs, assembly.inputs)
    except UnknownInstructionError as unknown:
        told = f"inline PTX `{unknown}` can't run on the CPU"
        if not assembly.has_operands:
            raise NotOnHostError(f"{file}({line}): error: {told}\n  {PTX_REMEDY}") from None
    # an error of g++'s, but none where nobody calls the function around it
    plain = re.sub(r"[^\w .,:;%@!`'\[\]{}()+-]", " ", told)
    name = f"inline_ptx_in_line_{line}"
    return f'do {{ void {name}() __attribute__((error("{plain}"))); {name}(); }} while (0)'


@dataclass(frozen=True, slots=True)
class _Assembly:
    """An `asm` statement, from after its keyword to `end`."""

    end: int
    template: str
    has_operands: bool = False
    outputs: tuple[AsmOperand, ...] = ()
    inputs: tuple[AsmOperand, ...] = ()

    @property
    def instructions(self) -> list[str]:
        found = re.split(r"[;\n]", self.template)
        return [one.strip() for one in found if one.strip()]


def _assembly(text: str, position: int) -> _Assembly:
    opening = _QUALIFIER.match(text, position)
    if opening is None:
        return _Assembly(position, "asm")
    depth, section, template, constraint, start = 1, 0, "", "", 0
    operands: list[list[AsmOperand]] = [[], []]
    for token in TOKEN.finditer(text, opening.end()):
        if token["string"] and depth == 1:
            template += _unquote_literal(token[0]) if section == 0 else ""
            constraint += _unquote_literal(token[0])
        elif token[0] == ":" and depth == 1:
            section, constraint = section + 1, ""
        elif token[0] in "()":
            depth += 1 if token[0] == "(" else -1
            if token[0] == "(" and depth == 2:
                start = token.end()
            elif depth == 1 and section in (1, 2):
                expression = " ".join(MARKER.sub("", text[start : token.start()]).split("\n"))
                operands[section - 1].append(AsmOperand(constraint, f"({expression})"))
                constraint = ""
        if depth == 0:
            outputs, inputs = map(tuple, operands)
            return _Assembly(token.end(), template, section > 0, outputs, inputs)
    return _Assembly(len(text), "asm")


def _name_file(file: str) -> str:
    return UNIT_NAME if file.endswith(UNIT_NAME) else file


# These attributes go to the assembler as they are, and the assembler can include files. Each
# pattern begins with a plain word, which is what makes it fast.
_NAMED = [
    re.compile(rf"(?P<name>{word})(?:__)?\s*\((?P<names>(?:\s*(?:{STRING})|[\s\w,()])*)")
    for word in (
        *("section", "alias", "weakref", "ifunc", "symver", "target", "target_clones", "optimize"),
        "patchable_function_entry",
    )
]
_ONE_STRING = re.compile(STRING, re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w.$@=,+-]*")
_ASSEMBLY_STATEMENT = re.compile(r"asm(?:__)?\b")
# Without a quote no file can be named to the assembler.
_PLAIN_INSTRUCTION = re.compile(r"(?!\.inc)[\w.$@%(), +-]*")
# What a kernel that is watched could know it by, and what finds functions by their names.
_TELLING = re.compile(
    r"\b__*(?:asan|ubsan|lsan|msan|tsan|hwasan|sanitizer|interceptor|SANITIZE)_\w*"
    r"|\bdl(?:v?sym|m?open|addr1?|info|_iterate_phdr)\b"
)
_UNWATCHED = re.compile(r"no_(?:sanitize\w*|address_safety_analysis_*\b)")
# What the runtime is called, and what sources are rewritten with.
_HARNESS = re.compile(r"cuda_on_host(?!::Implicit\b)|\bon_host_(?:shape|held|met)_")
_PRAGMA = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+GCC[ \t]+(\w+)", re.M)
_PRAGMAS = frozenset(
    ("diagnostic", "unroll", "ivdep", "push_options", "pop_options", "optimize", "visibility")
) | {"poison", "system_header", "target", "novector"}


def refusal(preprocessed: str, folder: Path, allowed: Sequence[Path]) -> str | None:
    """Return the error for what `preprocessed` may not contain, else None.

    `folder` is where the unit lies, `allowed` the folders that it may include from. The text of
    system headers is looked at too, for a source can claim to be one.
    """
    found = chain(
        _outside(preprocessed, folder, [path.resolve() for path in allowed]),
        _bad_pragmas(preprocessed),
        _bad_names(preprocessed),
        _bad_assembly(preprocessed),
        _telling_names(preprocessed),
    )
    for position, problem in found:
        files = [marker[2] for marker in MARKER.finditer(preprocessed, 0, position)]
        file = _name_file([UNIT_NAME, *files][-1])
        return f"{file}({_line_at(preprocessed, position, 1)}): error: {problem}"
    return None


def _outside(text: str, folder: Path, allowed: list[Path]) -> Iterator[tuple[int, str]]:
    known: set[str] = {UNIT_NAME}
    for marker in MARKER.finditer(text):
        name = marker[2]
        if name in known or name.startswith("<") or "1" not in marker[3].split():
            continue
        path = (folder / re.sub(r"\\(.)", r"\1", name)).resolve()
        if not any(path.is_relative_to(one) for one in allowed):
            # The marker stands where the directive stood.
            yield marker.start(), f"#include of {name} outside the declared folders"
        known.add(name)


def _bad_pragmas(text: str) -> Iterator[tuple[int, str]]:
    for match in _PRAGMA.finditer(text):
        if match[1] not in _PRAGMAS:
            yield match.start(), f"`#pragma GCC {match[1]}` is not allowed"


def _bad_names(text: str) -> Iterator[tuple[int, str]]:
    for match in chain.from_iterable(pattern.finditer(text) for pattern in _NAMED):
        for literal in _ONE_STRING.finditer(match["names"]):
            if _is_word(text, match.start()) and not _PLAIN_NAME.fullmatch(
                _unquote_literal(literal[0])
            ):
                yield match.start(), f"a name in `{match['name']}` has other characters than a name"


def _telling_names(text: str) -> Iterator[tuple[int, str]]:
    """Find what would tell a kernel that a sanitizer watches it, or keep the sanitizer out.

    The runtime's own names nobody else has a use for, but to declare or to specialize them.
    """
    for match in _TELLING.finditer(text):
        yield match.start(), f"`{match[0]}` is not allowed: it can tell sanitizers"
    markers = list(MARKER.finditer(text))
    for match in chain(_UNWATCHED.finditer(text), _HARNESS.finditer(text)):
        file = markers[bisect(markers, match.start(), key=re.Match.start) - 1][2]
        if match.re is _HARNESS and not file.startswith(f"{HEADERS}/"):
            yield match.start(), f"`{match[0]}` is not allowed: it is the runtime's own name"
        # A source can claim to be a system header, but not with an absolute path.
        elif match.re is _UNWATCHED and file[:1] != "/" and _is_word(text, match.start()):
            yield match.start(), f"`{match[0]}` is not allowed: sanitizers watch all of it"


def _bad_assembly(text: str) -> Iterator[tuple[int, str]]:
    """Look at the text of system headers; in the user's own, `to_host` leaves none."""
    start = 0
    for part, file, _ in _parts(text):
        for match in () if file else _ASSEMBLY_STATEMENT.finditer(part):
            if not _is_word(part, match.start()):
                continue
            instructions = _assembly(part, match.end()).instructions
            if not all(_PLAIN_INSTRUCTION.fullmatch(instruction) for instruction in instructions):
                yield start + match.start(), "`asm` that may name a file is not allowed"
        start += len(part)


def _is_word(text: str, position: int) -> bool:
    while position and text[position - 1] == "_":
        position -= 1
    return not text[position - 1 : position].isalnum()
