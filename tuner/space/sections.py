"""A search-space file as the sections that an agent may write, and those that are the user's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from tuner.model.errors import SpaceError
from tuner.model.kernel import Limits
from tuner.space.yaml import Document, parse

# What belongs to the refactoring. All else says what the kernel is and how it is judged.
OWN_SECTIONS = ("parameters", "constraints", "default", "suggestions", "launch", "limits")
# The default is what the refactoring is worth without a search.
NEEDED_SECTIONS = ("parameters", "default", "launch")
_FILES = ("source", "reference", "template")


@dataclass(frozen=True, slots=True)
class SpaceText:
    """A search-space file's text with what was read from it."""

    text: str
    document: Document

    @classmethod
    def of(cls, text: str, path: Path) -> SpaceText:
        """Read `text` as the content of `path`; raise `SpaceError` for anything doubtful."""
        return cls(text, parse(text, path))


def rewritten(original: SpaceText, answer: SpaceText, path: Path, template: str) -> str:
    """Put an answer's own sections into the user's file.

    The result is for `path`, from whose folder its paths start, and names `template`. Raises
    `SpaceError` where the answer changes anything else, asks for looser limits than the user's,
    or lacks a section.
    """
    _require_same_elsewhere(original.document, answer.document)
    _require_no_looser_limits(original.document, answer.document)
    for key in NEEDED_SECTIONS:
        if key not in answer.document.data:
            raise SpaceError(
                f"the section `{key}` is missing",
                path=answer.document.path,
                line=1,
                remedy=f"write {', '.join(NEEDED_SECTIONS)}, and what else is needed of "
                f"{', '.join(OWN_SECTIONS)}",
            )
    sections = _sections(original)
    kept = {key: body for key, body in sections.items() if key not in OWN_SECTIONS}
    kept |= {key: sections["limits"] for key in ("limits",) if key in sections}
    kept |= {key: body for key, body in _sections(answer).items() if key in OWN_SECTIONS}
    for key in _FILES:
        kept[key] = f"{key}: {template if key == 'template' else _moved(original, key, path)}\n"
    folders = original.document.data.get("include")
    if isinstance(folders, list):
        start = original.document.path.parent
        moved = ", ".join(_relative(start / str(folder), path) for folder in folders)
        kept["include"] = f"include: [{moved}]\n"
    text = "".join(body if body.endswith("\n") else f"{body}\n" for body in kept.values())
    _require_as_meant(text, path, original.document, answer.document)
    return text


def _require_as_meant(text: str, path: Path, original: Document, answer: Document) -> None:
    """Raise `SpaceError` unless the sections, put together, say what they said apart.

    A text over several lines may hold what looks like another key, and is then cut in the middle.
    """
    remedy = (
        "write the file in block style, one key a line, and no text over several lines of which "
        "one begins like a key"
    )
    try:
        made = parse(text, path)
    except SpaceError as error:
        message = f"the sections cannot be put together: {error.message}"
        raise SpaceError(message, path=answer.path, line=1, remedy=remedy) from error
    meant = {key: value for key, value in original.data.items() if key not in OWN_SECTIONS}
    meant |= {key: original.data[key] for key in ("limits",) if key in original.data}
    meant |= {key: value for key, value in answer.data.items() if key in OWN_SECTIONS}
    moved = (*_FILES, "include")
    for key in dict.fromkeys((*meant, *made.data)):
        same = key in meant and key in made.data
        if not same or (key not in moved and made.data[key] != meant[key]):
            message = f"`{key}` reads differently once the sections are put together"
            raise answer.error(message, key, remedy=remedy)


def _require_same_elsewhere(original: Document, answer: Document) -> None:
    for key, value in answer.data.items():
        if key in OWN_SECTIONS or (key == "template" and isinstance(value, str)):
            continue
        if key not in original.data:
            raise answer.error(f"`{key}` is not in the user's file", key, remedy=_remedy())
        if value != original.data[key] and not _same_files(key, original, answer):
            raise answer.error(f"`{key}` has been changed", key, remedy=_remedy())


def _same_files(key: str, original: Document, answer: Document) -> bool:
    """Whether two lists of paths, each from its own file's folder, name the same."""
    if key not in (*_FILES, "include"):
        return False
    named = ((one.path.parent, one.data[key]) for one in (original, answer))
    listed = ((folder, names if isinstance(names, list) else [names]) for folder, names in named)
    before, after = ([(folder / str(n)).resolve() for n in names] for folder, names in listed)
    return before == after


def _remedy() -> str:
    return f"write {', '.join(OWN_SECTIONS)} only: all else belongs to the user"


def _require_no_looser_limits(original: Document, answer: Document) -> None:
    before, after = original.data.get("limits"), answer.data.get("limits")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return
    for name in (field.name for field in fields(Limits)):
        if before.get(name) is not None and _looser(name, before[name], after.get(name)):
            raise answer.error(
                f"`limits.{name}` is looser than the user's {before[name]}",
                "limits",
                remedy="keep the user's limits, or ask for stricter ones",
            )


def _looser(name: str, before: object, after: object) -> bool:
    if name == "spills":
        return before == "forbid" and after != "forbid"
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return True
    return after < before if name == "min_occupancy" else after > before


def _sections(space: SpaceText) -> dict[str, str]:
    """Cut a file in block style into the texts of its keys, each with its trailing comments."""
    document, text = space.document, space.text
    starts = {}
    for key in document.data:
        found = re.search(rf"^(['\"]?){re.escape(key)}\1[ \t]*:", text, re.MULTILINE)
        if found is None:
            raise SpaceError(
                f"`{key}` does not begin a line of its own",
                path=document.path,
                line=1,
                remedy="write the file in block style, one key a line",
            )
        starts[key] = found.start()
    ordered = sorted(starts, key=lambda key: starts[key])
    ends = [*(starts[key] for key in ordered[1:]), len(text)]
    return {key: text[starts[key] : end] for key, end in zip(ordered, ends, strict=True)}


def _moved(space: SpaceText, key: str, path: Path) -> str:
    return _relative(space.document.path.parent / str(space.document.data[key]), path)


def _relative(file: Path, path: Path) -> str:
    named = Path(os.path.relpath(file.resolve(), path.resolve().parent)).as_posix()
    return json.dumps(named, ensure_ascii=False) if re.search(r"[^\w./-]", named) else named
