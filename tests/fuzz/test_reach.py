"""While text is parsed, evaluated and rendered, Python opens, imports and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WATCH = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fuzz_targets import TARGETS
target = TARGETS[sys.argv[2]]
inputs = [path.read_bytes() for path in sorted(Path(sys.argv[3]).iterdir())]
for data in inputs[:20]:
    target(data)
seen = set()
watching = True
def hook(event, arguments):
    if watching and event.startswith(("open", "os.", "subprocess.", "socket.", "import", "shutil.",
                                      "ctypes.", "exec", "pty.", "urllib.", "sqlite3.")):
        code = arguments[0]
        # Jinja's: the compiled template, and one line that gives an error its place.
        if event == "exec" and (code.co_filename == "kernel.cu.j2"
                                or code.co_names == ("__jinja_exception__",)):
            return
        seen.add(f"{event} {str(arguments)[:200]}")
sys.addaudithook(hook)
for data in inputs:
    target(data)
watching = False
print("\\n".join(sorted(seen)))
"""


@pytest.mark.parametrize("name", ["expression", "template", "include"])
def test_no_input_of_the_corpus_reaches_a_file_a_module_or_a_process(name: str) -> None:
    arguments = [str(HERE.parent / "support"), name, str(HERE / "corpus" / name)]
    done = subprocess.run(
        [sys.executable, "-c", WATCH, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == ""
