"""Put the sections that an answer may write into the user's search-space file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path

from tuner.model.errors import SpaceError
from tuner.model.kernel import Limits
from tuner.space.schema import is_python
from tuner.space.yaml import Document, parse

# What belongs to the refactoring. All else says what the kernel is and how it is judged.
OWN_SECTIONS = (
    *("parameters", "derived", "constraints", "prune", "default", "suggestions", "launch"),
    *("scratch", "limits"),
)
# The default is what the refactoring is worth without a search.
NEEDED_SECTIONS = ("parameters", "default", "launch")
_FILES = ("source", "reference", "template")
# The user's limits stay where the answer has none.
_REPLACED = frozenset(OWN_SECTIONS) - {"limits"}


def merge_sections(original: Document, answer: Document, path: Path, template: str) -> str:
    """Put an answer's own sections into the user's file.

    The result is for `path`, from whose folder its paths start, and names `template`. Raises
    `SpaceError` where the answer changes anything else, asks for looser limits than the user's,
    or lacks a section.
    """
    remedy = f"write {', '.join(OWN_SECTIONS)} only: all else belongs to the user"
    for key, value in answer.data.items():
        if key in OWN_SECTIONS or (key == "template" and isinstance(value, str)):
            continue
        if key not in original.data:
            raise answer.error(f"`{key}` is not in the user's file", key, remedy=remedy)
        is_path = key in (*_FILES, "include")
        if value != original.data[key] and not (
            is_path and _paths(key, original) == _paths(key, answer)
        ):
            if key == "arguments":
                remedy = "they are the user's; yours is `scratch`, which launches take after them"
            raise answer.error(f"`{key}` has been changed", key, remedy=remedy)
    _require_no_looser_limits(original, answer)
    for key in NEEDED_SECTIONS:
        if key not in answer.data and not (key == "launch" and is_python(original)):
            remedy = f"write {', '.join(NEEDED_SECTIONS)}, and what else is needed of "
            remedy += ", ".join(OWN_SECTIONS)
            message = f"the section `{key}` is missing"
            raise SpaceError(message, path=answer.path, line=1, remedy=remedy)
    kept = {k: text for k, text in sections_of(original).items() if k not in _REPLACED}
    kept |= {k: text for k, text in sections_of(answer).items() if k in OWN_SECTIONS}
    folder = original.path.parent
    for key in _FILES:
        if key != "template" and not isinstance(original.data[key], str):
            continue  # a reference that the file itself holds
        named = template if key == "template" else _relative(folder / str(original.data[key]), path)
        kept[key] = f"{key}: {named}\n"
    folders = original.data.get("include")
    if isinstance(folders, list):
        moved = ", ".join(_relative(folder / str(one), path) for one in folders)
        kept["include"] = f"include: [{moved}]\n"
    text = "".join(body if body.endswith("\n") else f"{body}\n" for body in kept.values())
    made = parse(text, path).data
    for key, value in {**original.data, **answer.data}.items():
        if key in kept and key not in (*_FILES, "include") and made.get(key) != value:
            raise answer.error(f"`{key}` reads differently once the sections are put together", key)
    return text


def _paths(key: str, document: Document) -> list[Path]:
    names = document.data[key]
    listed = names if isinstance(names, list) else [names]
    return [Path(os.path.realpath(document.path.parent / str(name))) for name in listed]


def _require_no_looser_limits(original: Document, answer: Document) -> None:
    limits, asked = original.data.get("limits"), answer.data.get("limits")
    if not isinstance(limits, dict) or not isinstance(asked, dict):
        return
    for name in (field.name for field in fields(Limits)):
        before, after = limits.get(name), asked.get(name)
        if name in ("spills", "serialized_wgmma"):
            looser = before == "forbid" and after != "forbid"
        elif not isinstance(before, int | float) or not isinstance(after, int | float):
            looser = before is not None
        else:
            looser = after < before if name == "min_occupancy" else after > before
        if looser:
            message = f"`limits.{name}` is looser than the user's {before}"
            remedy = "keep the user's limits, or ask for stricter ones"
            raise answer.error(message, "limits", remedy=remedy)


def sections_of(document: Document) -> dict[str, str]:
    """Cut a file in block style into the texts of its keys, each with its trailing comments."""
    starts = [document.places[key,].at for key in document.data]
    for key, start in zip(document.data, starts, strict=True):
        if start > 0 and document.text[start - 1] not in "\r\n":
            message = f"`{key}` does not begin a line of its own"
            remedy = "write the file in block style, one key a line"
            raise document.error(message, key, remedy=remedy)
    ends = [*starts[1:], len(document.text)]
    pieces = zip(document.data, starts, ends, strict=True)
    return {key: document.text[start:end] for key, start, end in pieces}


def _relative(file: Path, path: Path) -> str:
    named = Path(os.path.relpath(file.resolve(), path.resolve().parent)).as_posix()
    return json.dumps(named, ensure_ascii=False) if re.search(r"[^\w./-]", named) else named
