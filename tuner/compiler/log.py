"""Reading the compiler's log: resource usage per kernel, and the errors alone."""

from __future__ import annotations

import re

from tuner.model.trial import Resources

MAX_ERROR_CHARACTERS = 20_000

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")

_PTXAS = re.compile(r"ptxas\b")
_PTXAS_ERROR = re.compile(r"\b(?:error|fatal)\s*:")
_DIAGNOSTIC = re.compile(r"(?:^|: )(?:catastrophic |internal )?error\b", re.MULTILINE)
_SUMMARY = re.compile(r"^\d+ (?:catastrophic )?errors? detected in |^Compilation terminated\.")


def resources(log: str) -> dict[str, Resources]:
    """Read `ptxas -v`: the resources of every kernel in `log`, by its lowered name.

    Spills of functions that were not inlined count for every kernel: the report doesn't say
    which kernel calls them.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, str] = {}
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            frames[function] = (int(match[1]), int(match[2]), int(match[3]))
        elif _USED.search(line):
            used[entry] = line
    called = [frame for name, frame in frames.items() if name not in used]
    stores, loads = sum(frame[1] for frame in called), sum(frame[2] for frame in called)
    return {
        name: Resources(
            registers=_number(_USED, line),
            spill_store_bytes=frames.get(name, (0, 0, 0))[1] + stores,
            spill_load_bytes=frames.get(name, (0, 0, 0))[2] + loads,
            static_shared_bytes=_number(_SHARED, line),
            stack_bytes=frames.get(name, (0, 0, 0))[0],
            barriers=_number(_BARRIERS, line),
        )
        for name, line in used.items()
    }


def errors(log: str) -> list[str]:
    """List the errors of `log`, each with the source lines that the compiler shows with it."""
    found = []
    for block in re.split(r"\n\s*\n", log.replace("\0", "").strip("\n")):
        lines = []
        for line in block.splitlines():
            if _SUMMARY.match(line) or "precompiled header file" in line:
                continue
            if _PTXAS.match(line):
                if _PTXAS_ERROR.search(line):
                    found.append(line)
                continue
            lines.append(line)
        text = "\n".join(lines)
        if _DIAGNOSTIC.search(text):
            found.append(text)
    return found


def shortened(text: str) -> str:
    """Cut a text that a template expanded without end may have filled."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:MAX_ERROR_CHARACTERS]}\n... {len(text) - MAX_ERROR_CHARACTERS} more characters"


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0
