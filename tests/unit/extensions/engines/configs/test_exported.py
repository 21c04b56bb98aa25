"""What a session's export becomes in the engine: asked of its genuine function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from operator_sessions import choices, write_operator_session

from tuner.extensions.engines.configs.files import write_files
from tuner.extensions.engines.configs.winners import configs_of, differences

Python = Sequence[str]


@pytest.mark.slow
def test_sglang_uses_what_is_exported_and_says_where_it_does_not(
    sglang_python: Python, tmp_path: Path
) -> None:
    own = {**choices("fused_moe")[0], "CONFIGS": "two"}
    session = write_operator_session(tmp_path / "s", "fused_moe", own)
    made = configs_of([session], "sglang", "3.6.0")
    write_files(tmp_path / "to", made.files)
    assert differences(made, "sglang", tmp_path / "to", sglang_python) == ()
    (tmp_path / "elsewhere" / "configs").mkdir(parents=True)
    told = differences(made, "sglang", tmp_path / "elsewhere", sglang_python)
    assert "SGLang 0.5.17 does not read it" in told[0]


@pytest.mark.slow
def test_what_is_not_proved_faster_than_sglang_s_own_config_has_that(
    sglang_python: Python, tmp_path: Path
) -> None:
    # One shape, of which the largest number of tokens was compared.
    session = write_operator_session(
        tmp_path / "s", "fused_moe", choices("fused_moe")[0], 330 << 20
    )
    made = configs_of([session], "sglang", "3.6.0", python=sglang_python)
    ((file, text),) = made.files.items()
    table = json.loads(text)
    assert file.name.startswith("E=128,N=192,")
    few = next(one for one in made.notes if ": 16 tokens" in one)
    assert few.endswith("have SGLang's own config: nothing was compared")
    # Of its defaults for few tokens, and what Triton adds.
    assert (table["16"]["BLOCK_SIZE_M"], table["16"]["num_warps"]) == (16, 4)
    write_files(tmp_path / "to", made.files)
    assert differences(made, "sglang", tmp_path / "to", sglang_python) == ()
