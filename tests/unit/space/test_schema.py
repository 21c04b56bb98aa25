"""The JSON Schema that editors take is that of the files as they are read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tuner.space.schema import json_schema

ROOT = Path(__file__).parents[3]


def test_the_file_in_the_docs_is_the_schema() -> None:
    text = (ROOT / "docs/search-space.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == json_schema()


@pytest.mark.parametrize(
    ("fill", "fits"), [("positive", True), ("indices(N)", True), ("gaussian", False)]
)
def test_it_takes_the_fills_that_are_read(fill: str, fits: bool) -> None:
    pattern = json_schema()["$defs"]["ArgumentModel"]["properties"]["fill"]["pattern"]
    assert bool(re.search(pattern, fill)) is fits
