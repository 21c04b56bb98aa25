"""Sessions with rounds in them, noted as the rounds and their agents note them; and nvcc."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tuner.compiler.command import executable, list_pip_paths
from tuner.model.trial import INITIAL
from tuner.session.events import (
    AgentIdle,
    CandidateMade,
    Event,
    Expectation,
    Idea,
    Planned,
    RoundEnded,
    RoundOutcome,
    RoundRefused,
    Said,
    Tool,
    ToolsDeclared,
)
from tuner.session.session import Session

IDEA = Idea(INITIAL, "loads are narrow", "load 16 bytes", (Expectation("time_us", 0.8),))
DECLARED = tuple(
    Tool(name, f"{name} it", {"type": "object"}) for name in ("render", "measure", "profile")
)


class Noted:
    """One round of a session, written note by note."""

    def __init__(self, session: Session, number: int) -> None:
        self.session, self.number = session, number

    def _note(self, event: Event) -> Noted:
        self.session.record_event(event)
        return self

    def says(self, role: str, content: str, **more: Any) -> Noted:
        return self._entry(type="message", message={"role": role, "content": content, **more})

    def replies(self, content: str, *calls: tuple[str, str, str], **more: Any) -> Noted:
        """Note a reply of a model; calls are (id, name, arguments)."""
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": name, "arguments": given}}
                for id_, name, given in calls
            ]
        request = {"model": "m", "stream": True, "tools": more.pop("offered", [])}
        usage = {"input_tokens": 10, "output_tokens": 2}
        return self._entry(
            type="reply", message=message, model="m-1", request=request, usage=usage, **more
        )

    def fails(self, error: str) -> Noted:
        return self._entry(type="failure", error=error)

    def writes(self, kind: str, **content: str) -> Noted:
        """Note an answer of whoever writes files: `plan` or `answer`."""
        return self._entry(type=kind, **content)

    def declares(self) -> Noted:
        return self._note(ToolsDeclared(self.number, DECLARED))

    def plans(self) -> Noted:
        return self._note(Planned(self.number, IDEA))

    def adds(self, *problems: str) -> Noted:
        return self._note(CandidateMade(self.number, f"r{self.number}", 1, problems))

    def ends(self, speedup: float | None) -> Noted:
        return self._note(RoundEnded(self.number, RoundOutcome(speedup, speedup)))

    def is_refused(self, *problems: str) -> Noted:
        return self._note(RoundRefused(self.number, INITIAL, problems))

    def is_idle(self) -> Noted:
        return self._note(AgentIdle(self.number, None))

    def _entry(self, **content: Any) -> Noted:
        return self._note(Said(self.number, content))


@pytest.fixture
def with_nvcc() -> Mapping[str, str]:
    """An environment with nvcc of its wheel on PATH, or the one that is there without it."""
    found = next(filter(executable, list_pip_paths("nvcc")), None)
    if shutil.which("g++") is None or (found is None and shutil.which("nvcc") is None):
        pytest.skip("needs g++ and nvidia-cuda-nvcc")
    folders = [str(found.parent)] if found else []
    return {**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"]])}


@pytest.fixture
def session(make_plan, make_session):
    with make_session(make_plan()) as opened:
        yield opened


@pytest.fixture
def note(session: Session) -> Callable[[int], Noted]:
    """Begin to note a round."""

    def begin(number: int = 1) -> Noted:
        return Noted(session, number)

    return begin


@pytest.fixture
def model_round(note) -> Callable[[int], Noted]:
    """Note a round of a model that calls a tool, plans and writes; its end is left to the test."""

    def write(number: int = 1) -> Noted:
        return (
            note(number)
            .declares()
            .says("system", "be fast")
            .says("user", "the task")
            .says("user", "plan")
            .fails("429 too many requests")
            .replies("", ("c0", "render", '{"config": {"block": 64}}'), offered=["render"])
            .says("tool", "the source", tool_call_id="c0")
            .replies("the plan", offered=["render", "measure"], reasoning="hm")
            .plans()
            .says("user", "write it")
            .replies("the template", offered=["render", "measure"])
        )

    return write


@pytest.fixture
def cuda_headers() -> Path:
    """CUDA's headers from its wheels, or from the toolkit."""
    found = importlib.util.find_spec("nvidia")
    places = (found.submodule_search_locations if found else None) or ()
    folders = (folder for place in places for folder in Path(place).glob("cu*/include"))
    folders = chain(folders, Path("/usr/local").glob("cuda*/include"))
    wheels = next((one for one in folders if (one / "crt" / "host_defines.h").is_file()), None)
    if wheels is None:
        pytest.skip("needs nvidia-cuda-nvcc")
    return wheels
