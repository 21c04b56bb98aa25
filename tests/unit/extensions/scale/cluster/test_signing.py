"""Only what is signed with the token is unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tuner.extensions.scale.cluster.signing import (
    ENVIRONMENT,
    LEAST_CHARACTERS,
    ForgedError,
    MessageSigner,
    read_token,
)
from tuner.model.errors import InputError

GOOD = "x" * LEAST_CHARACTERS


class Explodes:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("unpickled what was not signed",)


def test_what_is_signed_comes_back() -> None:
    seal = MessageSigner(GOOD)
    assert seal.open("request", seal.close("request", {"a": [1, 2]})) == {"a": [1, 2]}


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        pickle.dumps(Explodes()),
        b"\0" * 32 + pickle.dumps(Explodes()),
        MessageSigner("another token that is long enough").close("request", Explodes()),
        MessageSigner(GOOD).close("answer", Explodes()),
    ],
    ids=["empty", "unsigned", "zeros", "another token", "an answer"],
)
def test_what_is_not_signed_is_never_unpickled(forged: bytes) -> None:
    with pytest.raises(ForgedError, match="was not signed with the token"):
        MessageSigner(GOOD).open("request", forged)


def test_every_changed_byte_is_seen() -> None:
    seal = MessageSigner(GOOD)
    sealed = seal.close("request", "value")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(ForgedError):
            seal.open("request", bytes(changed))


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f" {GOOD}\n", encoding="utf-8")
    assert read_token(file, {ENVIRONMENT: "y" * 40}) == GOOD
    assert read_token(None, {ENVIRONMENT: GOOD}) == GOOD


def test_a_missing_or_short_token_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)no token is given.*--token-file.*secrets"):
        read_token(None, {})
    with pytest.raises(InputError, match="the token cannot be read: No such file"):
        read_token(tmp_path / "none", {})
    with pytest.raises(InputError, match=f"has 5 characters, and {LEAST_CHARACTERS} are the least"):
        read_token(None, {ENVIRONMENT: "short"})
