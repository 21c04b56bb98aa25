"""The agent `files`: a person, or a coding agent in an editor, answers in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from errno import ELOOP
from pathlib import Path
from typing import Any

from tuner.compiler.includes import OWN
from tuner.extensions.agents.base import AgentAnswer, Briefing, Conversation, Toolbox, Transcript
from tuner.extensions.agents.prompts import prompt
from tuner.extensions.agents.replies import (
    KNOWN_METRICS,
    SLOWEST_DEFAULT,
    check_plan,
    read_plan,
    require_whole,
)
from tuner.model.errors import AgentError, AwaitedError, ReplyError
from tuner.process.files import atomic_write, read_regular
from tuner.session.events import Idea, is_answer

REQUEST, PLAN, TEMPLATE, SPACE = "request.md", "plan.json", "template.cu.j2", "space.yaml"
# Far larger than any template or search space that the gate lets pass.
MOST_ANSWER_BYTES = 16 << 20
PROBLEM, RESULT, STOP = "problem.md", "result.md", "stop"
ANSWER = (TEMPLATE, SPACE)
POLL_S = 0.5
# An editor writes in several steps; what has not changed for so long is taken for whole.
SETTLED_S = 1.0
MOST_SETTLING_S = 10.0


class FilesAgent:
    """Write requests to a folder and read the answers there, each round in a folder of its own.

    `wait_s` is how long an answer is waited for, None for ever; with 0 what lies there is taken as
    it is. `say` is told when the waiting begins. A file named `stop` ends the rounds once the
    answers that are there have been read.
    """

    name = "files"

    def __init__(
        self,
        exchange: Path,
        *,
        wait_s: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.exchange, self._wait_s, self._sleep, self._say = exchange, wait_s, sleep, say

    def converse(
        self, briefing: Briefing, toolbox: Toolbox, transcript: Transcript
    ) -> Conversation:
        folder = self.exchange / f"round-{briefing.round:02}"
        return Exchange(self, folder, briefing, transcript)

    @property
    def stop(self) -> Path:
        return self.exchange / STOP

    def wait_for(
        self,
        folder: Path,
        names: Sequence[str],
        go_on: str = "go on with --resume",
        places: Callable[[Path], Sequence[Path]] = lambda folder: [folder],
    ) -> bool:
        """Wait until whole files lie in each of a folder's `places`; False where the rounds end.

        Raises `AwaitedError` when the time is up; `go_on` says what to do once they are there.
        """
        file = PROBLEM if (folder / PROBLEM).exists() else REQUEST
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        are = "are" if len(names) > 1 else "is"
        waited_s = 0.0
        before: tuple[float, ...] | None = None
        if self._wait_s != 0.0 and _times(places(folder), names) is None:
            self._say(f"waiting for {listed} in {folder}: {file} there says what is asked")
        while True:
            now = _times(places(folder), names)
            if now is not None and (now == before or self._wait_s == 0.0):
                return True
            if now is None and self.stop.exists():
                return False
            # Files that are written over and over are waited for a little longer, not for ever.
            late_s = waited_s - (0.0 if now is None else MOST_SETTLING_S)
            if self._wait_s is not None and late_s >= self._wait_s:
                lacking = next(f for f in places(folder) if _times([f], names) is None)
                raise AwaitedError(
                    f"no answer yet: {listed} {are} to be written in {lacking}",
                    remedy=f"{folder / file} says what is asked; then {go_on}",
                )
            before = now
            pause_s = POLL_S if now is None else SETTLED_S
            self._sleep(pause_s)
            waited_s += pause_s


class Exchange:
    """One round in its folder: `request.md` is asked, two files answer, `plan.json` may explain.

    Several answers lie in folders of one letter each.

    All that is asked and read goes into the transcript as it happens, so that a resumed round
    does not take the next answer for the one before.
    """

    def __init__(
        self, agent: FilesAgent, folder: Path, briefing: Briefing, transcript: Transcript
    ) -> None:
        self._agent, self._folder = agent, folder
        self._briefing, self._transcript = briefing, transcript

    def plan(self) -> Idea | Mapping[str, Conversation] | None:
        said = self._transcript.again()
        if said is None:
            asked = prompt(
                "files",
                stable=self._briefing.stable,
                current=self._briefing.current,
                round=self._briefing.round,
                base=self._briefing.base,
                example=self._briefing.example,
                metrics=", ".join(KNOWN_METRICS),
                slowest=SLOWEST_DEFAULT,
                headers=OWN / "tune",
                known=self._find_same_task(),
            )
            said = {"type": "message", "message": {"role": "user", "content": asked}}
            self._transcript.keep(said)
        write_request(self._folder / REQUEST, said["message"]["content"])
        awaited: tuple[str, ...] = ANSWER
        while True:
            kept = self._transcript.again()
            if kept is None:
                if not self._agent.wait_for(self._folder, awaited, places=answer_places):
                    return None
                kept = self._read_plan()
                self._transcript.keep(kept)
                if kept["type"] == "refused plan":
                    self._refuse(kept["problem"], kept["names"])
            if kept["type"] == "plan":
                return self.idea(kept["text"])
            if kept["type"] == "answers":
                return {name: Part(self, name, one) for name, one in kept["answers"].items()}
            # A plan that was put aside alone is not to be left out by oversight.
            awaited = (*([PLAN] if kept["names"] == [PLAN] else []), *ANSWER)

    def _find_same_task(self) -> str:
        """Name an earlier request that holds the task as it is now, "" where none does."""
        for path in sorted(self._agent.exchange.glob(f"round-*/{REQUEST}")):
            if path.parent != self._folder and self._briefing.stable in read_answer_file(path)[0]:
                return f"../{path.parent.name}/{path.name}"
        return ""

    def refactor(self) -> AgentAnswer:
        return _answer_of(self._transcript.again() or self._read_answer())

    def repair(self, problem: str) -> AgentAnswer:
        if self._transcript.again() is None:
            self._refuse(problem, ANSWER)
            self._transcript.keep({"type": "problem", "text": problem})
        kept = self._transcript.again()
        if kept is None:
            if not self._agent.wait_for(self._folder, ANSWER):
                raise AgentError(
                    "the rounds were stopped before the answer was repaired",
                    remedy=f"to go on, remove {self._agent.stop} and use --resume",
                )
            kept = self._read_answer()
        return _answer_of(kept)

    def _read_plan(self) -> Mapping[str, Any]:
        places = answer_places(self._folder)
        if places != [self._folder]:
            letters = [place.name for place in places]
            alone = [name for name in (*ANSWER, PLAN) if (self._folder / name).exists()]
            if alone:
                listed = f"{', '.join(alone)} beside the answers {', '.join(letters)}"
                names, problem = [*alone, *letters], f"there are {listed}: write one or several"
                return {"type": "refused plan", "text": "", "problem": problem, "names": names}
            read = {f.name: {**_answer_in(f), "plan": _plan_in(f)} for f in places}
            return {"type": "answers", "answers": read}
        text, problem = _plan_in(self._folder)
        try:
            if not problem:
                self.idea(text)
        except ReplyError as error:
            problem = str(error)
        if problem:
            problem = f"{PLAN}: {problem}"
            return {"type": "refused plan", "text": text, "problem": problem, "names": [PLAN]}
        return {"type": "plan", "text": text}

    def idea(self, text: str) -> Idea:
        if text.strip():
            return read_plan(text, self._briefing)
        base = self._briefing.base or self._briefing.population[-1].name
        return Idea(base, f"none given: there was no {PLAN}", "see the template")

    def tell(self, text: str, answer: str = "") -> None:
        write_request(self._folder / answer / RESULT, f"{text}\n")

    def _read_answer(self) -> Mapping[str, Any]:
        kept = _answer_in(self._folder)
        self._transcript.keep(kept)
        (self._folder / PROBLEM).unlink(missing_ok=True)
        return kept

    def _refuse(self, problem: str, names: Sequence[str]) -> None:
        """Put wrong files aside, then say why: whoever reads that may write others at once."""
        aside = refused_aside(self._folder, names)
        again = f"Write {' and '.join(names)} again; what was refused is in {aside.name}."
        if PLAN not in names:
            again += f" The plan stands as it was with the first answer: {PLAN} is not read again."
        write_request(self._folder / PROBLEM, f"{problem}\n\n{again}\n")


class Part:
    """One of several answers of a round, all of which were read at once."""

    def __init__(self, exchange: Exchange, name: str, kept: Mapping[str, Any]) -> None:
        self._exchange, self._name, self._kept = exchange, name, kept

    def plan(self) -> Idea:
        """Read what an answer says of itself; what is wrong with that is no fault of the answer."""
        text, problem = self._kept["plan"]
        try:
            if problem:
                raise ReplyError(problem)
            return self._exchange.idea(text)
        except ReplyError as error:
            return replace(self._exchange.idea(""), hypothesis=f"not read: {PLAN}: {error}")

    def refactor(self) -> AgentAnswer:
        return _answer_of(self._kept)

    def repair(self, problem: str) -> AgentAnswer:
        raise ReplyError(problem)

    def tell(self, text: str) -> None:
        self._exchange.tell(text, self._name)


def answer_places(folder: Path) -> list[Path]:
    """List where a round's answers lie or are to lie: in folders `a`, `b`..., or in its own."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if is_answer(path.name) and path.is_dir()) or [folder]


def read_answer(folder: Path) -> AgentAnswer:
    """Read the answer in a folder; raise `ReplyError` where it is none or not whole."""
    return _answer_of(_answer_in(folder))


def check_plan_in(folder: Path) -> None:
    """Raise `ReplyError` where the plan beside an answer, if there is one, is not as asked."""
    text, problem = _plan_in(folder)
    try:
        if problem:
            raise ReplyError(problem)
        if text.strip():
            check_plan(text)
    except ReplyError as error:
        raise ReplyError(f"{PLAN}: {error}") from error


def _answer_in(folder: Path) -> Mapping[str, Any]:
    (template, no_template), (space, no_space) = (
        read_answer_file(folder / name) for name in ANSWER
    )
    kept = {"type": "answer", "template": template, "space": space}
    if problem := no_template or no_space:
        kept["problem"] = problem
    return kept


def _plan_in(folder: Path) -> tuple[str, str]:
    return read_answer_file(folder / PLAN) if (folder / PLAN).exists() else ("", "")


def write_request(path: Path, text: str) -> None:
    """Write what is asked; raise `AgentError` where it cannot be, or where its folder is a link."""
    with _writing(path):
        if path.parent.is_symlink():
            raise OSError(ELOOP, "its folder is a link")
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)


def read_answer_file(path: Path) -> tuple[str, str]:
    """Read a file as far as that goes, and say what is wrong with it, "" for nothing."""
    try:
        content = read_regular(path, MOST_ANSWER_BYTES)
        return content.decode(), ""
    except UnicodeDecodeError as error:
        broken = f"{path.name} is no UTF-8 text: {error.reason} at byte {error.start}"
        return content.decode(errors="replace"), broken
    except OSError as error:
        return "", f"{path.name} cannot be read: {error.strerror}"


def refused_aside(folder: Path, names: Sequence[str]) -> Path:
    """Put refused files into a new folder beside them, which is returned."""
    number = 1
    while (aside := folder / f"refused-{number}").exists():
        number += 1
    with _writing(aside):
        aside.mkdir()
        for name in names:
            if (folder / name).exists():
                (folder / name).rename(aside / name)
    return aside


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AgentError(
            f"cannot be written: {error.strerror}",
            path=path,
            remedy="once the cause is gone, run it again, with --resume where a session was begun",
        ) from error


def _times(folders: Sequence[Path], names: Sequence[str]) -> tuple[float, ...] | None:
    """Tell when files were written; None while one is missing or empty."""
    try:
        stats = [(folder / name).stat() for folder in folders for name in names]
    except OSError:  # not there yet, or a link that leads nowhere
        return None
    return tuple(stat.st_mtime for stat in stats) if all(stat.st_size for stat in stats) else None


def _answer_of(kept: Mapping[str, Any]) -> AgentAnswer:
    if "problem" in kept:
        raise ReplyError(kept["problem"])
    for kind in ("template", "space"):
        require_whole(kept[kind], kind)
    return AgentAnswer(kept["template"], kept["space"])
