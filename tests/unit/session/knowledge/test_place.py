"""Where a store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.errors import InputError
from tuner.session.knowledge import find_store, without_password


def test_without_a_word_it_is_a_file_of_the_users_own(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    place = find_store(None, {})
    assert place is not None
    assert place.file == tmp_path / "kernel-tune/knowledge.sqlite"
    assert not place.explicit
    assert not place.file.parent.exists(), "asking makes nothing"


def test_the_environment_names_another(tmp_path: Path) -> None:
    place = find_store(None, {"TUNE_STORE": str(tmp_path / "a b?.db")})
    assert place is not None
    assert place.file == tmp_path / "a b?.db"
    assert not place.explicit


def test_the_option_comes_before_the_environment(tmp_path: Path) -> None:
    place = find_store(str(tmp_path / "own.db"), {"TUNE_STORE": "none"})
    assert place is not None
    assert place.explicit


@pytest.mark.parametrize(
    ("option", "variable"), [("none", "x.db"), (None, "none"), (None, " none ")]
)
def test_none_is_no_store(option, variable) -> None:
    assert find_store(option, {"TUNE_STORE": variable}) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--store is empty"),
        ("  ", "--store is empty"),
        ("://", "is no database URL"),
        ("postgresql://host:port/x", "is no database URL"),
        ("oracel://host/x", "knows no database 'oracel'"),
        ("mysql+nothing://host/x", "knows no database 'mysql+nothing'"),
        ("mssql+pyodbc://host/x", "there is no module 'pyodbc'"),
        ("sqlite://", "keeps nothing"),
        ("sqlite:///:memory:", "keeps nothing"),
    ],
)
def test_what_names_no_database_is_refused_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_store(text, {})
    assert said in caught.value.message
    assert caught.value.remedy


def test_the_environment_is_named_where_it_is_wrong() -> None:
    with pytest.raises(InputError, match="TUNE_STORE: SQLAlchemy knows no database 'oracel'"):
        find_store(None, {"TUNE_STORE": "oracel://x/y"})


def test_a_url_of_sqlite_is_its_file(tmp_path: Path) -> None:
    place = find_store(f"sqlite:///{tmp_path}/x.db", {})
    assert place is not None
    assert place.file == tmp_path / "x.db"
    assert str(place) == str(tmp_path / "x.db")


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"
    assert "secret" not in without_password("postgresql://me:secret@host:port/db")
    assert without_password("knowledge.db") == "knowledge.db"
    with pytest.raises(InputError) as caught:
        find_store("oracel://me:secret@host/db", {})
    assert "secret" not in str(caught.value)
