"""The agent without a model: which ranges it widens, by what, and what it leaves as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_doubles import Kept, Tools

from tuner.extensions.agents.base import BriefedCandidate, Briefing
from tuner.extensions.agents.widen_ranges import DeclaredSpace, WideningAgent, WideningConversation
from tuner.model.errors import AgentError, ReplyError
from tuner.model.trial import Finding
from tuner.space.yaml import Data

SPACE = (Path(__file__).parent / "data/widened.yaml").read_text(encoding="utf-8")
TEMPLATE = "constexpr int kBlock = @{ block }@;\n"


def at_edge(parameter: str, value: float, topic: str = "edge") -> Finding:
    return Finding(topic, f"`{parameter}`={value} wins.", "Add more.", value, parameter=parameter)


def member(
    name: str, space: str = SPACE, parent: str | None = None, template: str = TEMPLATE
) -> BriefedCandidate:
    return BriefedCandidate(name, parent, template, space)


def talk(
    *findings: Finding, population: tuple[BriefedCandidate, ...] = (), base: str | None = "a"
) -> WideningConversation:
    briefing = Briefing(1, "", "", base, population or (member("a"),), findings)
    conversation = WideningAgent().converse(briefing, Tools(), Kept())
    assert isinstance(conversation, WideningConversation)
    return conversation


def parameters(text: str) -> dict[str, list[Data]]:
    return {p.name: list(p.values) for p in DeclaredSpace.of(text).choices.parameters}


@pytest.mark.parametrize(
    ("parameter", "end", "widened"),
    [
        ("block", 256, [64, 128, 256, 512]),
        ("block", 64, [32, 64, 128, 256]),
        ("rows", 4, [16, 8, 4, 2]),
        ("rows", 16, [32, 16, 8, 4]),
        ("items", 4, [1, 2, 4, 8]),
        ("depth", 3, [1, 2, 3, 4]),
        ("odd", 200, [96, 160, 200, 256]),
        ("odd", 96, [64, 96, 160, 200]),
        ("vector_bytes", 4, [2, 4, 8, 16]),
    ],
)
def test_a_range_is_continued_beyond_the_end_that_wins(
    parameter: str, end: int, widened: list[int]
) -> None:
    answer = talk(at_edge(parameter, end)).refactor()
    assert parameters(answer.space) == {**parameters(SPACE), parameter: widened}


@pytest.mark.parametrize(
    ("parameter", "end"),
    [
        *(("items", 1), ("depth", 1), ("vector_bytes", 16), ("fast", 1)),
        *(("switch", 1), ("layout", 0), ("share", 0.5), ("pinned", 8), ("block", 128)),
        ("unknown", 8),
    ],
)
def test_nothing_that_is_no_range_or_has_no_sensible_next_value_is_widened(
    parameter: str, end: float
) -> None:
    conversation = talk(at_edge(parameter, end), at_edge("block", 256, topic="unused"))
    assert conversation.plan() is None
    with pytest.raises(ReplyError, match="no range"):
        conversation.refactor()


def test_threads_end_at_1024_and_at_a_warp() -> None:
    wide = SPACE.replace("[64, 128, 256] ", "[32, 64, 1024]")
    for end in (32, 1024):
        assert talk(at_edge("block", end), population=(member("a", wide),)).plan() is None


def test_threads_of_a_block_in_two_dimensions_are_counted_together() -> None:
    plane = SPACE.replace("block: [block]}", "block: [block, items]}")
    assert talk(at_edge("block", 256), population=(member("a", plane),)).refactor()
    narrow = plane.replace("block: [block, items]", "block: [block, items * 16]")
    wider = narrow.replace("[64, 128, 256] ", "[16, 32, 64]")
    assert talk(at_edge("block", 64), population=(member("a", wider),)).plan() is None


def test_a_value_that_a_constraint_forbids_everywhere_is_not_added() -> None:
    tight = SPACE.replace("rows * items <= 64", "rows * items <= 16")
    assert talk(at_edge("rows", 16), population=(member("a", tight),)).plan() is None
    by_size = SPACE.replace("rows * items <= 64", "N % rows == 0")
    assert talk(at_edge("rows", 16), population=(member("a", by_size),)).plan() is not None
    odd_sizes = by_size.replace("{N: 1000}, {N: 4096}", "{N: 1000}, {N: 1200}")
    assert talk(at_edge("rows", 16), population=(member("a", odd_sizes),)).plan() is None


def test_comments_layout_and_the_template_stay_as_they_were() -> None:
    answer = talk(at_edge("block", 256), at_edge("items", 4)).refactor()
    assert answer.template == TEMPLATE
    assert answer.space == SPACE.replace(
        "[64, 128, 256]   # threads", "[64, 128, 256, 512]   # threads"
    ).replace("    - 4\n", "    - 4\n    - 8\n")


def test_a_line_of_its_own_goes_before_the_first_value() -> None:
    text = SPACE.replace("    - 1\n    - 2   # two\n", "    - 2   # two\n")
    answer = talk(at_edge("items", 2), population=(member("a", text),)).refactor()
    assert answer.space == SPACE


def test_the_plan_says_what_is_widened_and_why_and_predicts_nothing() -> None:
    idea = talk(at_edge("block", 256), at_edge("depth", 3)).plan()
    assert idea is not None
    assert idea.base == "a"
    assert "`block`=256 wins. `depth`=3 wins." in idea.hypothesis
    assert "`block`: 512, `depth`: 4" in idea.change
    assert idea.expectations == ()


def test_a_value_that_an_ancestor_had_is_not_added_again() -> None:
    first = SPACE.replace("[64, 128, 256] ", "[64, 128, 256, 512]")
    family = (member("a", first, template="other"), member("b", parent="a"))
    assert talk(at_edge("block", 256), population=family, base="b").plan() is None
    strangers = (member("a", first, template="other"), member("b"))
    assert talk(at_edge("block", 256), population=strangers, base="b").plan() is not None


def test_what_was_added_to_the_same_template_before_is_not_added_again() -> None:
    conversation = talk(at_edge("block", 256), at_edge("depth", 3))
    child = member("b", conversation.refactor().space, parent="a")
    again = talk(at_edge("block", 256), population=(member("a"), child))
    assert again.plan() is None


def test_it_cannot_repair_and_says_who_can() -> None:
    with pytest.raises(ReplyError, match="does not compile") as info:
        talk(at_edge("block", 256)).repair("line 3 does not compile")
    assert "--agent" in (info.value.remedy or "")


def test_it_needs_a_base() -> None:
    with pytest.raises(AgentError, match="cannot choose"):
        talk(at_edge("block", 256), base=None).plan()
