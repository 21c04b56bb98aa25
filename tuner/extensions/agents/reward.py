"""Rewards for a model that writes templates: how much faster its answer is than the baseline."""

from __future__ import annotations

import logging
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Self

from tuner.app.instruments import compiler_for
from tuner.app.plan import new_plan
from tuner.device.select import gpu_count, open_device
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.gate import RefusedError, read_draft, validate_candidate
from tuner.extensions.agents.replies import read_answer
from tuner.extensions.agents.tools.arguments import ToolLimits
from tuner.extensions.agents.tools.trying import DRAFT, CandidateDraft, search
from tuner.extensions.agents.training import reward_of
from tuner.model.config import Config
from tuner.model.errors import DeviceError, InputError, KernelError, ReplyError
from tuner.model.kernel import Workload
from tuner.model.settings import GivenSettings, RunSettings, settings_in
from tuner.model.statistics import geometric_mean
from tuner.model.trial import Status, Trial, fastest
from tuner.space.load import load_definition
from tuner.tuning.evaluator import Candidates, Evaluator

SPACES = {".yaml", ".yml"}
_LOG = logging.getLogger(__name__)
_MOST = ToolLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort(RunSettings):
    """How much is measured for one answer, and on what: the settings of a run, with fewer trials.

    `device` is as for `tune --device`; `auto` is the GPU, and never the CPU, whose times say
    nothing of a GPU's. `workloads` such as `T=1024,D=4096` stand for the tuned ones of the space.
    On each of them `trials` configs are tried, none after `time_s` seconds for all of them, and the
    best is then timed in `rounds` rounds in alternation with the baseline.
    """

    trials: int = 8
    time_s: float = 300.0
    rounds: int = 12

    @property
    def settings(self) -> GivenSettings:
        """What the plan of a run takes of it."""
        stated = {setting.name: getattr(self, setting.name) for setting in settings_in(RunSettings)}
        plain = RunSettings()
        own = {name: value for name, value in stated.items() if value != getattr(plain, name)}
        return {name: value for name, value in own.items() if name not in ("time_s", "rounds")}


@dataclass(frozen=True, slots=True)
class Score:
    """What an answer is worth: `speedup` is None where nothing ran, and `problem` says why."""

    reward: float
    speedup: float | None = None
    problem: str = ""


class Scorer:
    """Score answers for one kernel, one at a time; close it when done.

    The kernel's baseline is verified when it is opened. What an answer says runs only where every
    candidate runs: in processes that are confined and may die. Opening raises `InputError` for
    what is wrong with the user's files and `DeviceError` without a device.
    """

    def __init__(self, kernel: Path | str, effort: Effort | None = None) -> None:
        self._effort = effort or Effort()
        stack = ExitStack()
        # It must not hold the scorer, or it would live for ever.
        self._finalizer = weakref.finalize(self, stack.close)
        try:
            self._open(Path(kernel), stack)
        except BaseException:
            self.close()
            raise

    def _open(self, kernel: Path, stack: ExitStack) -> None:
        settings = self._effort.settings
        if kernel.suffix in SPACES:
            settings = {**settings, "space": kernel}
            kernel = load_definition(kernel).spec.source
        self._plan = new_plan(kernel, settings)
        name = "cuda" if self._effort.device == "auto" else self._effort.device
        if self._effort.device == "auto" and gpu_count() == 0:
            raise DeviceError(
                "no NVIDIA GPU was found to measure rewards on",
                remedy='device="host" measures on the CPU, whose times say nothing of a GPU\'s',
            )
        self._device = open_device(name, self._plan.spec, self._plan.config.operators)
        stack.callback(self._device.close)
        if self._device.info.recorded:
            raise DeviceError(
                "a recording answers only for the template that it was made with",
                remedy="use cuda or host",
            )
        if self._device.info.evaluator:
            raise DeviceError(
                f"a reward cannot rest on what {self._device.info.evaluator} says of itself",
                remedy="use cuda or host, where results are verified here",
            )
        compiler = compiler_for(self._plan.spec, self._device, None, stack)
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tune-")))
        self._numbers = count(1)
        self._candidates = Candidates(self._plan, compiler, self._device)
        self._baseline = self._candidates.evaluator(self._plan.candidate)
        for workload in (*self._plan.tuned, *self._plan.spec.edge_cases):
            self._baseline.verify_baseline(workload)

    @property
    def kernel(self) -> str:
        return self._plan.spec.name

    def score(self, template: str | AgentAnswer) -> Score:
        """Check, search and compare an answer, or a text that holds one in fenced blocks.

        Whatever is wrong with it is in the score. `KernelError`, `DeviceError` and `WorkerError`
        tell of the baseline, the device and its processes.
        """
        try:
            answer = read_answer(template) if isinstance(template, str) else template
            speedup = self._speedup(answer)
        except (ReplyError, RefusedError) as error:
            _LOG.info("refused: %s", error)
            return Score(reward_of(None), problem=str(error))
        return Score(reward_of(speedup), speedup)

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _speedup(self, answer: AgentAnswer) -> float:
        most = {"template": _MOST.template_characters, "space": _MOST.space_characters}
        for what, text in (("template", answer.template), ("space", answer.space)):
            if len(text) > most[what]:
                raise RefusedError(f"the {what} has {len(text)} characters, over {most[what]}")
        deadline_s = time.monotonic() + self._effort.time_s
        plan = read_draft(answer, self._plan, self._folder / str(next(self._numbers)), DRAFT)
        evaluator = self._candidates.of(plan)
        validate_candidate(plan, evaluator, verify=True, seed=self._effort.seed)
        best: dict[Workload, Config | None] = {}
        for workload in plan.tuned:
            draft, trials, effort = CandidateDraft(plan, evaluator), list[Trial](), self._effort
            try:
                search(draft, workload, "auto", effort.seed, effort.trials, deadline_s, trials)
            except InputError as error:
                # Some configs render or resolve to what no sample had shown.
                raise RefusedError(str(error)) from error
            best[workload] = next((trial.config for trial in fastest(trials)), None)
        if not any(best.values()):
            raise RefusedError("no config that was tried is correct on any workload")
        return geometric_mean(
            1.0 if config is None else self._compare(evaluator, workload, config)
            for workload, config in best.items()
        )

    def _compare(self, evaluator: Evaluator, workload: Workload, config: Config) -> float:
        """Verify in full, time in alternation with the baseline, and verify once more."""
        trial = evaluator.finish(evaluator.start(workload, config), stage="finals")
        if trial.status is not Status.CORRECT:
            raise RefusedError(f"{trial.status} with {config} on {workload}: {trial.reason}")
        programs = [self._baseline.baseline_program(workload), evaluator.program(workload, config)]
        try:
            compared = self._device.compare(programs, rounds=self._effort.rounds)
        except DeviceError as error:
            self._baseline.verify_baseline(workload)  # raises where the device is to blame
            raise RefusedError(str(error)) from error
        if compared.faults and compared.faults[0]:
            alone = self._device.compare(programs[:1], rounds=self._effort.rounds).faults
            told = f"the baseline is wrong on {workload} once it has been timed"
            if alone and alone[0]:
                raise KernelError(f"{told}: {alone[0]}", path=self._plan.spec.source)
            raise RefusedError(f"{told} beside it, and right alone: {compared.faults[0]}")
        if compared.faults and compared.faults[1]:
            raise RefusedError(f"wrong once it has been timed, on {workload}: {compared.faults[1]}")
        return median(baseline_us / own_us for baseline_us, own_us in compared.times_us)


def reward(kernel: Path | str, template: str | AgentAnswer, effort: Effort | None = None) -> float:
    """Return the logarithm of the mean speedup that a template gives a kernel over its baseline.

    `kernel` is a `.cu` file or its search space, `template` a reply with a template and a search
    space in fenced blocks, or an `AgentAnswer`. `export.scale` says what a refused or a slow one
    gets. A bad template never raises; see `Scorer`, which costs less for many answers, for what
    does.
    """
    with Scorer(kernel, effort) as scorer:
        return scorer.score(template).reward


class GrpoReward:
    """A reward function for TRL's `GRPOTrainer`, for one kernel; close it when done.

    Equal answers are measured once. For rows whose column `kernel` names another kernel it gives
    None, so that several of these serve a data set of several kernels.
    """

    def __init__(self, kernel: Path | str, effort: Effort | None = None) -> None:
        self._scorer = Scorer(kernel, effort)
        self.kernel = self._scorer.kernel
        # What TRL calls it in its logs.
        self.__name__ = f"reward_of_{self.kernel}"
        self._known: dict[str, float] = {}

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Score every completion, a text or a list of messages."""
        kernels = columns.get("kernel") or [self.kernel] * len(completions)
        rewards: list[float | None] = []
        for completion, kernel in zip(completions, kernels, strict=True):
            if kernel != self.kernel:
                rewards.append(None)
                continue
            text = completion
            if not isinstance(text, str):
                said = [message for message in text if message["role"] == "assistant"]
                text = said[-1].get("content") or "" if said else ""
            if text not in self._known:
                self._known[text] = self._scorer.score(text).reward
            rewards.append(self._known[text])
        return rewards

    def close(self) -> None:
        self._scorer.close()
