"""Which compiler options a search-space file may pass: none that reads or writes a file."""

from __future__ import annotations

import re
from difflib import get_close_matches

_TRUTH = "(true|false)"
_NUMBERS = r"[0-9]+(,[0-9]+)*"
# The value of each option of NVRTC that only changes code or messages. The others name files
# (-I, -include, --pch-dir, -time), or the target and the output, which the compiler sets.
_VALUES = {
    "--std": r"c\+\+[0-9]{2}",
    "--use_fast_math": "",
    "--ftz": _TRUTH,
    "--prec-sqrt": _TRUTH,
    "--prec-div": _TRUTH,
    "--fmad": _TRUTH,
    "--maxrregcount": "[0-9]{1,3}",
    "--extra-device-vectorization": "",
    "--restrict": "",
    "--device-as-default-execution-space": "",
    "--device-int128": "",
    "--device-float128": "",
    "--builtin-move-forward": _TRUTH,
    "--builtin-initializer-list": _TRUTH,
    "--generate-line-info": "",
    "--device-debug": "",
    "--dopt": "on",
    # ptxas answers `-optf=FILE` with the text of the file in its error.
    "--ptxas-options": r"-O[0-4]|--?opt-level=[0-4]|-d[ls]cm=[a-z]+|--?warn-[a-z-]+"
    r"|--?def-(load|store)-cache=[a-z]+|--?allow-expensive-optimizations=(true|false)",
    "--Ofast-compile": "0|min|mid|max",
    "--jump-table-density": "[0-9]{1,3}",
    "--disable-warnings": "",
    "--display-error-number": "",
    "--no-display-error-number": "",
    "--diag-error": _NUMBERS,
    "--diag-suppress": _NUMBERS,
    "--diag-warn": _NUMBERS,
    "--brief-diagnostics": _TRUTH,
}
_SHORT = {
    "-G": "--device-debug",
    "-Ofc": "--Ofast-compile",
    "-Xptxas": "--ptxas-options",
    "-default-device": "--device-as-default-execution-space",
    "-jtd": "--jump-table-density",
    "-lineinfo": "--generate-line-info",
    "-w": "--disable-warnings",
}
_MACRO = re.compile(r"-[DU][A-Za-z_]\w*(\([\w, ]*\))?(=[^\r\n]*)?", re.ASCII)


def refusal(option: str) -> tuple[str, str] | None:
    """Say what is wrong with an option and what would be right; None where it may pass."""
    if not option.startswith("-"):
        return f"the option `{option}` starts with no -", "write a value with its option: -DNAME=1"
    if _MACRO.fullmatch(option):
        return None
    given, _, value = option.partition("=")
    name = _SHORT.get(given, given if given.startswith("--") else f"-{given}")
    if given in ("-I", "--include-path") or given.startswith("-I"):
        return f"`{option}` adds a folder", "list the folder under `include`"
    if name not in _VALUES:
        near = get_close_matches(name, _VALUES, n=1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        allowed = f"allowed: -DNAME=value, -UNAME, {', '.join(_VALUES)}"
        return f"the compiler option `{given}` is not allowed here", hint + allowed
    if not re.fullmatch(_VALUES[name], value):
        return f"`{given}` does not take {value!r}", f"its value must match {_VALUES[name]!r}"
    return None
