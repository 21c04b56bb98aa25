"""The tools of a session and what each does in a round: it reads headers and notes, too."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from tuner.device.base import DeviceInfo
from tuner.extensions.agents.base import Toolbox
from tuner.extensions.agents.gate import RefusedError
from tuner.extensions.agents.history import FOLDER
from tuner.extensions.agents.profiling import Profiling
from tuner.extensions.agents.tools import trying
from tuner.extensions.agents.tools.arguments import (
    ChoiceArguments,
    NotesArguments,
    ReadArguments,
    RenderArguments,
    SearchArguments,
    SearchSourceArguments,
    ToolArguments,
    ToolBudget,
    ToolLimits,
    check_arguments,
    cut_text,
    schema,
    shorten_line,
)
from tuner.extensions.agents.tools.trying import Drafts, in_words, lines_of
from tuner.model.errors import DeviceError, InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import Trial
from tuner.process.files import read_regular
from tuner.session.events import Tool
from tuner.session.session import Session
from tuner.source import read_source
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator

HEADERS = "cuda"
# Of a folder; of one file where others may have more to say.
MOST_ENTRIES = 400
MOST_IN_A_FILE = 5
_BINARY_PREFIX = 8192


class SourceFolders:
    """Read and search files under the folders given and under those of CUDA's headers.

    A path starts with the name of its folder. What is not under one of them, absolute paths, `..`
    and links that lead out included, does not exist here, nor does what is hidden; binary and very
    large files are not shown. Every mistake is an `InputError`.
    """

    def __init__(
        self, folders: Sequence[Path], headers: Callable[[], Sequence[Path]], limits: ToolLimits
    ) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise InputError("no such folder of sources", path=folder)
        self._folders, self._headers, self._limits = tuple(folders), headers, limits

    def text_of(self, path: str, first_line: int, last_line: int | None) -> str:
        """Show lines of a file, or list a folder."""
        place = self._find_path(path)
        if place is None:
            return "source folders:\n" + "\n".join(f"- {name}/" for name in self._roots)
        shown = _short_path(path)
        if place.is_dir():
            return f"{shown}:\n{self._listing(place)}"
        text = self._text(place)
        if text is None:
            raise InputError(
                f"{shown} cannot be shown",
                remedy=f"text of at most {self._limits.file_bytes} bytes can",
            )
        most = self._limits.line_characters
        lines = "\n".join(shorten_line(line.rstrip("\r"), most) for line in text.split("\n"))
        return f"{shown}:\n{lines_of(lines, first_line, last_line)}"

    def search(self, wanted: SearchSourceArguments, deadline_s: float) -> str:
        """List lines that hold a text as `path:line: text`; files near the top come first."""
        top = self._find_path(wanted.folder)
        roots = self._roots.items() if top is None else [(_short_path(wanted.folder), top)]
        most = min(wanted.most, self._limits.matches)
        sought = re.escape(wanted.text)
        pattern = re.compile(
            rf"(?<!\w){sought}(?!\w)" if wanted.whole_word else sought,
            re.IGNORECASE | re.ASCII if wanted.ignore_case else 0,
        )
        matches: list[str] = []
        files = 0
        for name, path in (file for root in roots for file in self._files(*root)):
            if time.monotonic() > deadline_s:
                return _summary(matches, files, "the time is over: name a smaller folder")
            files += 1
            for number, line in self._matches(path, pattern):
                if len(matches) == most:
                    return _summary(matches, files, "there are more: look for a longer text")
                matches.append(
                    f"{name}:{number}: {shorten_line(line.strip(), self._limits.line_characters)}"
                )
        return _summary(matches, files, "")

    @cached_property
    def _roots(self) -> dict[str, Path]:
        """The folders by name. CUDA's are made ready only when they are asked for."""
        roots: dict[str, Path] = {}
        named = [(HEADERS, folder) for folder in self._headers()]
        named += [(folder.resolve().name or "root", folder) for folder in self._folders]
        for name, folder in named:
            place = folder.resolve()
            if any(place.is_relative_to(root) for root in roots.values()):
                continue
            free = (name if n == 1 else f"{name}-{n}" for n in range(1, len(named) + 2))
            roots[next(one for one in free if one not in roots)] = place
        return roots

    def _find_path(self, text: str) -> Path | None:
        """Find a file or folder; None stands for all folders together."""
        if text.strip() in ("", ".", "./"):
            return None
        parts = PurePosixPath(text).parts
        root = self._roots.get(parts[0])
        # What is hidden, such as `.git` and `.env`, is nobody's source; nor is `..`.
        if root is None or any(part.startswith(".") for part in parts) or "\0" in text:
            names = ", ".join(f"{name}/" for name in self._roots)
            raise InputError(
                f"{_short_path(text)} is in no source folder",
                remedy=f"a path starts with one of {names}; no part of it starts with a dot",
            )
        above = text.rstrip("/").rpartition("/")[0]
        missing = InputError(
            f"there is no {_short_path(text)}", remedy=f"read_source {above!r} lists it"
        )
        try:
            place = root.joinpath(*parts[1:]).resolve(strict=True)
            plain = place.is_file() or place.is_dir()
        except (OSError, RuntimeError, ValueError) as error:
            raise missing from error
        if not plain or not place.is_relative_to(root):
            raise missing
        return place

    def _listing(self, folder: Path) -> str:
        try:
            visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise InputError(f"cannot be listed: {error.strerror}") from error
        entries = sorted(visible, key=lambda path: (not path.is_dir(), path.name))
        lines = [f"- {entry.name}/" if entry.is_dir() else f"- {entry.name}" for entry in entries]
        if len(lines) > MOST_ENTRIES:
            lines[MOST_ENTRIES:] = [f"[{len(lines) - MOST_ENTRIES} more]"]
        return "\n".join(lines) or "[empty]"

    def _files(self, name: str, top: Path) -> Iterator[tuple[str, Path]]:
        """Walk a folder level by level, in the order of names; links aren't followed."""
        if top.is_file():
            yield name, top
            return
        level = [(name.rstrip("/"), top)]
        while level:
            below: list[tuple[str, Path]] = []
            for prefix, folder in level:
                entries: list[os.DirEntry[str]] = []
                with suppress(OSError), os.scandir(folder) as found:
                    entries += (entry for entry in found if not entry.name.startswith("."))
                for entry in sorted(entries, key=lambda one: one.name):
                    path = f"{prefix}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        below.append((path, folder / entry.name))
                    elif entry.is_file(follow_symlinks=False):
                        yield path, folder / entry.name
            level = below

    def _matches(self, path: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
        text = self._text(path) or ""
        found: dict[int, str] = {}
        for match in pattern.finditer(text):
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.start())
            number = text.count("\n", 0, start) + 1
            found[number] = text[start : end if end >= 0 else len(text)]
            if len(found) == MOST_IN_A_FILE:
                break
        yield from found.items()

    def _text(self, path: Path) -> str | None:
        most = self._limits.file_bytes
        try:
            data = read_regular(path, most)
        except OSError:
            return None
        if b"\0" in data[:_BINARY_PREFIX]:
            return None
        return data.decode(errors="replace")


def cuda_headers() -> Sequence[Path]:
    """Find the headers that NVRTC compiles with, its own or a toolkit's; none without NVRTC."""
    from tuner.compiler.cache import user_cache_dir

    try:
        from cuda.bindings import nvrtc

        from tuner.compiler.nvrtc import include_dirs

        _, major, minor = nvrtc.nvrtcVersion()
        return include_dirs((int(major), int(minor)), user_cache_dir())
    except (ImportError, OSError, RuntimeError):
        return []


def _summary(matches: list[str], files: int, why: str) -> str:
    end = f"[{len(matches)} lines in {files} files{'; ' + why if why else ''}]"
    return "\n".join([*matches, end])


def _short_path(path: str) -> str:
    return shorten_line(path.rstrip("/"), 200)


NOTES = Path(__file__).parent / "notes"


def note_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in NOTES.glob("*.md")))


def read_note(name: str) -> str:
    if name not in note_names():
        near = get_close_matches(name, note_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"there is no note {name[:80]!r}", remedy=f"{hint}notes: {', '.join(note_names())}"
        )
    return (NOTES / f"{name}.md").read_text(encoding="utf-8")


def note_titles() -> dict[str, str]:
    return {name: read_note(name).partition("\n")[0].removeprefix("# ") for name in note_names()}


_DRAFT = (
    "`template` and `space` may hold a whole draft of yours; what is left out is taken from the "
    "`candidate`."
)


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool with the model of its arguments; `rest` says how to see what an answer cuts off."""

    tool: Tool
    model: type[ToolArguments]
    rest: str


def offers(info: DeviceInfo, limits: ToolLimits) -> tuple[Offer, ...]:
    """List the tools that this device can serve, with what they say of it."""
    whose = " The times are a CPU's." if info.on_cpu else ""
    lacking = {"compile", "profile"} if info.evaluator else set()
    lacking |= set() if info.verifies else {"verify"}
    notes = "; ".join(f"{name}: {title}" for name, title in note_titles().items())
    listed: tuple[tuple[str, type[ToolArguments], str], ...] = (
        ("render", RenderArguments, "Show the CUDA that a template gives for one config."),
        ("compile", ChoiceArguments,
         f"Compile one config for {info.architecture}: errors with the template's lines, or "
         "registers, spills, shared memory, occupancy and its limiter, and what the machine code "
         "consists of."),
        ("verify", ChoiceArguments,
         "Run one config with every kind of input and say whether its results are within the "
         "tolerances."),
        ("measure", ChoiceArguments,
         f"{'Verify and time' if info.verifies else 'Time'} one config on a tuned workload, "
         f"beside the baseline.{whose}"),
        ("profile", ChoiceArguments,
         "Profile one config on a tuned workload: what bounds it, its metrics, and findings "
         "with advice."),
        ("search", SearchArguments,
         f"Search a space on one tuned workload with at most {limits.configs} configs, "
         f"{limits.round_configs} in a round: the best of them, and what failed. The whole "
         "search follows when your answer is accepted; this is to try an idea."),
        ("read_source", ReadArguments,
         "Read the baseline, a candidate's template or space, or a file of CUDA's headers or of "
         "the user's folders of sources; list a folder."),
        ("search_source", SearchSourceArguments,
         "Find a text in CUDA's headers and the user's folders of sources: up to "
         f"{limits.matches} lines with their places."),
        ("read_notes", NotesArguments,
         f"Read a note on GPUs and on this program. {notes}."),
    )  # fmt: skip
    tools = []
    for name, model, text in listed:
        if name in lacking:
            continue
        about = f"{text} {_DRAFT}" if "template" in model.model_fields else text
        of_lines = "first_line" in model.model_fields
        rest = "ask for fewer lines with first_line and last_line" if of_lines else "ask for less"
        tools.append(Offer(Tool(name, about, schema(model)), model, rest))
    return tuple(tools)


class ToolSession:
    """Make the toolboxes of a session's rounds.

    `sources` are folders that may be read besides CUDA's headers. `info` is of the device, which
    runs kernels. `reporting` makes the evaluator whose compiler `compile` reports on, where that is
    not the device's own. Drafts are written under the session's folder; nothing that is tried is
    recorded. One call at a time.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        candidates: Candidates,
        profiling: Profiling,
        sources: Sequence[Path],
        *,
        info: DeviceInfo,
        reporting: Callable[[Plan], Evaluator] | None = None,
        limits: ToolLimits | None = None,
    ) -> None:
        self.plan, self.session, self.candidates = plan, session, candidates
        self.profiling, self.info = profiling, info
        self.reporting = reporting or candidates.of
        self.limits = limits or ToolLimits()
        self.sources = SourceFolders(sources, cuda_headers, self.limits)
        self._baselines_us: dict[Workload, float] = {}

    def open_round(self, number: int, base: str | None) -> Toolbox:
        """Make the tools of a round; `base` is the candidate that stands for those not named."""
        folder = self.session.directory / FOLDER / f"{number:02}"
        drafts = Drafts(self.plan, self.session, self.candidates, base, folder, self.limits)
        return RoundTools(self, drafts)

    def baseline_us(self, workload: Workload) -> float:
        baseline = self.session.baselines().get(workload)
        if baseline is not None:
            return baseline.measurement.median_us
        if workload not in self._baselines_us:
            trial = self.candidates.evaluator(self.plan.candidate).baseline(workload)
            assert trial.time_us is not None
            self._baselines_us[workload] = trial.time_us
        return self._baselines_us[workload]


class RoundTools:
    """The tools of one round; implements `Toolbox`.

    What the caller does wrong, and what a kernel does wrong, comes back as text. Errors that end
    the program pass: `SessionError`, and `WorkerError` of a process that cannot be replaced.
    """

    def __init__(self, bench: ToolSession, drafts: Drafts) -> None:
        self._bench, self._drafts = bench, drafts
        self._budget = ToolBudget(bench.limits, drafts.last_number())
        self._offers = {offer.tool.name: offer for offer in offers(bench.info, bench.limits)}

    def tools(self) -> Sequence[Tool]:
        return tuple(offer.tool for offer in self._offers.values())

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        offer = self._offers.get(name)
        if offer is None:
            return f"there is no tool {name[:80]!r}; there are: {', '.join(self._offers)}"
        if refusal := self._budget.refusal():
            return f"not run: {refusal}"
        with self._budget.call() as deadline_s:
            try:
                given = check_arguments(offer.model, name, arguments)
                text = self._run(name, given, deadline_s)
            except SessionError:
                raise
            except (InputError, DeviceError, RefusedError) as error:
                own = self._drafts.folder_of(self._budget.calls)
                text = str(error).replace(f"{own.resolve()}/", "").replace(f"{own}/", "")
                text = in_words(text, self._bench.plan)
        # Names of files need not be UTF-8.
        whole = text.encode(errors="replace").decode()
        return cut_text(whole, self._bench.limits.characters, offer.rest)

    def _run(self, name: str, given: Any, deadline_s: float) -> str:
        bench = self._bench
        match name:
            case "search":
                return self._search(given, deadline_s)
            case "read_source":
                if given.path == "baseline":
                    text = read_source(self._bench.plan.spec.source).text
                elif given.path in ("template", "space"):
                    text = self._drafts.text_of(given.candidate, given.path)
                else:
                    return self._bench.sources.text_of(
                        given.path, given.first_line, given.last_line
                    )
                return lines_of(text, given.first_line, given.last_line)
            case "search_source":
                return bench.sources.search(given, deadline_s)
            case "read_notes":
                if given.name:
                    return read_note(given.name)
                return "\n".join(f"- {name}: {title}" for name, title in note_titles().items())
        timed = name in ("measure", "profile")
        choice = self._drafts.choice(given, self._budget.calls, timed=timed)
        match name:
            case "render":
                source = choice.draft.evaluator.render(choice.workload, choice.config).source
                return f"{choice}:\n{lines_of(source, given.first_line, given.last_line)}"
            case "compile":
                return trying.show_compilation(choice, bench.reporting, bench.info)
            case "verify":
                return trying.show_verdict(choice)
            case "measure":
                return trying.show_measurement(choice, bench.baseline_us, bench.info)
        return trying.show_profile(choice, bench.profiling, bench.info)

    def _search(self, given: SearchArguments, deadline_s: float) -> str:
        bench, left = self._bench, self._budget.configs
        most = min(given.configs, bench.limits.configs, left)
        if most == 0:
            return f"not run: the {bench.limits.round_configs} configs of this round are used up"
        draft = self._drafts.draft(given, self._budget.calls)
        workload = self._drafts.workload(given, timed=True)
        trials: list[Trial] = []
        try:
            pool = trying.search(
                draft, workload, given.searcher, bench.plan.config.seed, most, deadline_s, trials
            )
        finally:
            self._budget.configs -= len(trials)
        text = trying.show_search(draft, workload, pool, trials, bench.baseline_us, bench.info)
        if most < given.configs:
            text += f"\n[{given.configs} were asked for, {most} could be had]"
        return text
