"""Every file is written by `process.files`, which follows no link and leaves no half."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tuner

PACKAGE = Path(tuner.__file__).parent
# Methods and functions that write to a place that is named to them.
WRITING = {
    *("write_text", "write_bytes", "touch", "symlink_to", "hardlink_to", "copyfile", "copy2"),
    *("copy", "copytree", "to_csv", "to_json", "to_excel", "to_parquet", "to_pickle", "savez"),
    *("NamedTemporaryFile", "mkstemp", "savefig"),
}
# Who may, and why.
ALLOWED = {
    "process/files.py": "fdopen",
    # A folder that nobody else can write to, made by `mkdtemp` a moment before.
    "extensions/backends/hip/compiler.py": "write_text",
    "extensions/cpu/compiler.py": "write_text write_bytes",
    "extensions/compat/bench.py": "write_text",
    # Below the one that a compiler's process has for itself.
    "extensions/backends/opencl/compiler.py": "write_bytes fdopen",
    "device/cuda/counters.py": "touch",
    "device/cuda/tool_process.py": "write_bytes open fdopen",
    "analysis/sass.py": "write_bytes open",
    # A descriptor that was handed over.
    "extensions/cpu/worker.py": "open",
    # Its own standard output, kept from what an engine prints.
    "extensions/engines/configs/asking.py": "fdopen",
    "extensions/agents/mcp/server.py": "fdopen",
    # Tests, in a folder that pytest made for each.
    "testing/recordings.py": "write_bytes touch",
    # Into memory.
    "extensions/scale/cluster/messages.py": "to_json",
    # It cuts the end of Optuna's journal, which a session refuses to have as a link.
    "search/journal.py": "open",
}


def calls(text: str) -> Iterator[tuple[str, int]]:
    """List the calls of a module that write a file, by the function's name and line."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in ("open", "fdopen"):
            if any(map(_is_mode, (*node.args, *(one.value for one in node.keywords)))):
                yield name, node.lineno
        elif name in WRITING and not _stays_in_memory(name, node):
            yield name, node.lineno


def _is_mode(argument: ast.expr) -> bool:
    text = argument.value if isinstance(argument, ast.Constant) else None
    return isinstance(text, str) and set(text) <= set("rwaxbt+") and bool(set(text) & set("wax+"))


def _stays_in_memory(name: str, call: ast.Call) -> bool:
    """Whether it is an object's `copy()`, a frame's `to_csv()` or click's formatter of a help."""
    receiver = getattr(getattr(call.func, "value", None), "id", "")
    if name == "copy":
        return receiver != "shutil"
    return not call.args or receiver == "formatter"


def test_nothing_else_writes_a_file() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line in calls(path.read_text(encoding="utf-8"))
        if name not in ALLOWED.get(str(path.relative_to(PACKAGE)), "").split()
    ]
    assert found == []


def test_a_writer_is_found() -> None:
    text = 'p.write_text(t)\nopen(p, "w")\np.open(mode="ab")\nshutil.copy(a, b)\nframe.to_csv(p)\n'
    assert [name for name, _ in calls(text)] == ["write_text", "open", "open", "copy", "to_csv"]
    assert not list(calls('open(p)\np.open("rb")\nframe.to_csv(index=False)\nd.copy()\n'))
