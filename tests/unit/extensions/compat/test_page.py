"""The page on other tuners shows what works."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tuner.extensions.compat.autotune import Autotuned

PAGE = Path(__file__).parents[4] / "docs" / "other-tuners.md"


def test_every_example_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triton = ModuleType("triton")
    config = lambda kwargs: SimpleNamespace(kwargs=kwargs)  # noqa: E731
    vars(triton).update(jit=lambda function: function, Config=config)
    monkeypatch.setitem(sys.modules, "triton", triton)
    names: dict[str, object] = {}
    text = PAGE.read_text(encoding="utf-8")
    for example in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(example, names)  # noqa: S102
    printed = capsys.readouterr().out
    assert "x the first config" in printed
    assert "ms on host CPU" in printed
    assert isinstance(names["double"], Autotuned)
