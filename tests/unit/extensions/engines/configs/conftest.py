"""Pythons that have imported the engines' genuine functions, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_python import engine_python
from engine_wheels import SGLANG, VLLM, Engine
from host_programs import folder_of_the_run

Python = tuple[str, ...]


def _python(engine: Engine, factory: pytest.TempPathFactory) -> Iterator[Python]:
    pytest.importorskip("torch")
    path = engine.packages(), engine.wheel()
    with engine_python(engine.name, path, folder_of_the_run(factory)) as words:
        yield words


@pytest.fixture(scope="session")
def sglang_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Start a Python with SGLang and a Triton that calls itself 3.6.0."""
    yield from _python(SGLANG, tmp_path_factory)


@pytest.fixture(scope="session")
def vllm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """Start a Python with vLLM."""
    yield from _python(VLLM, tmp_path_factory)
