"""A plan and an answer are read exactly, and what is wrong is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from agent_doubles import answer, briefing, plan
from hypothesis import given
from hypothesis import strategies as st

from tuner.extensions.agents.replies import (
    KNOWN_METRICS,
    plan_schema,
    read_answer,
    read_plan,
    require_whole,
)
from tuner.model.errors import ReplyError
from tuner.session.events import Expectation

ROOT = Path(__file__).parents[4]


def test_a_plan_becomes_an_idea() -> None:
    told = [
        {"metric": "time_us", "factor": 0.5, "workload": "T=1,D=8"},
        {"metric": "spill_bytes", "factor": 2, "workload": None},
    ]
    idea = read_plan(plan(reference="c1", expectations=told), briefing())
    assert (idea.base, idea.reference) == ("c0", "c1")
    assert idea.hypothesis == "loads are narrow: 4 sectors a request"
    assert idea.change == "load 16 bytes a thread"
    assert idea.expectations == (
        Expectation("time_us", 0.5, "T=1,D=8"),
        Expectation("spill_bytes", 2.0, ""),
    )


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "```json\n{}\n```",
        "```\n{}\n```",
        "My plan:\n\n{}\n\nI am confident.",
        "The loop `for (;;) { x = y; }` is slow, so:\n```json\n{}\n```\nThat is all.",
        '<think>{{"hypothesis": "no"}}? I had {{ braces }}.</think>\n{}',
    ],
)
def test_a_plan_is_found_alone_in_a_fence_or_in_prose(around: str) -> None:
    text = around.replace("{}", plan()).replace("{{", "{").replace("}}", "}")
    assert read_plan(text, briefing()).change == "load 16 bytes a thread"


def test_a_plan_may_leave_out_what_may_be_null() -> None:
    text = plan(base=..., reference=..., expectations=[{"metric": "time_us", "factor": 0.9}])
    idea = read_plan(text, briefing())
    assert (idea.base, idea.reference) == ("c0", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I would rather not.", "no JSON object"),
        (plan()[:-1], "not JSON: Expecting ',' delimiter, line 1"),
        (plan().replace('"hypothesis":', '"hypothesis"'), "not JSON: Expecting ':'"),
        (plan() + plan(), "2 plans"),
        (plan().replace("{", '{"change": "x", ', 1), "the key `change` is repeated"),
        (plan().replace("0.8", "NaN"), "NaN is not a number"),
        (plan(hypothesis=...), "the key `hypothesis` is missing"),
        (plan(hypothesis=""), "`hypothesis`: String should have at least 1 character"),
        (plan(budget=3), "unknown key `budget`"),
        (plan(change="clear \x1b[2J"), "`change`: it has a control character"),
        (
            plan(expectations=[{"metric": "time_us", "factor": 1, "workload": "\x9b2J"}]),
            "`expectations[0].workload`: it has a control character",
        ),
        (plan(expectations=[]), "`expectations`: List should have at least 1 item"),
        (plan(expectations=[{"metric": "time_us"}]), "`expectations[0].factor` is missing"),
        (plan(expectations=[{"metric": "time_us", "factor": 0}]), "greater than 0"),
        (plan(expectations=[{"metric": "time_us", "factor": "0.8"}]), "valid number"),
        (plan(expectations=[{"metric": "speed", "factor": 2}]), "`expectations[0].metric` is"),
        (plan(base="c1"), "`base` is 'c1'; this round builds on 'c0'"),
        (plan(reference="c9"), "`reference` is 'c9', which is no candidate; candidates: c0, c1"),
        ('{"a":' * 100_000, "nested too deep"),
    ],
)
def test_a_plan_that_cannot_be_read_is_told_exactly(text: str, said: str) -> None:
    with pytest.raises(ReplyError, match=re.escape(said)):
        read_plan(text, briefing())


def test_where_the_agent_chooses_the_plan_names_a_base_of_the_population() -> None:
    assert read_plan(plan(base="c1"), briefing(None)).base == "c1"
    with pytest.raises(ReplyError, match="names no `base`; candidates: c0, c1"):
        read_plan(plan(), briefing(None))
    with pytest.raises(ReplyError, match="`base` is 'c7', which is no candidate"):
        read_plan(plan(base="c7"), briefing(None))


@pytest.mark.parametrize("base", ["c0", None])
def test_the_schema_is_strict_in_every_object(base: str | None) -> None:
    schema = plan_schema(briefing(base))
    expectation = schema["properties"]["expectations"]["items"]
    for part in (schema, expectation):
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])
    allowed = schema["properties"]["base"]["enum"]
    assert allowed == (["c0", "c1"] if base is None else ["c0", None])
    assert expectation["properties"]["metric"]["enum"] == list(KNOWN_METRICS)
    json.dumps(schema)


def test_an_answer_is_a_template_and_a_space_as_they_were_written() -> None:
    template = "// café\r\n  int a;\t \n\n\fint b;\n"
    read = read_answer(f"Sure.\n```cuda\n{template}```\nThen\n```yaml\nversion: 1\n\n```\nDone.")
    assert read.template == template
    assert read.space == "version: 1\n\n"


@pytest.mark.parametrize("word", ["cuda", "cpp", "c++", "cu", "CUDA title=x", "jinja"])
def test_a_template_may_be_fenced_as_any_kind_of_code(word: str) -> None:
    assert read_answer(answer().replace("```cuda", f"```{word}")).template.startswith("__global__")


def test_longer_fences_hold_shorter_ones() -> None:
    text = "````cuda\n// ```\nint a;\n````\n```yaml\nversion: 1\n```"
    assert read_answer(text).template == "// ```\nint a;\n"


def test_blocks_of_other_languages_are_explanation() -> None:
    text = "```text\nblock 64: 3 us\n```\n" + answer()
    assert read_answer(text).space == "version: 1\n"


def test_reasoning_before_the_answer_is_not_part_of_it() -> None:
    text = "<think>first\n```cuda\nint wrong;\n```\n</think>\n" + answer("int right;")
    assert read_answer(text).template == "int right;\n"


YAML = "```yaml\nversion: 1\n```\n"
CUDA = "```cuda\nint a;\n```\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Nothing comes to mind.", "no template, a ```cuda block; it has no block at all"),
        (CUDA, "no space, a ```yaml block; it has ```cuda"),
        (YAML, "no template, a ```cuda block; it has ```yaml"),
        (CUDA + CUDA + YAML, "2 blocks that may be the template, at its lines 1, 4"),
        (CUDA + "```cpp\nint b;\n```\n" + YAML, "2 blocks that may be the template"),
        (CUDA + YAML + YAML, "2 blocks that may be the space"),
        ("```cuda\n \n```\n" + YAML, "the template is an empty block, at line 1"),
        (CUDA + "```yaml\n```\n", "the space is an empty block, at line 4"),
        ("```\nint a;\n```\n" + CUDA + YAML, "the fence at line 1 of the reply does not say"),
        (YAML + "```cuda\nint a;\n", "the block that starts at line 4 of the reply is not closed"),
        ("```cuda\nint a;\n" + YAML, "line 1 of the reply is not closed before another starts at "),
        (
            answer("int a;\n// ... rest unchanged"),
            "line 2 of the template stands for text that is left out: '// ... rest unchanged'; "
            "write the whole template",
        ),
        (answer(space="version: 1\n# ... other parameters as before"), "line 2 of the space"),
    ],
)
def test_an_answer_that_is_not_both_is_told_exactly(text: str, said: str) -> None:
    with pytest.raises(ReplyError, match=re.escape(said)):
        read_answer(text)


@pytest.mark.parametrize(
    "line",
    [
        "// ... rest unchanged",
        "  // rest of the kernel unchanged",
        "// ...",
        "...",
        "/* ... */",
        "/* ... existing code ... */",
        "/*# the remaining code is as before #*/",
        "// (same as above ...)",
        "int a;  // ... the rest as in the base",
        "// … same as before …",
        "// original code goes here",
        "// helper functions omitted for brevity",
        "// kernel body unchanged",
    ],
)
def test_a_truncation_is_found(line: str) -> None:
    with pytest.raises(ReplyError, match=f"^line 2 of the template .*{re.escape(line.strip())}"):
        require_whole(f"int a;\n{line}\nint b;\n", "template")


@pytest.mark.parametrize(
    "line",
    [
        "// the rest of the rows take the slow path",
        "// loads of the previous tile are still in flight...",
        "// same bits as the baseline",
        "template <typename... Args> void f(Args... args);",
        "f(args...);",
        "// x[0], x[1], ..., x[n - 1]",
        "// the original kernel read 4 bytes a thread",
        'const char* s = "...";',
        "// leaves the remaining lanes idle",
    ],
)
def test_an_honest_line_is_no_truncation(line: str) -> None:
    require_whole(line, "template")


def test_no_file_of_ours_is_taken_for_a_truncation() -> None:
    templates = [*ROOT.glob("templates/**/*.j2"), *ROOT.glob("kernels/**/*.cu")]
    spaces = [*ROOT.glob("search_spaces/**/*.yaml")]
    assert templates and spaces
    for kind, paths in (("template", templates), ("space", spaces)):
        for path in paths:
            require_whole(path.read_text(), kind)


def test_a_long_comment_takes_no_long_time() -> None:
    require_whole("// " + "rest the same " * 30_000, "template")


PIECES = ["```", "```cuda", "```yaml", "\n", "{", "}", '"change"', ":", ",", "[", "]", "1e999", "x"]


@given(st.lists(st.sampled_from([*PIECES, plan(), answer()]) | st.text(max_size=5), max_size=12))
def test_any_text_is_read_or_refused(pieces: list[str]) -> None:
    for read in (lambda text: read_plan(text, briefing()), read_answer):
        try:
            read("".join(pieces))
        except ReplyError as error:
            assert error.message
