"""The agent that is whoever answers in a folder: a person, or a coding agent in an editor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tuner.agent.base import Answer, Briefing, Conversation, Idea, Toolbox, Transcript
from tuner.agent.elisions import find_elision
from tuner.agent.prompts import prompt
from tuner.agent.replies import KNOWN_METRICS, read_plan
from tuner.errors import AwaitedError, ReplyError

REQUEST, PLAN, TEMPLATE, SPACE = "request.md", "plan.json", "template.cu.j2", "space.yaml"
PROBLEM, STOP = "problem.md", "stop"
POLL_S = 0.5
# An editor writes in several steps; what has not changed for so long is taken for whole.
SETTLED_S = 1.0


class FilesAgent:
    """Write requests to a folder and read the answers there, each round in a folder of its own.

    `wait_s` is how long an answer is waited for, None for ever. A file named `stop` ends the
    rounds.
    """

    name = "files"

    def __init__(
        self,
        exchange: Path,
        *,
        wait_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._exchange, self._wait_s, self._sleep = exchange, wait_s, sleep

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        """Open the round's folder; nothing is written before `plan`."""
        folder = self._exchange / f"round-{briefing.round:02}"
        return Exchange(self, folder, briefing, transcript)

    def stopped(self) -> bool:
        """Whether somebody has put the file there that ends the rounds."""
        return (self._exchange / STOP).exists()

    def wait_for(self, folder: Path) -> None:
        """Wait until a whole answer lies in a folder; raise `AwaitedError` when time is up."""
        waited_s = 0.0
        before: tuple[float, ...] | None = None
        while not self.stopped():
            now = _times(folder)
            if now is not None and now == before:
                return
            if now is None and self._wait_s is not None and waited_s >= self._wait_s:
                raise AwaitedError(
                    f"no answer yet: {TEMPLATE} and {SPACE} are to be written in {folder}",
                    remedy=f"{folder / REQUEST} says what is asked; then go on with --resume",
                )
            before = now
            pause_s = POLL_S if now is None else SETTLED_S
            self._sleep(pause_s)
            waited_s += pause_s


class Exchange:
    """One round in its folder: `request.md` is asked, two files answer, `plan.json` may explain."""

    def __init__(
        self, agent: FilesAgent, folder: Path, briefing: Briefing, transcript: Transcript
    ) -> None:
        self._agent, self._folder = agent, folder
        self._briefing, self._transcript = briefing, transcript
        self._refused = 0

    def plan(self) -> Idea | None:
        """Ask, wait for the answer, and read the plan that lies beside it."""
        said = self._transcript.again()
        if said is None:
            said = {"type": "message", "message": {"role": "user", "content": self._request()}}
            self._transcript.keep(said)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / REQUEST).write_text(said["message"]["content"], encoding="utf-8")
        earlier = self._transcript.again()
        if earlier is None:
            self._agent.wait_for(self._folder)
            if self._agent.stopped():
                return None
            path = self._folder / PLAN
            earlier = {"type": "plan", "text": path.read_text("utf-8") if path.exists() else ""}
            self._transcript.keep(earlier)
        if earlier["text"]:
            return read_plan(earlier["text"], self._briefing)
        return self._unplanned()

    def refactor(self) -> Answer:
        """Read the template and the space that were waited for."""
        kept = self._transcript.again()
        if kept is None:
            kept = {"type": "answer", **asdict(self._read())}
            self._transcript.keep(kept)
        return _checked(Answer(kept["template"], kept["space"]))

    def repair(self, problem: str) -> Answer:
        """Put the refused files aside, say what was wrong, and wait for others."""
        kept = self._transcript.again()
        if kept is None:
            self._put_aside()
            (self._folder / PROBLEM).write_text(problem + "\n", encoding="utf-8")
            self._agent.wait_for(self._folder)
            if self._agent.stopped():
                raise ReplyError("the rounds were stopped before the answer was repaired")
            (self._folder / PROBLEM).unlink()
            kept = {"type": "answer", **asdict(self._read())}
            self._transcript.keep(kept)
        return _checked(Answer(kept["template"], kept["space"]))

    def _request(self) -> str:
        names = [member.name for member in self._briefing.population]
        return prompt(
            "files",
            stable=self._briefing.stable,
            current=self._briefing.current,
            round=self._briefing.round,
            base=self._briefing.base,
            population=", ".join(names),
            metrics=", ".join(KNOWN_METRICS),
            plan=json.dumps(_EXAMPLE, indent=2),
        )

    def _unplanned(self) -> Idea:
        base = self._briefing.base or self._briefing.population[-1].name
        return Idea(base, f"none given: there was no {PLAN}", "see the template")

    def _read(self) -> Answer:
        texts = [(self._folder / name).read_text(encoding="utf-8") for name in (TEMPLATE, SPACE)]
        return Answer(*texts)

    def _put_aside(self) -> None:
        number = 1
        while (aside := self._folder / f"refused-{number}").exists():
            number += 1
        aside.mkdir()
        for name in (TEMPLATE, SPACE):
            if (self._folder / name).exists():
                (self._folder / name).rename(aside / name)


_EXAMPLE = {
    "hypothesis": "why the time is what it is, and what would change it",
    "change": "what is rewritten, in one sentence",
    "expectations": [{"metric": "time_us", "factor": 0.7, "workload": "T=8192,E=256"}],
}


def _times(folder: Path) -> tuple[float, ...] | None:
    """Tell when the files of an answer were written; None while one is missing or empty."""
    stats = [(folder / name).stat() for name in (TEMPLATE, SPACE) if (folder / name).exists()]
    if len(stats) < 2 or not all(stat.st_size for stat in stats):
        return None
    return tuple(stat.st_mtime for stat in stats)


def _checked(answer: Answer) -> Answer:
    for kind, text in (("template", answer.template), ("space", answer.space)):
        if elision := find_elision(text, kind):
            raise ReplyError(
                f"line {elision[0]} of the {kind} stands for text that is left out: "
                f"{elision[1]!r}; write the whole {kind}"
            )
    return answer
