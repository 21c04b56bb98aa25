"""Read a kernel's head: its name, template, launch bounds and parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tuner.source.arguments import dtype_of
from tuner.source.facts import (
    KernelFunction,
    KernelParameter,
    LaunchBounds,
    LineIndex,
    Span,
    TemplateParameter,
)
from tuner.source.syntax import closing, closing_angle, fold, split_list

_TEMPLATE = re.compile(r"\s*template\s*(?=<)")
_BOUNDS = re.compile(r"__launch_bounds__\s*(?=\()")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^()]*>)?\s*$")
_BUILTIN = re.compile(r"\b(?:threadIdx|blockIdx|blockDim|gridDim)\s*\.\s*[xyz]\b")
_ATTRIBUTE = re.compile(
    r"\b(?:__restrict__|__restrict|restrict|__grid_constant__|volatile|struct|typename|register)\b"
    r"|\[\[.*?\]\]"
    r"|\b(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)"
)
_LAST_NAME = re.compile(r"(?<![\w:])([A-Za-z_]\w*)$")
# a template parameter that is a function: `float (*Op)(float)`
_FUNCTION = re.compile(r"\(\s*[*&]\s*([A-Za-z_]\w*)\s*\)\s*\(")
_TYPE_WORDS = frozenset(("unsigned", "signed", "long", "short", "int", "char", "float", "double"))


def read_kernel(
    masked: str,
    span: Span,
    body: Span,
    *,
    path: Path,
    lines: LineIndex,
    aliases: Mapping[str, str],
    namespace: tuple[str, ...] = (),
) -> KernelFunction | None:
    """Read the kernel that `span` holds; None where its head has no name and parameter list."""
    start = span[0]
    head = masked[start : body[0]]
    template, after = _template(head, start, lines)
    bounds, head = _bounds(head, start, lines)
    close = head.rstrip().rfind(")")
    opening = _opening(head, close)
    name = _NAME.search(head, after - start, opening) if opening is not None else None
    if opening is None or name is None:
        return None
    known = dict(aliases)
    for parameter in template:
        known.pop(parameter.name, None)
    parameters, certain = _parameters(head[opening + 1 : close], start + opening + 1, lines, known)
    return KernelFunction(
        name=name[1],
        path=path,
        line=lines.at(start + name.start()),
        span=span,
        body=body,
        name_at=start + name.start(),
        parameters=parameters,
        parameters_known=certain,
        template=template,
        bounds=bounds,
        builtins=frozenset(re.sub(r"\s", "", m) for m in _BUILTIN.findall(masked, *body)),
        namespace=namespace,
    )


def _template(head: str, start: int, lines: LineIndex) -> tuple[tuple[TemplateParameter, ...], int]:
    match = _TEMPLATE.match(head)
    end = closing_angle(head, match.end()) if match else None
    if match is None or end is None:
        return (), start
    inside = match.end() + 1
    pieces = split_list(head[inside : end - 1], angles=True)
    parameters = (_template_parameter(text, start + inside + at, lines) for text, at in pieces)
    return tuple(p for p in parameters if p is not None), start + end


def _template_parameter(text: str, start: int, lines: LineIndex) -> TemplateParameter | None:
    declared, equals, _ = text.partition("=")
    match = _LAST_NAME.search(declared.rstrip()) or _FUNCTION.search(declared)
    if match is None:
        return None
    kind = fold(declared[: match.start()])
    if match.re is _FUNCTION:
        kind = fold(declared[: match.start(1)] + declared[match.end(1) :])
    default_at = len(declared) + 1
    while default_at < len(text) and text[default_at].isspace():
        default_at += 1
    return TemplateParameter(
        name=match[1],
        kind=kind,
        span=(start, start + len(text)),
        line=lines.at(start),
        default=text[default_at:] if equals else None,
        default_span=(start + default_at, start + len(text)) if equals else None,
    )


def _bounds(head: str, start: int, lines: LineIndex) -> tuple[LaunchBounds | None, str]:
    match = _BOUNDS.search(head)
    end = closing(head, match.end()) if match else None
    if match is None or end is None:
        return None, head
    inside = match.end() + 1
    pieces = split_list(head[inside : end - 1])
    rest = head[: match.start()] + " " * (end - match.start()) + head[end:]
    if not pieces:
        return None, rest
    spans = [(start + inside + at, start + inside + at + len(text)) for text, at in pieces]
    two = len(pieces) > 1
    return LaunchBounds(
        max_threads=pieces[0][0],
        max_threads_span=spans[0],
        line=lines.at(start + match.start()),
        min_blocks=pieces[1][0] if two else None,
        min_blocks_span=spans[1] if two else None,
    ), rest


def _opening(head: str, close: int) -> int | None:
    depth = 0
    for position in range(close, -1, -1):
        depth += (head[position] == ")") - (head[position] == "(")
        if depth == 0:
            return position
    return None


def _parameters(
    text: str, start: int, lines: LineIndex, aliases: Mapping[str, str]
) -> tuple[tuple[KernelParameter, ...], bool]:
    pieces = split_list(text, angles=True)
    if [piece for piece, _ in pieces] in ([], ["void"]):
        return (), True
    if re.search(r"^\s*#", text, re.MULTILINE):
        return (), False
    read = [_parameter(piece, lines.at(start + at), aliases) for piece, at in pieces]
    found = tuple(parameter for parameter in read if parameter is not None)
    return found, len(found) == len(read)


def _parameter(text: str, line: int, aliases: Mapping[str, str]) -> KernelParameter | None:
    declared = fold(_ATTRIBUTE.sub(" ", _before_default(text)))
    array = re.search(r"(?:\s*\[[^\]]*\])+$", declared)
    declared = declared[: array.start()] if array else declared
    match = _LAST_NAME.search(declared)
    name, kind = (match[1], declared[: match.start()].rstrip()) if match else ("", declared)
    if match and not re.sub(r"\bconst\b", "", kind).strip(" "):
        # a lone word: the type of an unnamed parameter, or a macro that stands for anything
        name, kind = "", declared
        if dtype_of(kind, aliases) is None:
            return None
    elif name in _TYPE_WORDS or name == "const":
        name, kind = "", declared
    if "(" in kind or ")" in declared or "..." in declared:
        return None
    outside = _outside_angles(kind)
    first = min((at for at in (outside.find("*"), outside.find("&")) if at >= 0), default=len(kind))
    base = kind[:first]
    c_type = fold(re.sub(r"\bconst\b", " ", base))
    if not c_type:
        return None
    return KernelParameter(
        name=name,
        c_type=c_type,
        pointers=outside.count("*") + (array is not None),
        const=re.search(r"\bconst\b", _outside_angles(base)) is not None,
        dtype=dtype_of(c_type, aliases),
        line=line,
    )


def _before_default(text: str) -> str:
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if character == "=" and depth == 0:
            return text[:position]
    return text


def _outside_angles(text: str) -> str:
    depth, kept = 0, []
    for character in text:
        depth -= character == ">"
        kept.append(" " if depth > 0 or character in "<>" else character)
        depth += character == "<"
    return "".join(kept)
