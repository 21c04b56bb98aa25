"""Reading the file of equivalent mutants, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.extensions.study.mutation.subject import (
    Marks,
    MutationSubject,
    default_path,
    entry,
    read_marks,
)
from tuner.model.errors import SpaceError


def marks_of(subject: MutationSubject, text: str) -> Marks:
    path = default_path(subject.spec.path)
    path.write_text(text, encoding="utf-8")
    return read_marks(path, subject.space)


def test_the_file_lies_beside_the_space() -> None:
    assert default_path(Path("spaces/a.yaml")) == Path("spaces/a.mutants.yaml")


def test_every_entry_that_is_printed_finds_its_own_mutant(make_subject) -> None:
    subject = make_subject()
    entries = "\n".join(entry(m.identity, f"reason {n}") for n, m in enumerate(subject.mutants))
    found = marks_of(subject, f"version: 1\nbaseline:\n{entries}\n").match_mutants(subject)
    assert list(found) == list(subject.mutants)
    assert list(found.values()) == [f"reason {n}" for n in range(len(subject.mutants))]


def test_a_mark_may_hold_for_some_configs_only(make_subject) -> None:
    subject = make_subject(threads=32)
    marked = entry(subject.mutants[0].identity, "a reason")
    text = f"version: 1\ntemplate:\n{marked}\n    config: {{threads: 32}}\n"
    marks = marks_of(subject, text)
    assert list(marks.match_mutants(subject)) == [subject.mutants[0]]
    assert marks.match_mutants(make_subject(threads=64)) == {}
    assert marks.match_mutants(make_subject()) == {}


MARK = "  - {{operator: a, line: b, change: c, reason: d, config: {{{}}}}}\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("version: 2\n", 1, "`version` is the number 2\n  needed: the number 1"),
        ("baseline: []\n", 1, "the key `version` is missing"),
        ("version: 1\nequivalent: []\n", 2, "unknown key `equivalent`"),
        ("version: 1\nbaseline:\n  - operator: cast\n", 3, "the key `line` is missing"),
        ("version: 1\nbaseline:\n  - {operator: cast, line: a, change: b, reason: ''}\n", 3,
         "reason` is the text ''\n  needed: why no result can differ"),
        (f"version: 1\nbaseline:\n{2 * MARK.format('')}", 4, "marked twice: line 3 has it too"),
        (f"version: 1\ntemplate:\n{MARK.format('threads: 33')}", 3,
         "threads cannot be 33\n  values: 32, 64"),
        (f"version: 1\ntemplate:\n{MARK.format('thread: 32')}", 3,
         "no parameter named 'thread'\n  parameters: threads"),
        (f"version: 1\nbaseline:\n{MARK.format('threads: 32')}", 3, "baseline has no config"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(make_subject, text: str, line: int, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        marks_of(make_subject(), text)
    assert (caught.value.line, message in str(caught.value)) == (line, True), str(caught.value)
