"""Every figure in README and docs has a source that its own section names, and occurs there.

A figure is a number with a unit (1.39x, 4 %, 0.66 us, 13 minutes, 5 times, 3 of 18), and where a
result is a source any decimal, too. In a section, between two headings, sources are

- a link to a section of results.md, which is made from result files: `[results](results.md#start)`;
- a result file that the text names: `benchmarks/results/cpu/start_time.json`;
- a comment, `<!-- source: tuner/model/statistics.py PROTOCOL -->`: a file of the tree, and names in
  it (constants, keys, words) whose lines hold the number; of several files, parted by `;`. Where it
  names a test, that one compares all figures of the section;
- `<!-- source: https://... 1.48 0.69 -->` or `<!-- source: example 2 -->`: numbers that are cited,
  or only show what a word means.

What is between the marks of generated text is compared with its result files elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MADE = "docs/results.md"
PAGES = [
    ROOT / "README.md",
    *(one for one in sorted((ROOT / "docs").glob("*.md")) if one != ROOT / MADE),
    *sorted((ROOT / "docs/examples").glob("*/README.md")),
]

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNIT = r"x(?!\w| [\dA-Z])|%|(?:times|us|ms|ns|s|seconds?|min|minutes?|hours?)\b"
FIGURE = re.compile(
    rf"(?<![\w.,=/+-])(?P<first>{NUMBER}(?:(?:, | to | and | or ){NUMBER})*) ?(?P<unit>{UNIT})"
    rf"|(?<![\w.,=/+-])(?P<part>{NUMBER}) of (?:the )?(?P<whole>{NUMBER})(?!\w|\.\d)"
    r"|(?<![\w.,=/+-])(?P<bare>\d+\.\d+)(?![\w.]*\d)"
)
COMMENT = re.compile(r"<!-- source: (.*?) -->", re.DOTALL)
# Not prose, in this order: generated text, code, other comments, where links lead.
APART = re.compile(
    r"<!-- results -->.*?<!-- end of results -->|^ *```.*?^ *```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)
# The level of every interval, and a whole.
AGREED = re.compile(r"95 ?%|100 ?%")
LINK = re.compile(r"\]\((?:\.\./)*(?:docs/)?results\.md#([\w-]+)\)")
RESULT = re.compile(r"\bbenchmarks/results/[\w./-]+\.json")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ ", re.MULTILINE)
# Files and constants keep shares, seconds, milliseconds or microseconds.
SHARES = 1e2, 1.0
TIMES = 1.0, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1 / 60, 1 / 3600
SCALES = {"%": SHARES, "x": (1.0,), "times": (1.0,), "of": (1.0,), "": (1.0,)}
REMEDY = (
    "link to the section of results.md that has it, name its result file, add "
    "<!-- source: FILE NAME --> to the section, or delete the figure"
)


@dataclass(frozen=True)
class Known:
    """A number of a source; `unit` is None where the source says none."""

    value: float
    unit: str | None = None


@dataclass(frozen=True)
class Figure:
    line: int
    number: str
    unit: str

    @property
    def value(self) -> float:
        return float(self.number.replace(",", ""))

    def is_rounded_from(self, known: Known) -> bool:
        half = 0.5 * 10 ** -len(self.number.partition(".")[2]) * (1 + 1e-9)
        if known.unit is not None:
            return known.unit in (self.unit, "") and abs(known.value - self.value) <= half
        # 1.05 is 5 % more, 0.95 is 5 % less.
        values = (known.value, abs(known.value - 1.0)) if self.unit == "%" else (known.value,)
        scales = SCALES.get(self.unit, TIMES)
        return any(abs(one * scale - self.value) <= half for one in values for scale in scales)


def figures(text: str, first_line: int = 1, *, measured: bool = False) -> Iterator[Figure]:
    """Give the figures of a text; decimals without a unit only where it is of measurements."""
    blank = APART.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    prose = AGREED.sub(lambda found: " " * len(found[0]), blank)
    for found in FIGURE.finditer(prose.replace("\n", " ")):
        line = first_line + prose.count("\n", 0, found.start())
        version = re.search(r"[A-Z]\w+\s$", prose[: found.start()])
        if found["bare"] and (version or not measured):
            continue  # or a capability, or a default
        listed = found["first"] or found["bare"] or f"{found['part']} of {found['whole']}"
        unit = found["unit"] or ("" if found["bare"] else "of")
        unit = {"min": "minutes", "times": "x"}.get(unit, unit)
        yield from (Figure(line, number, unit) for number in re.findall(NUMBER, listed))


def sections(text: str) -> Iterator[tuple[int, str]]:
    """Cut a page at its headings, with the line at which each part begins."""
    hidden = APART.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    ends = [one.start() for one in HEADING.finditer(hidden)]
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        yield 1 + text.count("\n", 0, start), text[start:end]


def section_of_results(anchor: str) -> str:
    """Give what stands under a heading of the page of results, with what is under it."""
    page = (ROOT / MADE).read_text(encoding="utf-8")
    for found in re.finditer(r"^(#+) (.+)$", page, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-") == anchor:
            following = re.compile(rf"^#{{1,{len(found[1])}}} ", re.MULTILINE)
            end = following.search(page, found.end())
            return page[found.start() : end.start() if end else len(page)]
    raise AssertionError(f"{MADE} has no section {anchor}")


def numbers_in(text: str) -> list[Known]:
    """Read every number of a text: of code also 1_000 and 2e-4."""
    found = re.findall(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?", text)
    return [Known(float(one.replace(",", "").replace("_", ""))) for one in found]


def numbers_of(value: Any) -> Iterator[Known]:
    """Read every number of a result, and how many each list and object has."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_of(one)
        yield Known(float(len(value)))
    elif isinstance(value, int | float):
        yield Known(float(value))
    elif isinstance(value, str):
        yield from numbers_in(value)


def sources(section: str) -> Iterator[Known]:
    """Give the numbers of everything that a section names as a source."""
    for anchor in LINK.findall(section):
        found = figures(section_of_results(anchor), measured=True)
        yield from (Known(one.value, one.unit) for one in found)
    for path in RESULT.findall(COMMENT.sub("", section)):
        yield from numbers_of(json.loads((ROOT / path).read_text(encoding="utf-8")))
    for one in (one for comment in COMMENT.findall(section) for one in comment.split(";")):
        place, *names = one.split()
        if place == "example" or place.startswith("https://"):
            yield from (Known(float(name)) for name in names)
            continue
        assert (ROOT / place).is_file(), f"the source {place} does not exist"
        assert names, f"the source {place} has no name in it"
        text = (ROOT / place).read_text(encoding="utf-8")
        if place.endswith(".json"):
            yield from (found for name in names for found in numbers_of(json.loads(text)[name]))
            continue
        for name in names:
            named = [line for line in text.splitlines() if re.search(rf"\b{name}\b", line)]
            assert named, f"{place} has no {name}"
            yield from numbers_in("\n".join(named))


def unsourced(text: str) -> Iterator[Figure]:
    """Give the figures of a page that are in none of the sources of their sections."""
    for line, section in sections(text):
        known = list(sources(section))
        stated = COMMENT.findall(section)
        if any(one.startswith("tests/") for one in stated):
            continue
        if "example" not in stated:
            blocks = BLOCK.findall(section)
            printed = (text for language, text in blocks if language in ("", "console"))
            yield from (replace(found, line=line) for text in printed for found in figures(text))
        measured = bool(LINK.search(section) or RESULT.search(section))
        for one in figures(section, line, measured=measured):
            if not any(map(one.is_rounded_from, known)):
                yield one


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_occurs_in_a_source_that_its_section_names(page: Path) -> None:
    missing = [
        f"{page.relative_to(ROOT)}:{one.line}: {one.number} {one.unit}"
        for one in unsourced(page.read_text(encoding="utf-8"))
    ]
    assert not missing, f"no source has these figures: {REMEDY}\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("A call is 1.39x as fast.", ["1.39"]),
        (
            "It takes 13.0 and 13.5 minutes, 4 % of it for 3 of 18.",
            ["13.0", "13.5", "4", "3", "18"],
        ),
        ("Python 3.11, 16 x 8 of a warp, `2.5 us`, a 95 % interval", []),
        ("`tune` prints\n\n```\nbest 1.14 us\n```\n", ["1.14"]),
        ("As printed\n\n```\nbest 1.14 us\n```\n\n<!-- source: example -->", []),
        ("```yaml\nfactor: 0.8  # 20 % less\n```", []),
        ("more than 4 %\n\n<!-- source: tuner/model/trial.py NARROW -->", []),
        ("more than 5 %\n\n<!-- source: tuner/model/trial.py NARROW -->", ["5"]),
        ("more than 4 %\n<!-- source: tuner/model/trial.py NARROW -->\n# Next\n4 %", ["4"]),
        ("[starts](docs/results.md#start) in 77 s", ["77"]),
        ("0.07 of a core (`benchmarks/results/cpu/cluster_load.json`)", []),
        ("0.08 of a core (`benchmarks/results/cpu/cluster_load.json`)", ["0.08"]),
        ("a gain of 1.48x <!-- source: https://arxiv.org 1.48 -->", []),
        ("<!-- results -->\n1.39x\n<!-- end of results -->", []),
    ],
)
def test_a_figure_without_its_source_is_refused(text: str, refused: list[str]) -> None:
    assert [one.number for one in unsourced(text)] == refused


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("gone.py A", "gone.py does not exist"),
        ("tuner/model/trial.py GONE", "has no GONE"),
        ("tuner/model/trial.py", "has no name in it"),
    ],
)
def test_a_source_that_is_not_there_is_named(comment: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        list(unsourced(f"5 %\n<!-- source: {comment} -->"))
