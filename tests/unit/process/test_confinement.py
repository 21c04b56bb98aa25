"""What a compiler's process has given up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.process import confinement


def confined(code: str, *arguments: str) -> str:
    script = (
        f"from tuner.process.confinement import *\nimport os, sys\nfrom pathlib import Path\n{code}"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


def test_memory_over_the_bound_is_refused() -> None:
    code = "limit_process()\nx = bytearray(MAX_DATA_BYTES + 1)"
    assert "MemoryError" in confined(code)


def test_a_file_over_the_bound_is_refused(tmp_path: Path) -> None:
    code = "limit_process()\nopen(sys.argv[1], 'wb').truncate(MAX_FILE_BYTES + 1)"
    assert "File too large" in confined(code, str(tmp_path / "big"))


def test_the_environment_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    code = "forget_environment(Path('/tmp'))\nimport ctypes\nctypes.CDLL(None).getenv.restype = "
    code += "ctypes.c_char_p\nprint('SECRET_KEY' in os.environ, os.popen('env').read())"
    assert confined(code).startswith("False")
    assert "SECRET" not in confined(code).removeprefix("False")


@pytest.fixture
def landlock() -> None:
    if "True" not in confined("print(confine_compiler([Path('/')], []))"):
        pytest.skip("no Landlock in this kernel")


@pytest.mark.usefixtures("landlock")
def test_only_the_named_folders_can_be_read_or_written(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "mine/link").symlink_to(tmp_path / "other/file")
    code = """
mine, other = Path(sys.argv[1], "mine"), Path(sys.argv[1], "other")
assert confine_compiler([mine], [])
print((mine / "file").read_text())
for use in (lambda: (other / "file").read_text(), lambda: (mine / "link").read_text(),
            lambda: (mine / "new").write_text(""), lambda: os.listdir(other),
            lambda: os.execv("/bin/true", ["true"])):
    try:
        use()
    except PermissionError:
        print("refused")
"""
    assert confined(code, str(tmp_path)).split() == ["mine", *["refused"] * 5]


def test_the_bounds_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/strangers.md").read_text(encoding="utf-8")
    assert f"{confinement.MAX_DATA_BYTES >> 30} GiB of memory" in text
    assert f"files of {confinement.MAX_FILE_BYTES >> 30} GiB" in text
