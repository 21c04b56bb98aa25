"""`tune record` as a user sees it, as far as no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.model.errors import InputError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of runs that were to be opened; none is."""
    found: list[Any] = []

    def refused(stack: object, kernel: object, settings: object, options: Any, **_: object) -> None:
        found.append(options)
        raise InputError("not today")

    monkeypatch.setattr("tuner.app.open.open_run", refused)
    return found


def test_it_goes_on_to_the_file_that_it_was_to_write(
    tune, tmp_path: Path, asked: list[Any]
) -> None:
    out = tmp_path / "new" / "scale.json.xz"
    assert "not today" in tune("record", "scale.cu", "--out", out).stderr
    tune("record", "scale.cu")
    assert [one.resume_command for one in asked] == [("record", "--out", str(out)), ("record",)]


def test_a_place_where_nothing_can_be_written_is_refused_before_anything_is_measured(
    tune, tmp_path: Path, asked: list[Any]
) -> None:
    (tmp_path / "file").write_text("")
    result = tune("record", "scale.cu", "--out", tmp_path / "file" / "scale.json.xz")
    assert result.exit_code == 2
    assert "file: is no folder\n  choose another place with --out" in result.stderr
    assert not asked
