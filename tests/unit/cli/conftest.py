"""The program as a user sees it, without starting a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tuner.cli import cli

Tune = Callable[..., Result]


@pytest.fixture
def tune() -> Tune:
    """Run `tune` on some words."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], prog_name="tune")

    return run
