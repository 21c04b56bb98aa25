"""Scripts in the place of NVIDIA's tools, which need a GPU: they do what real ones do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

# How such a script begins; `jobs` and what is in them are tuples of values.
PRELUDE = """\
import json, os, pickle, subprocess, sys, time

class Values:
    def __setstate__(self, values):
        self.values = values

class Reader(pickle.Unpickler):  # without the package, which takes long to import
    def find_class(self, module, name):
        return Values

_, events, jobs, written_only, _ = Reader(open(sys.argv[-1], "rb")).load().values
arenas = [job.values[2] for job in jobs]
sizes = [os.path.getsize(a) if isinstance(a, str) else a.values[1].values[2] for a in arenas]

def say(event, **content):
    with open(events, "a") as file:
        print(json.dumps(dict(content, event=event)), file=file)

def hang():
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)
"""


def put_on_path(
    name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **values: object
) -> None:
    """Install a script that PATH finds first; `{name}` in it becomes the literal of a value."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", repr(value))
    path.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


def seen(log: Path) -> list[dict[str, Any]]:
    """What each process of the tool was given, in order."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def alive(group: int) -> bool:
    """Whether a process group has members that are not dead already."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False
