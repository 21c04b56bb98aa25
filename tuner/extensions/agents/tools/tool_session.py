"""The tools of a session: their descriptions for the agent, and what each does in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.device.base import DeviceInfo
from tuner.extensions.agents.base import Toolbox
from tuner.extensions.agents.gate import RefusedError
from tuner.extensions.agents.history import FOLDER
from tuner.extensions.agents.tools import reading, trying
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
)
from tuner.extensions.agents.tools.reading import SourceFolders, cuda_headers
from tuner.extensions.agents.tools.trying import Drafts, in_words
from tuner.model.errors import DeviceError, InputError, SessionError
from tuner.model.kernel import Workload
from tuner.model.trial import Trial
from tuner.session.events import Tool
from tuner.session.session import Session
from tuner.source import read_source
from tuner.space.plan import Plan
from tuner.tuning.evaluator import Candidates, Evaluator
from tuner.tuning.profiling import Profiling

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
    notes = "; ".join(f"{name}: {title}" for name, title in reading.contents().items())
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
        known = self.session.baselines().get(workload)
        if known is not None:
            return known.measurement.median_us
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
                return trying.lines_of(text, given.first_line, given.last_line)
            case "search_source":
                return bench.sources.search(given, deadline_s)
            case "read_notes":
                return reading.note(given.name) if given.name else reading.list_notes()
        timed = name in ("measure", "profile")
        choice = self._drafts.choice(given, self._budget.calls, timed=timed)
        match name:
            case "render":
                return trying.show_source(choice, given.first_line, given.last_line)
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
