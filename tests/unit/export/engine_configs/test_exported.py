"""What a session's export becomes in the engine: asked of its genuine function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from operator_sessions import choices, write_operator_session

from tuner.export.engine_configs.files import write_files
from tuner.export.engine_configs.winners import configs_of, differences

Python = Callable[[], Sequence[str]]


@pytest.mark.slow
def test_sglang_uses_what_is_exported_and_says_where_it_does_not(
    sglang_python: Python, tmp_path: Path
) -> None:
    own = {**choices("fused_moe")[0], "CONFIGS": "two"}
    session = write_operator_session(tmp_path / "s", "fused_moe", own)
    made = configs_of([session], "sglang", "3.6.0")
    write_files(tmp_path / "to", made.files)
    assert differences(made, "sglang", tmp_path / "to", sglang_python()) == ()
    (tmp_path / "elsewhere" / "configs").mkdir(parents=True)
    told = differences(made, "sglang", tmp_path / "elsewhere", sglang_python())
    assert "SGLang 0.5.17 does not read it" in told[0]
