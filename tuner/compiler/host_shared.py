"""`__shared__` declarations made into statics that the runtime spoils and watches."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.compiler.host_lexing import MARKER, TOKEN, same_lines

_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\((?:[^()])*\))*\))*\)"
_ATTRIBUTE = rf"__attribute__\s*{_PARENTHESES}|alignas\s*{_PARENTHESES}"
_EXTERN = re.compile(
    rf"\bextern\b(?P<before>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b__shared__\b"
    rf"(?P<after>(?:{_ATTRIBUTE}|[^;{{}}()])*?)\b(?P<name>\w+)\s*\[\s*\]\s*;",
)
_WITH_ARGUMENTS = frozenset({"__attribute__", "alignas", "decltype", "__typeof__"})
_OPENING, _CLOSING = "([{", ")]}"


def without_dynamic(text: str) -> str:
    """Make every `extern __shared__ T name[];` a pointer to the block's dynamic shared memory."""
    return _EXTERN.sub(_dynamic, text)


def _dynamic(match: re.Match[str]) -> str:
    kind = re.sub(_ATTRIBUTE, " ", f"{match['before']} {match['after']}")
    kind = " ".join(MARKER.sub("", kind).split())
    pointer = f"{kind}* const {match['name']} __attribute__((unused)) = "
    cast = f"reinterpret_cast<{kind}*>(::cuda_on_host::dynamic_shared);"
    return same_lines(match[0], pointer + cast)


@dataclass(slots=True)
class _Declarators:
    """The names that a declaration declares, found token by token."""

    names: list[re.Match[str]]
    last: re.Match[str] | None = None
    named: bool = False
    understood: bool = True

    def end(self) -> None:
        if self.last is None or not self.understood:
            self.understood = False
        elif not self.named:
            self.names.append(self.last)
        self.last, self.named = None, False

    def take(self, token: re.Match[str]) -> None:
        if token[0] == ",":
            self.end()
        elif token[0] == "=":
            self.understood = False
        elif token["word"] and token[0] not in _WITH_ARGUMENTS and not self.named:
            self.last = token

    def name_now(self) -> None:
        if self.last is not None and not self.named:
            self.names.append(self.last)
            self.named = True


def static_shared(text: str, keyword: int, position: int) -> tuple[int, str]:
    """Rewrite the declaration whose `__shared__` is at `keyword` and ends at `position`.

    Return where it ends and what replaces it from `keyword` on. The declared names become
    references to guarded statics of the same type. What isn't a plain list of variables and arrays
    (a pointer to an array, say) stays a mere static.
    """
    start = max(text.rfind(mark, 0, keyword) for mark in ";{}")
    before, after = text[start + 1 : keyword], re.compile(r"\s*static\b")
    again = re.search(r"\bstatic\b", before) or after.match(text, position)
    storage = "" if again else "static"
    end, found = _declarators(text, position)
    if not found.understood:
        return position, storage
    pieces, done = [storage], position
    for name in found.names:
        pieces += [text[done : name.start()], f"on_host_shape_{name[0]}"]
        done = name.end()
    pieces.append(text[done:end])
    return end, "".join([*pieces, *(_guarded(name[0]) for name in found.names)])


def _declarators(text: str, position: int) -> tuple[int, _Declarators]:
    found = _Declarators([])
    depth = angles = 0
    previous = ""
    for token in TOKEN.finditer(text, position):
        mark = token["mark"] or ""
        if token["marker"]:
            continue
        if mark == ";" and depth == 0:
            found.end()
            return token.end(), found
        outside = depth == angles == 0
        if mark and mark in _OPENING:
            found.understood &= not outside or mark != "(" or previous in _WITH_ARGUMENTS
            if outside and mark == "[":
                found.name_now()
            depth += 1
        elif mark and mark in _CLOSING:
            depth -= 1
        elif depth == 0 and mark and mark in "<>":
            angles += 1 if mark == "<" else -1
        elif outside:
            found.take(token)
        if depth < 0:
            break
        previous = token[0]
    found.understood = False
    return position, found


def _guarded(name: str) -> str:
    shape, held = f"on_host_shape_{name}", f"on_host_held_{name}"
    return (
        f" static ::cuda_on_host::Shared<decltype({shape}), __alignof__({shape})> {held};"
        f" static auto& {name} __attribute__((unused)) = {held}.value;"
        f" static const bool on_host_met_{name} __attribute__((unused))"
        f' = {held}.enter("shared variable `{name}`");'
    )
