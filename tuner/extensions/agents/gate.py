"""The gate of a new candidate: what an agent wrote is checked before anything is searched.

Nothing is repaired here. What is wrong comes back as one text with the lines of the template or
the space, and nothing of a refused answer is ever timed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.device.base import BITS_DIFFER, Outcome, Program
from tuner.extensions.agents.base import AgentAnswer
from tuner.extensions.agents.sections import merge_sections
from tuner.model.config import Config
from tuner.model.errors import (
    InputError,
    KernelError,
    OutOfMemory,
    SpaceError,
    TemplateError,
    TunerError,
)
from tuner.model.kernel import Workload
from tuner.model.trial import Status, Trial
from tuner.process.files import atomic_write, read_text
from tuner.search.pool import Pool, valid_configs
from tuner.source import check_arguments, parse_source
from tuner.space.callables import append_call
from tuner.space.load import load_definition
from tuner.space.plan import Plan
from tuner.space.template import Template, put_together
from tuner.space.yaml import parse, read
from tuner.tuning.evaluator import Evaluator, Pending
from tuner.tuning.run import no_valid_config
from tuner.tuning.verification import LARGEST_HOST_BYTES, judge_machine_code

SPACE = "space.yaml"
RANDOM_CONFIGS = 4
# Each is verified with every kind of input, twice, on several workloads.
VERIFIED_CONFIGS = 3
# Of rows that are to be invariant, besides as many as a workload has.
FEW_ROWS = (1, 8, 33)
# A config on its way, and what came of compiling it.
Made = tuple[Pending, Program | Outcome]
# Problems told at once: an agent that reads more mends fewer.
MOST_PROBLEMS = 4
# Enumerating takes up to 3 s for a million combinations, and no run may hang on an answer.
MOST_COMBINATIONS = 10_000_000
# Lines of a template that are shown with one compiler's message, each with those around it.
MOST_PLACES = 3
_CONTEXT_LINES = 2
# A list of values may be a line of 20 000 characters.
_LINE_CHARS = 200
# A GPU verifies all edge cases of a usual size at once, which the finals do anyway.
LARGEST_EDGE_BYTES = 1 << 30


class RefusedError(TunerError):
    """Say why an answer cannot become a candidate, in words for its author."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Verified:
    """What is wrong with some configs, and the workloads on which one is right."""

    problems: Sequence[str]
    right: frozenset[Workload]


def read_draft(answer: AgentAnswer, plan: Plan, folder: Path, name: str) -> Plan:
    """Write an answer to `folder` and read it as the candidate `name` of `plan`'s kernel.

    Raises `RefusedError` where the space or the template has a mistake, or where either changes
    what is the user's: the signature, the workloads, the tolerances, the reference, the limits.
    """
    for what, text in (("template", answer.template), ("space", answer.space)):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RefusedError(f"the {what} has half a character of UTF-16")
    folder.mkdir(parents=True, exist_ok=True)
    template_path = folder / f"template{plan.spec.language.suffix}.j2"
    space_path = folder / SPACE
    atomic_write(template_path, answer.template)
    atomic_write(space_path, answer.space)
    try:
        merged = merge_sections(
            read(plan.spec.path), parse(answer.space, space_path), space_path, template_path.name
        )
        atomic_write(space_path, merged)
        asked = plan.config
        definition = load_definition(space_path, asked.operators, invariant=asked.invariant)
        whole = put_together(answer.template, template_path, definition.spec.include_dirs)
        atomic_write(template_path, whole.text)
        text = whole.text
        if definition.spec.is_callable:
            text = append_call(text, definition.spec, definition.space.parameters)
        template = Template.from_text(text, template_path)
        template.check(definition.space, definition.spec)
        if definition.space.default is None:
            raise SpaceError("`default` is missing", path=space_path, line=1)
        if (size := definition.space.size) > MOST_COMBINATIONS:
            raise SpaceError(
                f"the parameters have {size} combinations, over {MOST_COMBINATIONS}",
                path=space_path,
                line=definition.space.parameters[0].line,
                remedy="leave out values: a search tries a few hundred configs, and constraints "
                "are looked at one combination after the other",
            )
        space = definition.space if plan.config.prune else definition.space.unpruned
        return replace(plan, spec=definition.spec, space=space, template=template, candidate=name)
    except InputError as error:
        raise RefusedError(_describe_error(error, folder)) from error


def require_same_scratch(plan: Plan, others: Iterable[Plan]) -> None:
    """Raise `RefusedError` where scratch has the name of another candidate's and is not the same.

    Programs of several candidates are compared in one memory, and exported together.
    """
    declared = {(a.name, o.candidate): a for o in others for a in o.spec.arguments if a.added}
    for argument in plan.spec.arguments:
        for (name, candidate), other in declared.items():
            as_before = (argument.dtype, argument.zeroed) == (other.dtype, other.zeroed)
            if argument.added and argument.name == name and not as_before:
                was = f"{other.dtype}{', zeroed' if other.zeroed else ''}"
                raise RefusedError(f"the scratch `{name}` is {was} in {candidate}: rename yours")


def require_as_wide(plan: Plan, evaluator: Evaluator, user: Plan) -> None:
    """Raise `RefusedError` where a candidate leaves out a size that the user's own space serves.

    What no config may run on is never verified: held-out and edge-case sizes are there for that.
    """
    for workload in (*user.spec.held_out, *user.spec.edge_cases):
        names = evaluator.names(workload)
        pool = valid_configs(plan.space.unpruned, names)
        if not len(pool) and len(valid_configs(user.space.unpruned, names)):
            error = no_valid_config(plan.spec, plan.space.unpruned, workload, pool)
            raise RefusedError(_describe_error(error, plan.template.path.parent)) from error


def try_default(plan: Plan, evaluator: Evaluator) -> Trial | None:
    """Verify a candidate's default config on ordinary inputs of one workload, and time it.

    That is the heaviest one that it is valid on. Raises `RefusedError` where it is wrong; None
    where it cannot be told, which is for the gate to say.
    """
    default = plan.space.default
    assert default is not None
    try:
        taking = (w for w in plan.tuned if not plan.space.violated(default, evaluator.names(w)))
        workload = max(taking, key=plan.spec.footprint_bytes, default=None)
        if workload is None:
            return None
        _require_same_arguments(plan, evaluator, workload, default)
        trial = evaluator.finish(evaluator.start(workload, default))
    except OutOfMemory:
        return None
    except InputError as error:
        raise RefusedError(_describe_error(error, plan.template.path.parent)) from error
    if trial.status in (Status.RESOURCE_LIMIT, Status.CONSTRAINT, Status.NOT_RECORDED):
        return None
    if trial.status is not Status.CORRECT:
        reason = evaluator.in_template(workload, default, trial.reason)
        _require_none(plan, [f"{trial.status} with {default} on {workload}: {reason}"])
    return trial


def validate_candidate(plan: Plan, evaluator: Evaluator, *, verify: bool, seed: int) -> None:
    """Try a drafted candidate's configs, and verify where `verify` says that the device runs any.

    Raises `RefusedError` with what is wrong.
    """
    configs = compile_candidate(plan, evaluator, seed)
    if verify:
        most = LARGEST_HOST_BYTES if evaluator.device.info.on_cpu else LARGEST_EDGE_BYTES
        verify_candidate(plan, evaluator, configs, workloads_to_verify(plan, most))


def compile_candidate(plan: Plan, evaluator: Evaluator, seed: int) -> list[Config]:
    """Try corner and random configs, the default first, which is what comes back.

    Raises `RefusedError` unless every one renders, takes the kernel's arguments and compiles.
    """
    folder = plan.template.path.parent
    try:
        pools = {w: valid_configs(plan.space, evaluator.names(w)) for w in plan.tuned}
        for workload, pool in pools.items():
            if not len(pool):
                raise no_valid_config(plan.spec, plan.space, workload, pool)
        configs = _sample(plan, pools, seed)
        for workload, config in configs:
            _require_same_arguments(plan, evaluator, workload, config)
        for workload in (*plan.held_out, *plan.spec.edge_cases):
            for config in dict.fromkeys(config for _, config in configs):
                if plan.space.violated(config, evaluator.names(workload)) is None:
                    evaluator.key(workload, config)
        pending = [evaluator.start(*pair) for pair in configs]
    except InputError as error:
        raise RefusedError(_describe_error(error, folder)) from error
    made = [(one, evaluator.ready(one)) for one in pending]
    _require_none(plan, [*_compile_errors(made), *_early_accesses(evaluator, made)])
    return [config for _, config in configs]


def workloads_to_verify(plan: Plan, most_bytes: int = LARGEST_HOST_BYTES) -> list[Workload]:
    """Choose the smallest tuned workload, the largest that a host runs, and edge cases."""
    smallest = min(plan.tuned, key=plan.spec.footprint_bytes)
    fitting = [w for w in plan.tuned if plan.spec.footprint_bytes(w) <= LARGEST_HOST_BYTES]
    largest = max(fitting, key=plan.spec.footprint_bytes, default=smallest)
    small = (w for w in plan.spec.edge_cases if plan.spec.footprint_bytes(w) <= most_bytes)
    return list(dict.fromkeys((smallest, largest, *small)))


def verify_candidate(
    plan: Plan, evaluator: Evaluator, configs: Sequence[Config], workloads: Sequence[Workload]
) -> Verified:
    """Verify the first few configs with all kinds of input; return what is wrong with some.

    Raises `RefusedError` where the first, the default, is wrong or right nowhere: others a run
    drops, in its search or in the end.
    """
    left, right = list(dict.fromkeys(configs[:VERIFIED_CONFIGS])), set[tuple[Config, Workload]]()
    default, *_ = left
    problems = [said for w in workloads for said in _wrong(evaluator, left, right, w)]
    is_right = default in left and any(config == default for config, _ in right)
    _require_none(plan, () if is_right else problems)
    return Verified(problems, frozenset(workload for _, workload in right))


def find_varying_rows(
    plan: Plan, evaluator: Evaluator, configs: Sequence[Config], workloads: Sequence[Workload]
) -> list[str]:
    """Run the first few configs on the same rows at several sizes; return what varies with some.

    Sizes that nobody listed are tried where the baseline is right, as in a run. Raises
    `RefusedError` where the first config, the default, varies.
    """
    spec, problems, default = plan.spec, dict[Config, str](), configs[0]
    if (rows := spec.invariant) is None:
        return []
    most = {spec.problem_of(w): w for w in sorted(workloads, key=lambda w: w.values[rows.axis])}
    few = (rows.sized(w, n) for w in most.values() for n in FEW_ROWS if n < w.values[rows.axis])
    sizes = dict.fromkeys((*filter(evaluator.takes, few), *workloads))
    for config in dict.fromkeys(configs[:VERIFIED_CONFIGS]):
        seen: dict[Workload, tuple[Workload, str]] = {}
        for size in sizes:
            made = None
            with suppress(InputError):  # what does not render there serves nothing there
                made = evaluator.ready(evaluator.start(size, config))
            if config in problems or not isinstance(made, Program):
                continue
            outcome = evaluator.device.bits(made)
            bits = outcome.correctness.bits if outcome.correctness else ""
            first, known = seen.setdefault(spec.problem_of(size), (size, bits))
            if outcome.status is not Status.CORRECT:
                problems[config] = f"{outcome.status} with {config} on {size}: {outcome.reason}"
            elif known != bits:
                reason = f"a row {BITS_DIFFER} on {size} than on {first}"
                problems[config] = f"{Status.NOT_INVARIANT} with {config} on {size}: {reason}"
    _require_none(plan, [problems[default]] if default in problems else ())
    return [*problems.values()]


def _require_none(plan: Plan, problems: Sequence[str]) -> None:
    folder, told = plan.template.path.parent, _without_repeats(problems)[:MOST_PROBLEMS]
    if told:
        quoted = (quote_places(_without_folder(one, folder), plan.template) for one in told)
        raise RefusedError("\n\n".join(quoted))


def _without_repeats(problems: Sequence[str]) -> list[str]:
    """Tell what is wrong with several configs once, and each line of it once."""
    concerned: dict[str, list[str]] = {}
    for problem in problems:
        config, _, reason = problem.partition(": ")
        concerned.setdefault("\n".join(dict.fromkeys(reason.splitlines())), []).append(config)
    others = {reason: len({*configs}) - 1 for reason, configs in concerned.items()}
    return [
        f"{configs[0]}{f', and {others[reason]} like it' * (others[reason] > 0)}: {reason}"
        for reason, configs in concerned.items()
    ]


def _sample(
    plan: Plan, pools: Mapping[Workload, Pool], seed: int
) -> tuple[tuple[Workload, Config], ...]:
    """Choose the default, the first and last value of every parameter, and a few at random."""
    chance = random.Random(seed)  # noqa: S311 - a choice of samples, nothing secret
    picks: dict[tuple[Workload, Config], None] = {}
    default = plan.space.default
    for workload, pool in pools.items():
        if default is not None and default in pool:
            picks[workload, default] = None
            break
    else:
        names = ", ".join(str(workload) for workload in pools)
        raise SpaceError(
            "the default config breaks a constraint, or a condition of `prune`, on every tuned "
            "workload",
            path=plan.spec.path,
            remedy=f"both must allow it on one of {names}",
        )
    workloads = list(pools)
    last = pools[workloads[-1]]
    for column in range(len(last.parameters)):
        values = last.encoded[:, column]
        for index in (values.argmin(), values.argmax()):
            picks[workloads[-1], last[int(index)]] = None
    for number in range(RANDOM_CONFIGS):
        workload = workloads[number % len(workloads)]
        picks[workload, pools[workload][chance.randrange(len(pools[workload]))]] = None
    return tuple(picks)


def _require_same_arguments(
    plan: Plan, evaluator: Evaluator, workload: Workload, config: Config
) -> None:
    if mismatch := find_mismatch(plan, evaluator, workload, config):
        raise TemplateError(
            mismatch.message,
            path=plan.spec.template,
            line=1,
            remedy="take the arguments as the user declares them, in their order and "
            "with their types: they may not change",
        ) from mismatch


def find_mismatch(
    plan: Plan, evaluator: Evaluator, workload: Workload, config: Config
) -> KernelError | None:
    """Find where a kernel that is launched does not take the user's arguments."""
    spec, names = plan.spec, evaluator.names(workload)
    unread = spec.is_callable or not spec.language.is_read
    if unread or plan.space.violated(config, names) is not None:
        return None  # it need not render
    source = parse_source(evaluator.render(workload, config).source, plan.template.path)
    for launch in spec.candidate_launches({**names, **config}):
        try:
            taken = replace(spec, arguments=spec.taken(launch))
            check_arguments(taken, source.kernel(launch.kernel), len(launch.maps))
        except KernelError as error:
            return error
    return None


def _compile_errors(made: Sequence[Made]) -> Iterator[str]:
    """Yield one text for each different error; a config over a limit is the search's to reject."""
    failed = [(pending, outcome) for pending, outcome in made if isinstance(outcome, Outcome)]
    over = [outcome for _, outcome in failed if outcome.status is Status.RESOURCE_LIMIT]
    reported = set()
    for pending, outcome in failed:
        if outcome.status is not Status.RESOURCE_LIMIT and outcome.reason not in reported:
            reported.add(outcome.reason)
            yield f"{outcome.status} with {pending.config} on {pending.workload}: {outcome.reason}"
    if len(over) == len(made):
        yield f"every config tried is over a limit: {over[0].reason}"


def _early_accesses(evaluator: Evaluator, made: Sequence[Made]) -> Iterator[str]:
    """Yield what the first few configs touch before their wait, for which finals refuse them."""
    if "machine_code" not in evaluator.device.capabilities:
        return
    for pending, program in made[:VERIFIED_CONFIGS]:
        if isinstance(program, Program):
            read = judge_machine_code(program, evaluator.spec.constants)
            if read is not None and read.status is Status.INCORRECT:
                reason = evaluator.in_template(pending.workload, pending.config, read.reason)
                yield f"{read.status} with {pending.config} on {pending.workload}: {reason}"
                return


def _wrong(
    evaluator: Evaluator,
    left: list[Config],
    right: set[tuple[Config, Workload]],
    workload: Workload,
) -> Iterator[str]:
    """Verify on one workload: note what is `right`, drop what is wrong from what is `left`."""
    pending = {config: evaluator.start(workload, config) for config in left}
    ready = {config: evaluator.ready(begun) for config, begun in pending.items()}
    programs = {config: made for config, made in ready.items() if isinstance(made, Program)}
    outcomes = {config: made for config, made in ready.items() if isinstance(made, Outcome)}
    if programs:
        with suppress(OutOfMemory):  # which says nothing of the candidate
            # On the same inputs, which may take longer to draw than all of them to run.
            verified = evaluator.device.verify_together([*programs.values()])
            outcomes |= zip(programs, verified, strict=True)
    for config, outcome in outcomes.items():
        if outcome.status is Status.CORRECT:
            right.add((config, workload))
        if outcome.status in (Status.CORRECT, Status.CONSTRAINT, Status.RESOURCE_LIMIT):
            continue
        left.remove(config)
        reason = evaluator.in_template(workload, config, outcome.reason)
        yield f"{outcome.status} with {config} on {workload}: {reason}"


def _describe_error(error: TunerError, folder: Path) -> str:
    text, path = _without_folder(str(error), folder), error.path
    if path is None or error.line is None or not path.resolve().is_relative_to(folder.resolve()):
        return text
    lines = read_text(path).split("\n") if path.is_file() else []
    return "\n".join([text, *_around(lines, error.line)])


def quote_places(text: str, template: Template) -> str:
    """Put the lines of a template behind a text that names them."""
    places = re.findall(rf"(?:^|\s){re.escape(template.path.name)}:(\d+):", text)
    numbers = list(dict.fromkeys(map(int, places)))[:MOST_PLACES]
    lines = template.text.split("\n")
    shown = dict.fromkeys(row for number in numbers for row in _around(lines, number))
    return "\n".join([text, *shown])


def _around(lines: Sequence[str], number: int) -> Iterator[str]:
    first = max(0, number - 1 - _CONTEXT_LINES)
    for place, line in enumerate(lines[first : number + _CONTEXT_LINES], first + 1):
        yield f"{place:5} | {line[:_LINE_CHARS]}"


def _without_folder(text: str, folder: Path) -> str:
    # The longer one first: a session may be named by a relative path, which is a part of it.
    return text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
