"""Arguments as models write them: wrong ones come back as text that says what is right."""

from __future__ import annotations

import json

import pytest

from tuner.extensions.agents.tools.arguments import ToolLimits

HOSTILE = [
    {"tempate": "x"},
    {"template": 3},
    {"template": ["a"]},
    {"template": "\ud800"},
    {"template": "\0"},
    {"template": "//% for i in range(10 ** 9)\n//% endfor\n"},
    {"template": "@{ ''.__class__ }@"},
    {"template": "{" * 100_000},
    {"template": "x" * 500_000},
    {"space": "\t- : ["},
    {"space": "parameters: &a [*a]"},
    {"space": "parameters: {block: [" + "1, " * 70_000 + "]}"},
    {"config": {"block": None}},
    {"config": {"block": [1]}},
    {"config": {"block": 1e308}},
    {"config": {"block": float("nan")}},
    {"config": {"block": 10**5000}},
    {"config": {"\udfff": "\ud800"}},
    {"config": {"block": True}},
    {"config": {str(i): i for i in range(1000)}},
    {"config": "block=1"},
    {"workload": "N"},
    {"workload": "N=" + "9" * 300},
    {"workload": "N=1,N=2"},
    {"workload": 5},
    {"candidate": "../../etc"},
    {"candidate": "\x1b[31m" * 10},
    {1: 2},
]


@pytest.mark.parametrize("arguments", HOSTILE, ids=map(str, range(len(HOSTILE))))
@pytest.mark.parametrize("tool", ["render", "compile"])
def test_hostile_arguments_are_answered_in_a_few_words(make_tools, tool, arguments):
    answer = make_tools().call(tool, arguments)
    assert 0 < len(answer) < 3000
    answer.encode()


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("compile", {"tempate": ""}, "'tempate' is no argument; there are: candidate, template"),
        ("compile", {"workload": 3}, "workload: input should be a valid string; found 3"),
        ("compile", {"config": {"block": [1]}}, "'config.block': a number, a text or a boolean"),
        ("compile", {"config": {"blok": 1}}, "no parameter is named 'blok'"),
        ("compile", {"config": {"block": 33}}, "block cannot be 33\n  values: 32, 64, 128"),
        ("compile", {"config": {"items": True}}, "items cannot be True"),
        ("compile", {"workload": "N=0"}, "N is '0', not a positive whole number"),
        ("compile", {"candidate": "r9"}, "there is no candidate 'r9'\n  candidates: initial"),
        ("render", {"first_line": 0}, "first_line: input should be greater than or equal to 1"),
        ("render", {"first_line": "1"}, "first_line: input should be a valid integer; found '1'"),
        ("render", {"first_line": 9}, "[no line from 9 to the last: there are 8]"),
        ("search", {"configs": 0}, "configs: input should be greater than or equal to 1"),
        ("search", {"searcher": "exhaustive"}, "found 'exhaustive'"),
        ("read_source", {}, "path is missing"),
        ("search_source", {"text": ""}, "text: string should have at least 2 characters"),
        ("read_notes", {"name": "../limits"}, "there is no note '../limits'"),
        ("read_notes", {"name": "memry"}, "did you mean 'memory'?"),
        ("rm", {}, "there is no tool 'rm'; there are: render"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(make_tools, tool, arguments, said):
    assert said in make_tools().call(tool, arguments)


def test_null_stands_for_what_is_not_given(make_tools):
    tools = make_tools()
    given = {"template": None, "workload": None, "config": None, "last_line": None}
    assert tools.call("render", given) == tools.call("render", {})


def test_every_tool_has_a_closed_schema_that_says_what_each_argument_is(make_tools):
    for tool in make_tools().tools():
        schema = json.loads(json.dumps(tool.parameters))
        assert schema["additionalProperties"] is False
        assert schema["type"] == "object"
        assert set(schema["required"]) <= schema["properties"].keys()
        assert all(one["description"] for one in schema["properties"].values())
        assert "title" not in json.dumps({k: v for k, v in schema.items() if k != "properties"})


def test_the_tools_have_a_fixed_order(make_tools):
    names = "render compile verify measure profile search read_source search_source read_notes"
    assert [tool.name for tool in make_tools().tools()] == names.split()


def test_the_calls_of_a_round_run_out(make_tools):
    tools = make_tools(limits=ToolLimits(round_calls=2))
    assert "constexpr" in tools.call("render", {})
    assert "wrong arguments" in tools.call("render", {"x": 1})
    assert tools.call("render", {}) == "not run: the 2 tool calls of this round are used up"


def test_the_seconds_of_a_round_run_out(make_tools):
    tools = make_tools(limits=ToolLimits(round_s=1e-9))
    tools.call("render", {})
    assert "s that tools may take in this round are used up" in tools.call("render", {})


def test_a_search_begins_nothing_after_its_time(make_tools):
    tools = make_tools(limits=ToolLimits(call_s=0.0))
    assert "0 of 19 valid configs tried" in tools.call("search", {})


def test_a_long_answer_is_cut_and_says_how_to_see_the_rest(make_tools):
    text = make_tools(limits=ToolLimits(characters=200)).call("render", {})
    assert len(text) < 400
    assert "characters left out; ask for fewer lines with first_line and last_line]" in text


def test_one_endless_line_is_cut_too(make_tools, draft):
    tools = make_tools(limits=ToolLimits(characters=500))
    line = "// " + "x" * 10_000 + "\n"
    assert len(tools.call("render", {**draft, "template": line + draft["template"]})) < 700
