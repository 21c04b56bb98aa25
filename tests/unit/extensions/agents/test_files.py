"""The agent that is a folder: what it writes there, and what it makes of what lies there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from agent_doubles import Kept, Tools, briefing, plan

from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.files import (
    PLAN,
    PROBLEM,
    REQUEST,
    RESULT,
    SPACE,
    STOP,
    TEMPLATE,
    FilesAgent,
    check_plan_in,
)
from tuner.model.errors import AwaitedError, ReplyError

TEXT = "__global__ void f() {}\n"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "exchange" / "round-01"


@pytest.fixture
def converse(folder):
    def start(transcript=None, *, then=lambda: None, wait_s=60.0):
        agent = FilesAgent(folder.parent, wait_s=wait_s, sleep=lambda _: then())
        return agent.converse(briefing(), Tools(), transcript or Kept())

    return start


def put(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {TEMPLATE: TEXT, SPACE: "version: 1\n", **files}.items():
        # An agent waits until nothing changes any more.
        if not (folder / name).exists() or (folder / name).read_text() != text:
            (folder / name).write_text(text)


def test_the_request_is_written_and_the_answer_taken_with_its_plan(converse, folder):
    conversation = converse(then=lambda: put(folder, **{PLAN: plan()}))
    assert conversation.plan().change == "load 16 bytes a thread"
    assert "the findings" in (folder / REQUEST).read_text()
    assert conversation.refactor() == AgentAnswer(TEXT, "version: 1\n")


def test_a_later_request_names_the_first_one_for_what_has_not_changed(folder):
    def ask(round_: int, stable: str) -> str:
        asked = replace(briefing(), round=round_, stable=stable)
        agent = FilesAgent(folder.parent, wait_s=0.0, sleep=lambda _: None)
        with pytest.raises(AwaitedError):
            agent.converse(asked, Tools(), Kept()).plan()
        return (folder.parent / f"round-{round_:02}" / REQUEST).read_text()

    first, second = ask(1, "the task\nand the rules"), ask(2, "the task\nand the rules")
    assert "the task\nand the rules" in first
    assert "the task" not in second.partition("the findings")[0].replace(
        "which also has the task", ""
    )
    assert "Answer as `../round-01/request.md` says" in second and "the findings" in second
    other = ask(3, "another task")
    assert "another task" in other and "../round-0" not in other


def test_an_empty_or_missing_file_is_waited_for(converse, folder):
    put(folder, **{SPACE: ""})
    with pytest.raises(AwaitedError, match="no answer yet"):
        converse(wait_s=2.0).plan()


def test_a_link_that_leads_to_itself_is_no_file_yet(converse, folder):
    put(folder)
    (folder / SPACE).unlink()
    (folder / SPACE).symlink_to(SPACE)
    with pytest.raises(AwaitedError):
        converse(wait_s=2.0).plan()


def test_a_plan_that_cannot_be_read_is_put_aside_with_the_reason(converse, folder):
    put(folder, **{PLAN: "{"})

    def mend():
        if not (folder / PLAN).exists():
            put(folder, **{PLAN: plan()})

    assert converse(then=mend).plan() is not None
    assert (folder / "refused-1" / PLAN).read_text() == "{"


def test_a_refused_answer_is_put_aside_and_another_is_waited_for(converse, folder):
    put(folder)
    conversation = converse(then=lambda: put(folder))
    conversation.plan()
    conversation.refactor()
    assert conversation.repair("line 2 is wrong") == AgentAnswer(TEXT, "version: 1\n")
    assert (folder / "refused-1" / TEMPLATE).exists()
    assert not (folder / PROBLEM).exists(), "it was about the answer before"


def test_a_resumed_round_hears_what_was_read_and_not_what_lies_there_now(converse, folder):
    put(folder)
    first = Kept()
    conversation = converse(first)
    conversation.plan()
    conversation.refactor()
    put(folder, **{TEMPLATE: "// another\n"})
    again = converse(Kept(first.entries))
    again.plan()
    assert again.refactor().template == TEXT


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfe", "no UTF-8 text"), (b"// ... rest unchanged ...\n", "left out")],
)
def test_a_template_that_cannot_be_whole_may_be_repaired(converse, folder, content, said):
    put(folder)
    (folder / TEMPLATE).write_bytes(content)
    conversation = converse()
    conversation.plan()
    with pytest.raises(ReplyError, match=said):
        conversation.refactor()


def test_a_file_named_stop_ends_the_rounds(converse, folder):
    folder.parent.mkdir()
    (folder.parent / STOP).touch()
    assert converse().plan() is None
    put(folder, **{PLAN: plan()})
    assert converse().plan().change == "load 16 bytes a thread", "what is there is read before"


def test_several_answers_are_read_at_once_each_with_its_own_plan(converse, folder):
    put(folder / "a", **{PLAN: plan()})
    put(folder / "b", **{TEMPLATE: "// ... the rest unchanged\n", PLAN: plan(insist=True)})
    put(folder / "c", **{PLAN: "{"})
    kept = Kept()
    first, broken, unread = converse(kept).plan().values()
    assert first.plan().change == "load 16 bytes a thread"
    assert first.refactor() == AgentAnswer(TEXT, "version: 1\n")
    assert broken.plan().insist
    with pytest.raises(ReplyError, match="left out"):
        broken.refactor()
    assert unread.plan().hypothesis.startswith(
        "not read: plan.json: the reply holds no JSON object"
    )
    assert unread.refactor().template == TEXT, "what it says of itself is no fault of an answer"
    with pytest.raises(ReplyError, match=r"^plan\.json: the reply holds no JSON object"):
        check_plan_in(folder / "c")
    check_plan_in(folder / "a")
    broken.tell("refused: it is not whole")
    assert (folder / "b" / RESULT).read_text() == "refused: it is not whole\n"
    put(folder / "a", **{TEMPLATE: "// another\n"})
    again = converse(Kept(kept.entries)).plan()
    assert list(again) == ["a", "b", "c"]
    assert again["a"].refactor().template == TEXT


def test_each_of_several_answers_is_waited_for(converse, folder):
    put(folder / "a")
    (folder / "b").mkdir()
    with pytest.raises(AwaitedError, match=r"are to be written in .*round-01/b\n"):
        converse(wait_s=0.0).plan()


def test_one_answer_beside_several_is_put_aside_with_all_of_them(converse, folder):
    put(folder)
    put(folder / "a")

    def mend():
        if not (folder / TEMPLATE).exists() and (folder / PROBLEM).exists():
            put(folder)

    assert converse(then=mend).plan().change == "see the template"
    aside = folder / "refused-1"
    assert sorted(path.name for path in aside.iterdir()) == ["a", SPACE, TEMPLATE]
    said = (folder / PROBLEM).read_text()
    assert f"there are {TEMPLATE}, {SPACE} beside the answers a: write one or several" in said


def test_what_lies_there_is_taken_at_once_where_nobody_waits(folder):
    put(folder)

    def sleep(_):
        raise AssertionError("nobody waits")

    agent = FilesAgent(folder.parent, wait_s=0.0, sleep=sleep)
    assert agent.converse(briefing(), Tools(), Kept()).plan() is not None
