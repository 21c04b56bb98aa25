"""docs/findings.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from profiles import code, profile

from tuner.analysis.base import Bottleneck, Degree, Rule
from tuner.analysis.diagnosis import RULES

PAGE = (Path(__file__).parents[3] / "docs" / "findings.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| ([a-z, ]+) \|", re.MULTILINE)


def test_the_table_of_diagnoses_is_that_of_the_code_with_its_classes() -> None:
    table = PAGE.partition("## The diagnoses")[2].partition("## ")[0]
    stated = [(name, kinds.split(", ")) for name, kinds in ROW.findall(table)]
    assert stated == [
        (rule.name, [str(kind) for kind in Bottleneck if kind in rule.bounds]) for rule in RULES
    ]


def test_every_class_and_degree_is_explained() -> None:
    assert all(f"`{word}`" in PAGE for word in (*Bottleneck, *Degree))


def test_the_example_of_ones_own_diagnosis_works() -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example
    names: dict[str, object] = {}
    exec(example[1], names)  # noqa: S102 - the page's own example
    rule = names["RULE"]
    assert isinstance(rule, Rule)
    found = rule.find(profile(codes=[code({"atomic": 9}, lines={"atomic": 3})]))
    assert found is not None
    assert (found.value, found.line) == (9, 3)
    assert rule.find(profile(codes=[code({"atomic": 2})])) is None
