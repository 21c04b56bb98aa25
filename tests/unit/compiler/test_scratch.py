"""Folders of compilations: gone at the end, and after a kill at the next start."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner.compiler.host import PREFIX, remove_left_behind, scratch_folder

HOLD = """
import sys
from tuner.compiler.host import scratch_folder
with scratch_folder() as folder:
    (folder / "unit.ii").write_text("int a;")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test only."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def holder() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_nothing_is_left_at_the_end(temporary: Path) -> None:
    with scratch_folder() as folder:
        (folder / "unit.ii").write_text("int a;")
        assert folder.parent == temporary
    assert list(temporary.iterdir()) == []


def test_one_in_use_stays_and_one_of_a_killed_process_goes(temporary: Path) -> None:
    with holder() as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        with scratch_folder() as own:
            remove_left_behind()
            assert own.exists()
        assert (folder / "unit.ii").exists()
        process.send_signal(signal.SIGKILL)
    assert folder.exists()
    remove_left_behind()
    assert list(temporary.iterdir()) == []


def test_what_a_link_of_such_a_name_leads_to_stays(temporary: Path) -> None:
    (temporary / "mine").mkdir()
    (temporary / "mine" / "notes").touch()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "mine")
    (temporary / f"{PREFIX}file").touch()
    remove_left_behind()
    left = {path.name for path in temporary.iterdir()}
    assert left == {"mine", f"{PREFIX}file", f"{PREFIX}link"}
    assert (temporary / "mine" / "notes").exists()
