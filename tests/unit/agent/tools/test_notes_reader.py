"""The notes that ship: each is short, has a title, and its code compiles."""

from __future__ import annotations

import re

import pytest

from tuner.agent.tools import reading
from tuner.compiler.base import CompileRequest

CODE = re.compile(r"^```cuda\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(code, id=f"{name}-{number}")
    for name in reading.names()
    for number, code in enumerate(CODE.findall(reading.note(name)), 1)
]


@pytest.mark.parametrize("name", reading.names())
def test_a_note_has_a_title_and_is_short(name):
    text = reading.note(name)
    assert text.startswith("# ")
    assert 20 <= len(text.splitlines()) <= 90
    assert len(text) < 7000
    assert all(len(line) <= 120 for line in text.splitlines())
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("code", SNIPPETS)
def test_the_code_of_the_notes_compiles_for_hopper(compiler, code):
    kernels = tuple(re.findall(r"__global__ void (?:__\w+\([^)]*\) )?(\w+)\(", code))
    assert kernels, "a snippet defines a kernel, so that its code is generated"
    result = compiler.submit(CompileRequest(code, kernels, "sm_90a")).result()
    assert result.ok, result.error


def test_there_is_code_to_check():
    assert len(SNIPPETS) >= 8


def test_the_notes_are_listed_by_title_and_read_by_name(make_tools):
    tools = make_tools()
    listed = tools.call("read_notes", {})
    assert len(listed.splitlines()) == len(reading.names())
    for name in reading.names():
        assert f"- {name}: {reading.title(name)}" in listed
        assert tools.call("read_notes", {"name": name}) == reading.note(name)


def test_a_note_misspelt_is_guessed(make_tools):
    assert "did you mean 'memory'?" in make_tools().call("read_notes", {"name": "memry"})
