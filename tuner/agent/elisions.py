"""Find where a text says "rest unchanged" instead of the rest."""

from __future__ import annotations

import re

from tuner.errors import ReplyError

_DOTS = r"(?:\.{3,}|…)"
_SAME = r"(?:unchanged|omitted|elided|identical|same|as (?:before|above|in the (?:base|original)))"
_REST = r"(?:rest|remainder|remaining|everything else)"
_CODE = r"(?:code|body|kernel|template|space|file|implementation|parameters|constraints)"
_OLD_CODE = rf"(?:existing|previous|original|unchanged) {_CODE}"

# Of a comment; a longer one would take the expressions below too long.
_LOOKED_AT = 300
_COMMENTS = {
    "template": re.compile(r"//(.*)|/\*(?P<block>.*?)(?:\*/|$)"),
    "space": re.compile(r"(?:^|\s)#(.*)"),
}
_ONLY_DOTS = re.compile(rf"[\s#%*]*{_DOTS}[\s#%*]*")
_SAYS_SO = re.compile(
    rf"^\W*{_DOTS}.*\b(?:{_SAME}|{_REST}|{_OLD_CODE})\b"
    rf"|^\W*(?:the )?(?:{_SAME}|{_REST}|{_OLD_CODE})\b.*{_DOTS}\W*$"
    rf"|\b{_REST}\b.*\b(?:unchanged|omitted|elided|identical|same as|as before|as above)\b"
    rf"|\b{_OLD_CODE}\b.*\b(?:here|goes)\b"
    rf"|\b{_CODE} (?:is |are |stays? |remains? )?(?:unchanged|omitted|elided)\b"
    r"|\b(?:omitted|elided) for brevity\b",
    re.IGNORECASE,
)


def find_elision(text: str, kind: str) -> tuple[int, str] | None:
    """Find the first line, from 1, that stands for others; `kind` is `template` or `space`."""
    for number, line in enumerate(text.split("\n"), start=1):
        if _ONLY_DOTS.fullmatch(line):
            return number, line.strip()
        for comment in _COMMENTS[kind].finditer(line):
            said = next((group for group in comment.groups() if group is not None), "")[:_LOOKED_AT]
            if _ONLY_DOTS.fullmatch(said) or _SAYS_SO.search(said):
                return number, line.strip()
    return None


def require_whole(text: str, kind: str) -> None:
    """Raise `ReplyError` where a line stands for others; `kind` is `template` or `space`."""
    if elision := find_elision(text, kind):
        raise ReplyError(
            f"line {elision[0]} of the {kind} stands for text that is left out: {elision[1]!r}; "
            f"write the whole {kind}"
        )
