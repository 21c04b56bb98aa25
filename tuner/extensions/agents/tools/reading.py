"""Files that an agent may read and search: what lies in a few folders, and nothing else."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath

from tuner.extensions.agents.tools.arguments import SearchSourceArguments, ToolLimits, shorten_line
from tuner.extensions.agents.tools.trying import lines_of
from tuner.model.errors import InputError
from tuner.process.files import read_regular

HEADERS = "cuda"
# Of a folder; of one file where others may have more to say.
MOST_ENTRIES = 400
MOST_IN_A_FILE = 5
_BINARY_PREFIX = 8192


class SourceFolders:
    """Read and search files under the folders given and under those of CUDA's headers.

    A path starts with the name of its folder. What is not under one of them, absolute paths, `..`
    and links that lead out included, does not exist here, nor does what is hidden; binary and very
    large files are not shown. Every mistake is an `InputError`.
    """

    def __init__(
        self, folders: Sequence[Path], headers: Callable[[], Sequence[Path]], limits: ToolLimits
    ) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise InputError("no such folder of sources", path=folder)
        self._folders, self._headers, self._limits = tuple(folders), headers, limits

    def text_of(self, path: str, first_line: int, last_line: int | None) -> str:
        """Show lines of a file, or list a folder."""
        place = self._find_path(path)
        if place is None:
            return "source folders:\n" + "\n".join(f"- {name}/" for name in self._roots)
        shown = _short_path(path)
        if place.is_dir():
            return f"{shown}:\n{self._listing(place)}"
        text = self._text(place)
        if text is None:
            raise InputError(
                f"{shown} cannot be shown",
                remedy=f"text of at most {self._limits.file_bytes} bytes can",
            )
        most = self._limits.line_characters
        lines = "\n".join(shorten_line(line.rstrip("\r"), most) for line in text.split("\n"))
        return f"{shown}:\n{lines_of(lines, first_line, last_line)}"

    def search(self, wanted: SearchSourceArguments, deadline_s: float) -> str:
        """List lines that hold a text as `path:line: text`; files near the top come first."""
        top = self._find_path(wanted.folder)
        roots = self._roots.items() if top is None else [(_short_path(wanted.folder), top)]
        most = min(wanted.most, self._limits.matches)
        sought = re.escape(wanted.text)
        pattern = re.compile(
            rf"(?<!\w){sought}(?!\w)" if wanted.whole_word else sought,
            re.IGNORECASE | re.ASCII if wanted.ignore_case else 0,
        )
        matches: list[str] = []
        files = 0
        for name, path in (found for root in roots for found in self._files(*root)):
            if time.monotonic() > deadline_s:
                return _summary(matches, files, "the time is over: name a smaller folder")
            files += 1
            for number, line in self._matches(path, pattern):
                if len(matches) == most:
                    return _summary(matches, files, "there are more: look for a longer text")
                matches.append(
                    f"{name}:{number}: {shorten_line(line.strip(), self._limits.line_characters)}"
                )
        return _summary(matches, files, "")

    @cached_property
    def _roots(self) -> dict[str, Path]:
        """The folders by name. CUDA's are made ready only when they are asked for."""
        roots: dict[str, Path] = {}
        named = [(HEADERS, folder) for folder in self._headers()]
        named += [(folder.resolve().name or "root", folder) for folder in self._folders]
        for name, folder in named:
            place = folder.resolve()
            if any(place.is_relative_to(known) for known in roots.values()):
                continue
            free = (name if n == 1 else f"{name}-{n}" for n in range(1, len(named) + 2))
            roots[next(one for one in free if one not in roots)] = place
        return roots

    def _find_path(self, text: str) -> Path | None:
        """Find a file or folder; None stands for all folders together."""
        if text.strip() in ("", ".", "./"):
            return None
        parts = PurePosixPath(text).parts
        root = self._roots.get(parts[0])
        # What is hidden, such as `.git` and `.env`, is nobody's source; nor is `..`.
        if root is None or any(part.startswith(".") for part in parts) or "\0" in text:
            names = ", ".join(f"{name}/" for name in self._roots)
            raise InputError(
                f"{_short_path(text)} is in no source folder",
                remedy=f"a path starts with one of {names}; no part of it starts with a dot",
            )
        above = text.rstrip("/").rpartition("/")[0]
        missing = InputError(
            f"there is no {_short_path(text)}", remedy=f"read_source {above!r} lists it"
        )
        try:
            place = root.joinpath(*parts[1:]).resolve(strict=True)
            plain = place.is_file() or place.is_dir()
        except (OSError, RuntimeError, ValueError) as error:
            raise missing from error
        if not plain or not place.is_relative_to(root):
            raise missing
        return place

    def _listing(self, folder: Path) -> str:
        try:
            visible = [one for one in folder.iterdir() if not one.name.startswith(".")]
        except OSError as error:
            raise InputError(f"cannot be listed: {error.strerror}") from error
        entries = sorted(visible, key=lambda one: (not one.is_dir(), one.name))
        lines = [f"- {one.name}/" if one.is_dir() else f"- {one.name}" for one in entries]
        if len(lines) > MOST_ENTRIES:
            lines[MOST_ENTRIES:] = [f"[{len(lines) - MOST_ENTRIES} more]"]
        return "\n".join(lines) or "[empty]"

    def _files(self, name: str, top: Path) -> Iterator[tuple[str, Path]]:
        """Walk a folder level by level, in the order of names; links aren't followed."""
        if top.is_file():
            yield name, top
            return
        level = [(name.rstrip("/"), top)]
        while level:
            below: list[tuple[str, Path]] = []
            for prefix, folder in level:
                entries: list[os.DirEntry[str]] = []
                with suppress(OSError), os.scandir(folder) as found:
                    entries += (entry for entry in found if not entry.name.startswith("."))
                for entry in sorted(entries, key=lambda one: one.name):
                    path = f"{prefix}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        below.append((path, folder / entry.name))
                    elif entry.is_file(follow_symlinks=False):
                        yield path, folder / entry.name
            level = below

    def _matches(self, path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
        text = self._text(path) or ""
        found: dict[int, str] = {}
        for match in pattern.finditer(text):
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
            number = text.count("\n", 0, start) + 1
            found[number] = text[start : end if end >= 0 else len(text)]
            if len(found) == MOST_IN_A_FILE:
                break
        yield from found.items()

    def _text(self, path: Path) -> str | None:
        most = self._limits.file_bytes
        try:
            data = read_regular(path, most)
        except OSError:
            return None
        if b"\0" in data[:_BINARY_PREFIX]:
            return None
        return data.decode(errors="replace")


def cuda_headers() -> Sequence[Path]:
    """Find the headers that NVRTC compiles with, its own or a toolkit's; none without NVRTC."""
    from tuner.compiler.cache import user_cache_dir

    try:
        from cuda.bindings import nvrtc

        from tuner.compiler.nvrtc import include_dirs

        _, major, minor = nvrtc.nvrtcVersion()
        return include_dirs((int(major), int(minor)), user_cache_dir())
    except (ImportError, OSError, RuntimeError):
        return []


def _summary(matches: list[str], files: int, why: str) -> str:
    end = f"[{len(matches)} lines in {files} files{'; ' + why if why else ''}]"
    return "\n".join([*matches, end])


def _short_path(path: str) -> str:
    return shorten_line(path.rstrip("/"), 200)


FOLDER = Path(__file__).parent / "notes"


def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.md")))


def note(name: str) -> str:
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"there is no note {name[:80]!r}", remedy=f"{hint}notes: {', '.join(names())}"
        )
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def contents() -> dict[str, str]:
    """Read the title of each note."""
    return {name: note(name).partition("\n")[0].removeprefix("# ") for name in names()}


def list_notes() -> str:
    return "\n".join(f"- {name}: {title}" for name, title in contents().items())
