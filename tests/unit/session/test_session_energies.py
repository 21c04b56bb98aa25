"""Windows of energy in a session: every bit comes back, and sessions without them still open."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.unit.session.test_session import CONFIG, ENVIRONMENT, LARGE, MANIFEST, SMALL
from tuner.model.trial import INITIAL, Energy, EnergyWindow, Variant
from tuner.session.session import Session

WINDOW = EnergyWindow(
    energy_j=3127.000244140625,
    seconds=5.037193,
    time_us=1 / 3,
    buffer_sets=384,
    cold=False,
    temperature_c=61,
    clock_mhz=1980,
    limited_by=("power limit", "temperature"),
)
ENERGIES = [
    Energy(SMALL, "idle", EnergyWindow(551.25, 5.0), created="2026-11-20T17:00:00+00:00"),
    Energy(SMALL, "baseline", WINDOW),
    Energy(SMALL, "variant", WINDOW, Variant("r1", CONFIG), "2026-11-20T17:00:09+00:00"),
    Energy(LARGE, "variant", WINDOW, Variant(INITIAL, CONFIG)),
    # A program may be measured again.
    Energy(SMALL, "variant", WINDOW, Variant("r1", CONFIG)),
]


def recorded(folder: Path) -> None:
    with Session.create(folder, MANIFEST, ENVIRONMENT) as session:
        for energy in ENERGIES:
            session.record_energy(energy)


@pytest.mark.parametrize("read_only", [False, True])
def test_windows_come_back_as_they_were_in_order(tmp_path: Path, read_only: bool) -> None:
    recorded(tmp_path)
    with Session.open(tmp_path, read_only=read_only) as session:
        assert session.energies() == ENERGIES
        assert session.energies(LARGE) == [ENERGIES[3]]


def older(folder: Path) -> None:
    """Make of a session what version 3 of the schema wrote."""
    with sqlite3.connect(folder / "session.db") as database:
        database.execute("DROP TABLE energies")
        database.execute("PRAGMA user_version = 3")
    database.close()


def test_an_older_session_is_read_without_being_changed(tmp_path: Path) -> None:
    recorded(tmp_path)
    older(tmp_path)
    before = (tmp_path / "session.db").read_bytes()
    with Session.open(tmp_path, read_only=True) as session:
        assert session.energies() == []
    assert (tmp_path / "session.db").read_bytes() == before


def test_an_older_session_takes_windows_once_it_is_resumed(tmp_path: Path) -> None:
    recorded(tmp_path)
    older(tmp_path)
    with Session.open(tmp_path) as session:
        session.record_energy(ENERGIES[1])
    with Session.open(tmp_path) as session:
        assert session.energies() == [ENERGIES[1]]
