"""Every input that a fuzzer found worth keeping, run again: no error but our own, and no hang."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fuzz_targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_of_every_target_is_answered_in_time(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) > 10
    for path in inputs:
        start = time.process_time()
        try:
            TARGETS[name](path.read_bytes())
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"{path}: {error!r}")
        assert time.process_time() - start < 4, path
