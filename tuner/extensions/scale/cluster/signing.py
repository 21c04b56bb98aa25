"""Sign what coordinator and workers say with the token that they share."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tuner.model.errors import DeviceError, InputError
from tuner.process.files import read_text

ENVIRONMENT = "TUNE_CLUSTER_TOKEN"
# Of 64 letters and digits, about as hard to guess as a key of 128 bits.
LEAST_CHARACTERS = 22
MAKE = "python -c 'import secrets; print(secrets.token_hex(32))' > token; chmod 600 token"
SHARE_ONE = "give coordinator and workers the same token (--token-file)"

Kind = Literal["request", "answer"]
_A: dict[Kind, str] = {"request": "a request", "answer": "an answer"}
_SIGNATURE_BYTES = hashlib.sha256().digest_size


class ForgedError(DeviceError):
    """Report a message that was not signed with our token."""


class MessageSigner:
    """Turn values into signed bytes and back; nothing is unpickled before its signature is right.

    A request is not taken for an answer, nor an answer for a request.
    """

    def __init__(self, token: str) -> None:
        self._key = hashlib.sha256(token.encode()).digest()

    def close(self, kind: Kind, value: object) -> bytes:
        """Pickle a value and sign it."""
        content = pickle.dumps(value)
        return self._signature(kind, content) + content

    def open(self, kind: Kind, sealed: bytes) -> Any:
        """Return the value; raise `ForgedError` where it is not signed with this token."""
        signature, content = sealed[:_SIGNATURE_BYTES], sealed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(kind, content)):
            raise ForgedError(
                f"{_A[kind]} was not signed with the token that is used here",
                remedy=SHARE_ONE,
            )
        return pickle.loads(content)  # noqa: S301 - signed by who has the token

    def _signature(self, kind: Kind, content: bytes) -> bytes:
        return hmac.digest(self._key, kind.encode() + b"\0" + content, "sha256")


def read_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Read the token from a file or the environment; raise `InputError` where there is none."""
    text = environment.get(ENVIRONMENT, "").strip()
    if file is not None:
        try:
            text = read_text(file).strip()
        except OSError as error:
            message = f"the token cannot be read: {error.strerror or error}"
            raise InputError(message, path=file, remedy=f"make one: {MAKE}") from error
    if not text:
        raise InputError(
            "no token is given: workers run only what is signed with one",
            path=file,
            remedy=f"name a file with --token-file, or set {ENVIRONMENT}; make one: {MAKE}",
        )
    if len(text) < LEAST_CHARACTERS:
        raise InputError(
            f"the token has {len(text)} characters, and {LEAST_CHARACTERS} are the least",
            path=file,
            remedy=f"make one that nobody can guess: {MAKE}",
        )
    return text
