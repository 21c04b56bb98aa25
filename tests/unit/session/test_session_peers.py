"""What a session keeps of peers, and sessions from before there were any."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.unit.session.test_session import ENVIRONMENT, HELD_OUT, LARGE, MANIFEST, SMALL, VARIANT
from tuner.model.trial import Comparison, PeerTrial, Status
from tuner.session.session import Session

WRONG = PeerTrial(SMALL, "flashinfer", Status.INCORRECT, "out[0] is 1", "2026-11-20T18:00:00+00:00")
PEERS = [
    PeerTrial(SMALL, "pytorch", Status.CORRECT),
    WRONG,
    PeerTrial(HELD_OUT, "pytorch", Status.NOT_RECORDED, "No module named 'torch'"),
]
COMPARISON = Comparison(
    SMALL, (VARIANT,), ((3.0, 1.0, 2.0),), True, (None, 1.0, None), ("pytorch",)
)


def recorded(folder: Path) -> None:
    with Session.create(folder, MANIFEST, ENVIRONMENT) as session:
        for trial in PEERS:
            session.record_peer(trial)
        session.record_comparison(COMPARISON)


@pytest.mark.parametrize("read_only", [False, True])
def test_they_come_back_as_they_were_in_order(tmp_path: Path, read_only: bool) -> None:
    recorded(tmp_path)
    with Session.open(tmp_path, read_only=read_only) as session:
        assert session.peers() == PEERS
        assert session.peers(SMALL) == PEERS[:2]
        assert session.peers(LARGE) == []
        assert session.comparisons() == [COMPARISON]
        assert session.manifest.peers == MANIFEST.peers


def test_the_last_word_on_a_peer_counts(tmp_path: Path) -> None:
    recorded(tmp_path)
    failed = PeerTrial(SMALL, "pytorch", Status.LAUNCH, "died")
    with Session.open(tmp_path) as session:
        session.record_peer(failed)
        assert session.peers(SMALL) == [failed, WRONG]
    with Session.open(tmp_path) as session:
        assert session.peers(SMALL) == [failed, WRONG]


def test_a_comparison_knows_its_columns() -> None:
    assert [COMPARISON.column(one) for one in (None, VARIANT, "pytorch")] == [0, 1, 2]


def older(folder: Path) -> None:
    """Make of a session what version 4 of the schema wrote."""
    with sqlite3.connect(folder / "session.db") as database:
        database.execute("DROP TABLE peers")
        database.execute("ALTER TABLE comparisons DROP COLUMN peers")
        (text,) = database.execute("SELECT manifest FROM session").fetchone()
        manifest = json.loads(text)
        del manifest["peers"]
        database.execute("UPDATE session SET manifest = ?", (json.dumps(manifest),))
        database.execute("PRAGMA user_version = 4")
    database.close()


def test_an_older_session_is_read_without_being_changed(tmp_path: Path) -> None:
    recorded(tmp_path)
    older(tmp_path)
    before = (tmp_path / "session.db").read_bytes()
    with Session.open(tmp_path, read_only=True) as session:
        assert session.peers() == []
        assert session.manifest.peers == ()
        assert session.comparisons()[0].peers == ()
    assert (tmp_path / "session.db").read_bytes() == before


def test_an_older_session_takes_peers_once_it_is_resumed(tmp_path: Path) -> None:
    recorded(tmp_path)
    older(tmp_path)
    with Session.open(tmp_path) as session:
        session.record_peer(PEERS[0])
        session.record_comparison(COMPARISON)
    with Session.open(tmp_path) as session:
        assert session.peers() == PEERS[:1]
        assert session.comparisons()[1] == COMPARISON
