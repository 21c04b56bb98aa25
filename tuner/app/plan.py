"""From the settings that somebody gives to the plan of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import plugins
from tuner.app.locate import require_kernel, require_space, space_of
from tuner.app.trust import MayRun, nobody_asked
from tuner.model.errors import InputError, KernelError
from tuner.model.languages import OPENCL
from tuner.model.run_config import RunConfig
from tuner.model.settings import (
    AUTO,
    CLOSE_COMPARISON_ROUNDS,
    COMMAND,
    DEFAULT_ROUNDS,
    ENOUGH,
    FILES,
    GREEDY,
    LITERAL,
    MCTS,
    MCTS_ROUNDS,
    OPENAI,
    SEARCHERS,
    RunSettings,
)
from tuner.model.surroundings import ALONE
from tuner.process.files import read_text

if TYPE_CHECKING:
    from tuner.model.cluster import ClusterSettings
    from tuner.model.kernel import KernelSpec
    from tuner.space.load import Definition
    from tuner.space.plan import Plan

# What a draft is widened by at most: each round doubles a range.
LITERAL_ROUNDS = 2
# the least and the most of settings that are whole numbers
_MOST = 2**63 - 1
_WHOLE = {
    "trials": (1, _MOST),
    "rounds": (0, _MOST),
    "max_tokens": (1, _MOST),
    "max_variants": (1, _MOST),
    "seed": (0, 2**32 - 1),
}
_SHARES = {
    "enough": "0.001 looks on for gains of 0.1 %",
    "variants_within": "0.02 serves a workload up to 2 % slower than its best",
}
OWNERS = {OPENAI: ("model", "max_tokens", "max_cost", "prices"), FILES: ("exchange",)}
_OPTIONS = {
    "time_s": "time",
    "workloads": "workload",
    "operators": "operator",
    "prune": "no-prune",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How this run of a session goes: nothing that it finds depends on it.

    `session` is the folder of a new session, one under `sessions/` otherwise. `copy_session` keeps
    a copy of it in the store, which then must be a PostgreSQL server. `wait_s` is how long
    to wait for an answer of the agent `files`, None for ever. `command` holds the words that
    started the run, `resume_command` those before `--resume` that would go on with it. `change`
    has its say on a plan before anything is opened, and `say` is told what a user should know.
    `may_run` is asked before a stranger's Python runs. `kernel`, `instantiate` and `include` are
    for the draft of a search space, where there is none yet. `cluster` measures and compiles in
    the place of this machine.
    """

    session: Path | None = None
    jobs: int | None = None
    store: str | None = None
    copy_session: bool = False
    wait_s: float | None = None
    command: tuple[str, ...] = ()
    resume_command: tuple[str, ...] = ()
    change: Callable[[Plan], Plan] | None = None
    say: Callable[[str], None] = logging.getLogger("tuner").warning
    may_run: MayRun = nobody_asked
    kernel: str | None = None
    instantiate: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    cluster: ClusterSettings | None = None


def new_plan(kernel: Path, settings: RunSettings, *, drafted: bool = False) -> Plan:
    """Find and read all that the settings name; raise `InputError` for what is wrong.

    `drafted` says that the search space was just drafted.
    """
    require_kernel(kernel)
    space, template = space_of(kernel, settings.get("space")), settings.get("template")
    definition = read_space(space, None if template is None else Path(template))
    require_same(kernel, definition.spec)
    spec = definition.spec
    values: dict[str, Any] = {"workloads": spec.workloads, "operators": _operators(spec, {})}
    values |= agent_settings(settings, drafted=drafted) | values_of(settings, spec)
    if not values["workloads"]:
        values["workloads"] = spec.workloads
    if values.get("enough", ENOUGH) < ENOUGH:
        values["comparison_rounds"] = CLOSE_COMPARISON_ROUNDS
    require_searcher(settings.get("searcher", AUTO))
    config = RunConfig(**values | {"space": spec.path, "template": spec.template})
    return plan_of(definition, config)


def read_space(space: Path, template: Path | None = None) -> Definition:
    """Read a search space that is no draft any more; `template` takes the place of its own."""
    from tuner.space.blanks import require_filled
    from tuner.space.load import load_definition

    require_space(space)
    require_filled(space)
    definition = load_definition(space)
    if template is None and not definition.spec.template.exists():
        from tuner.app.drafters import drafter

        drafter().restore_template(space)
    require_filled(definition.spec.reference)
    if template is None:
        return definition
    return replace(definition, spec=replace(definition.spec, template=template.resolve()))


def read_chosen(
    space: Path | str, operators: Mapping[str, str] | None
) -> tuple[Definition, Mapping[str, str]]:
    """Read a search space for one choice of its operators; return the choice completed, too."""
    from tuner.space.choices import chosen_operators

    definition = read_space(Path(space))
    chosen = chosen_operators(definition.spec, operators or {})
    return definition.chosen(chosen), chosen


def check_signature(spec: KernelSpec) -> None:
    """Raise `KernelError` unless the declared arguments can be those of the baseline's kernels."""
    if spec.is_callable:
        from tuner.space.callables import check_function

        check_function(spec)
        return
    if spec.language is OPENCL:
        require_portable(spec)  # the compiler and the launch tell the rest
    if not spec.language.is_read:
        return
    from tuner.source import check_arguments, read_source

    source = read_source(spec.source)
    for launch in spec.baseline:
        taken = replace(spec, arguments=spec.taken(launch))
        check_arguments(taken, source.kernel(launch.kernel), len(launch.maps))


def require_portable(spec: KernelSpec) -> None:
    """Raise `KernelError` for what a search space asks for and only CUDA has."""
    if spec.surroundings:
        raise KernelError(
            "`surroundings` need a GPU of NVIDIA's",
            path=spec.path,
            remedy=f"leave them out: a kernel in {spec.language.name} is measured alone",
        )
    for launch in (*spec.baseline, *spec.launch):
        for name, asked in (
            ("cluster", launch.cluster),
            ("pdl", launch.pdl),
            ("maps", launch.maps),
        ):
            if asked:
                raise KernelError(
                    f"the launch of {launch.kernel} has `{name}`, which {spec.language.name} lacks",
                    path=spec.path,
                    remedy="leave it out",
                )


def require_searcher(name: str) -> None:
    """Raise `InputError` for a searcher or a strategy that there isn't, before any measurement."""
    family, colon, strategy = name.partition(":")
    families = plugins.names_of(plugins.SEARCHERS)
    if colon and family in families:
        from tuner.search.factory import strategies_of

        strategies_of(family).require(strategy)
    elif name not in SEARCHERS:
        known = ", ".join((*SEARCHERS, *(f"{one}:<strategy>" for one in families)))
        raise InputError(f"{name!r} is no searcher", remedy=known)


def new_session_folder(kernel: str, now: datetime) -> Path:
    """Name a folder under `sessions/` that isn't there yet."""
    name = f"{kernel}-{now:%Y%m%d-%H%M%S}"
    folder, number = Path("sessions") / name, 1
    while folder.exists():
        number += 1
        folder = Path("sessions") / f"{name}-{number}"
    return folder


def option_of(setting: str) -> str:
    """Name the option of the command line that gives a setting."""
    return f"--{_OPTIONS.get(setting, setting).replace('_', '-')}"


def require_numbers(settings: RunSettings) -> None:
    """Raise `InputError` for a number that no run can have."""
    for name, (least, most) in _WHOLE.items():
        value = settings.get(name)
        if value is not None and not (type(value) is int and least <= value <= most):
            message = f"`{name}` is {value!r}: it is a whole number from {least} to {most}"
            raise InputError(message, remedy=f"give another one, or leave {option_of(name)} out")
    for name, what in (("time_s", "a number of seconds"), ("max_cost", "an amount of money")):
        value = settings.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < inf):
            message = f"`{name}` is {value!r}: it is {what} from 0 on"
            raise InputError(message, remedy=f"give another one, or leave {option_of(name)} out")
    for name, remedy in _SHARES.items():
        value = settings.get(name, 0.0)
        if not isinstance(value, int | float) or not 0.0 <= value < 1.0:
            message = f"`{name}` is {value!r}: it is a share of the best time, from 0 to below 1"
            raise InputError(message, remedy=remedy)


def values_of(settings: RunSettings, spec: KernelSpec) -> dict[str, Any]:
    """Read settings as a `RunConfig` has them; raise `InputError` for what the kernel lacks."""
    from tuner.space.load import workload_from_text

    require_numbers(settings)
    values: dict[str, Any] = {**settings}
    if "workloads" in settings:
        given = settings["workloads"]
        texts = (given,) if isinstance(given, str) else given
        values["workloads"] = tuple(dict.fromkeys(workload_from_text(spec, text) for text in texts))
    if "operators" in settings:
        values["operators"] = _operators(spec, settings["operators"])
    if "gpus" in settings and not settings["gpus"].strip():
        raise InputError("no GPU is named", remedy="--gpus takes all, or numbers such as 0,1")
    if "peers" in settings:
        values["peers"] = _peers(spec, settings)
    if "model" in settings:
        values["model"] = settings["model"] or ""
    for name in ("space", "template", "prices", "exchange"):
        if values.get(name) is not None:
            values[name] = Path(values[name]).resolve()
    if "sources" in settings:
        values["sources"] = tuple(Path(folder).resolve() for folder in settings["sources"])
    # What is left open is decided by `agent_settings`, with the others.
    open_ = (name for name in ("rounds", "policy") if values.get(name, 0) is None)
    for name in (*open_, *(["agent"] if values.get("agent") == AUTO else [])):
        del values[name]
    return values


def _operators(spec: KernelSpec, given: Mapping[str, str]) -> Mapping[str, str]:
    from tuner.space.choices import chosen_operators

    return dict(chosen_operators(spec, given))


def _peers(spec: KernelSpec, settings: RunSettings) -> tuple[str, ...]:
    from tuner.device.reference import chosen_peers, require_gpu

    asked = settings["peers"]
    if not asked:
        return ()
    require_gpu(settings.get("device", AUTO))
    return chosen_peers(spec.reference, () if asked is True else asked)


def agent_settings(settings: RunSettings, *, drafted: bool) -> dict[str, Any]:
    """Say who writes further templates, how often and on what; raise where that can't be.

    `drafted` says that the search space was just drafted.
    """
    require_numbers(settings)
    # A key in the environment alone sends nothing anywhere: a model has to be named.
    agent, model, exchange = (settings.get(name) for name in ("agent", "model", "exchange"))
    if agent in (None, AUTO):
        agent = OPENAI if model else FILES if exchange else LITERAL
    if agent == OPENAI and not model:
        raise InputError("--agent openai needs the name of a model: --model NAME")
    if agent == FILES and exchange is None:
        raise InputError("--agent files needs a folder to write to: --exchange DIR")
    for owner, names in OWNERS.items():
        given = [option_of(name) for name in names if settings.get(name) is not None]
        if given and agent != owner:
            raise InputError(f"{', '.join(given)} is for --agent {owner}, not for {agent}")
    rounds = settings.get("rounds")
    if rounds is None:
        literal = LITERAL_ROUNDS if drafted else 0
        rounds = literal if agent == LITERAL else DEFAULT_ROUNDS
    policy = settings.get("policy") or (GREEDY if rounds < MCTS_ROUNDS else MCTS)
    return {"agent": agent, "rounds": rounds, "policy": policy}


def _require_functions(spec: KernelSpec) -> None:
    """Raise `KernelError` for a neighbour that the reference file lacks."""
    links = [link for around in spec.surroundings for link in around.links]
    everything = [one for link in links for one in (*link.before, *link.after)]
    wanted = [one for one in everything if one.kind == "function"]
    if not wanted:
        return
    from tuner.device.reference import load_functions

    known = load_functions(spec.reference, "neighbours")
    for one in wanted:
        if one.function not in known:
            raise KernelError(
                f"{spec.reference.name} has no neighbour named {one.function!r}",
                path=spec.path,
                line=one.line,
                remedy=f"its `neighbours`: {', '.join(known) or 'none'}",
            )


def plan_of(definition: Definition, config: RunConfig) -> Plan:
    """Make the plan of a config: choices, neighbours, valid configs and template, all checked."""
    from tuner.space.callables import load_template
    from tuner.space.plan import Plan
    from tuner.space.surroundings import check_sizes, chosen

    definition = definition.chosen(config.operators)
    # A CPU's times say nothing, with neighbours or without, and an evaluator has none.
    alone = config.device == "host" or config.device.startswith(COMMAND)
    spec = chosen(definition.spec, config.surroundings)
    if alone:
        spec = chosen(spec, ALONE)
    _require_functions(spec)
    for workload in config.workloads:
        check_sizes(spec, workload)
    definition = replace(definition, spec=spec)
    space = definition.space
    template = load_template(spec, space)
    template.check(space, definition.spec)
    check_signature(definition.spec)
    if space.default is not None:
        # Some mistakes show only in what comes out: found here, they cost no measurement.
        for workload in config.workloads:
            names = {**workload.values, **config.operators, **space.default}
            template.render(names, space.derived)
    if config.keep_bits:
        from tuner.tuning.keep_bits import require_bits

        require_bits(spec, space)
    return Plan(config, definition.spec, space if config.prune else space.unpruned, template)


def require_same(kernel: Path, spec: KernelSpec) -> None:
    """Raise `KernelError` where a search space is for another kernel."""
    if not spec.source.samefile(kernel) and not _is_extracted(spec.source, kernel):
        raise KernelError(
            f"the search space is for {spec.source}, not for {kernel}",
            path=spec.path,
            remedy="name the right one with --space",
        )


def _is_extracted(source: Path, kernel: Path) -> bool:
    # `tune init` says in the first line from which file
    first = read_text(source).partition("\n\n")[0]
    words = first.replace("//", " ").split()
    return "extracted" in words and any(word.strip(",") == kernel.name for word in words)
