"""From the settings that somebody gives to the plan of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.app.locate import require_kernel, require_space, space_of
from tuner.app.trust import MayRun, say_no
from tuner.model.errors import InputError, KernelError
from tuner.model.languages import OPENCL
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
    CallSettings,
    GivenSettings,
    RunConfig,
    option_of,
    read_settings,
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
OWNERS = {OPENAI: ("model", "max_tokens", "max_cost", "prices"), FILES: ("exchange",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CallSettings):
    """How this run of a session goes: nothing that it finds depends on it.

    `command` holds the words that started the run, `resume_command` those before `--resume` that
    would go on with it. `change` has its say on a plan before anything is opened, and `say` is told
    what a user should know. `may_run` is asked before a stranger's Python runs. `cluster` measures
    and compiles in the place of this machine.
    """

    session: Path | None = None
    instantiate: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    resume_command: tuple[str, ...] = ()
    change: Callable[[Plan], Plan] | None = None
    say: Callable[[str], None] = logging.getLogger("tuner").warning
    may_run: MayRun = say_no
    cluster: ClusterSettings | None = None

    @property
    def answer_within_s(self) -> float | None:
        return 0.0 if self.step else self.wait_s


def new_plan(kernel: Path, given: GivenSettings, *, drafted: bool = False) -> Plan:
    """Find and read all that settings name; raise `InputError` for what is wrong.

    `given` are settings by the names of `RunSettings`; `drafted` says that the search space was
    just drafted.
    """
    from tuner.search.factory import require_searcher
    from tuner.space.choices import chosen_operators

    require_kernel(kernel)
    asked = read_settings(given)
    space = space_of(kernel, asked.space)
    definition = read_space(space, None if asked.template is None else Path(asked.template))
    spec = definition.spec
    require_same(kernel, spec)
    require_searcher(asked.searcher)
    values: dict[str, Any] = {"operators": dict(chosen_operators(spec, {}))}
    values |= agent_settings(given, drafted=drafted) | values_of(given, spec)
    if not values.get("workloads"):
        values["workloads"] = spec.workloads
    values["weight"] = spec.weight.text if spec.weight else "1"
    if asked.enough < ENOUGH:
        values["comparison_rounds"] = CLOSE_COMPARISON_ROUNDS
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
        # What only CUDA has; the compiler and the launch tell the rest.
        if spec.surroundings:
            raise KernelError(
                "`surroundings` need a GPU of NVIDIA's",
                path=spec.path,
                remedy=f"leave them out: a kernel in {spec.language.name} is measured alone",
            )
        for launch in (*spec.baseline, *spec.launch):
            for name in ("cluster", "pdl", "maps"):
                if getattr(launch, name):
                    raise KernelError(
                        f"the launch of {launch.kernel} has `{name}`, which {spec.language.name} "
                        "lacks",
                        path=spec.path,
                        remedy="leave it out",
                    )
    if not spec.language.is_read:
        return
    from tuner.source import check_arguments, read_source

    source = read_source(spec.source)
    for launch in spec.baseline:
        taken = replace(spec, arguments=spec.taken(launch))
        check_arguments(taken, source.kernel(launch.kernel), len(launch.maps))


def new_session_folder(kernel: str, now: datetime) -> Path:
    """Name a folder under `sessions/` that isn't there yet."""
    name = Path("sessions") / f"{kernel}-{now:%Y%m%d-%H%M%S}"
    numbered = (name.with_name(f"{name.name}-{number}") for number in count(2))
    return next(folder for folder in chain([name], numbered) if not folder.exists())


def values_of(given: GivenSettings, spec: KernelSpec) -> dict[str, Any]:
    """Read settings as a `RunConfig` has them; raise `InputError` for what the kernel lacks."""
    from tuner.space.choices import chosen_operators
    from tuner.space.load import workload_from_text

    asked = read_settings(given)
    values = dict(given)
    if "workloads" in given:
        texts = [asked.workloads] if isinstance(asked.workloads, str) else asked.workloads
        values["workloads"] = tuple(dict.fromkeys(workload_from_text(spec, text) for text in texts))
    if "operators" in given:
        values["operators"] = dict(chosen_operators(spec, asked.operators))
    if "gpus" in given and not asked.gpus.strip():
        raise InputError("no GPU is named", remedy="--gpus takes all, or numbers such as 0,1")
    if asked.peers:
        from tuner.device.problem_peers import own_peers
        from tuner.device.reference import chosen_peers, require_gpu

        require_gpu(asked.device)
        named = () if asked.peers is True else asked.peers
        values["peers"] = chosen_peers(spec.reference, named, own_peers(spec))
    elif "peers" in given:
        values["peers"] = ()
    if "model" in given:
        values["model"] = asked.model or ""
    for name in ("space", "template", "prices", "exchange"):
        if values.get(name) is not None:
            values[name] = Path(values[name]).resolve()
    if "sources" in given:
        values["sources"] = tuple(Path(folder).resolve() for folder in asked.sources)
    # What is left open is decided by `agent_settings`, with the others.
    open_ = {name for name in ("rounds", "policy") if values.get(name, 0) is None}
    open_ |= {"agent"} if values.get("agent") == AUTO else set()
    return {name: value for name, value in values.items() if name not in open_}


def agent_settings(given: GivenSettings, *, drafted: bool) -> dict[str, Any]:
    """Say who writes further templates, how often and on what; raise where that can't be.

    `drafted` says that the search space was just drafted.
    """
    asked = read_settings(given)
    # A key in the environment alone sends nothing anywhere: a model has to be named.
    agent, rounds = asked.agent, asked.rounds
    if agent == AUTO:
        agent = OPENAI if asked.model else FILES if asked.exchange else LITERAL
    if agent == OPENAI and not asked.model:
        raise InputError("--agent openai needs the name of a model: --model NAME")
    if agent == FILES and asked.exchange is None:
        raise InputError("--agent files needs a folder to write to: --exchange DIR")
    for owner, names in OWNERS.items():
        owned = [option_of(name) for name in names if given.get(name) is not None]
        if owned and agent != owner:
            raise InputError(f"{', '.join(owned)} is for --agent {owner}, not for {agent}")
    if rounds is None:
        literal = LITERAL_ROUNDS if drafted else 0
        rounds = literal if agent == LITERAL else DEFAULT_ROUNDS
    policy = asked.policy or (GREEDY if rounds < MCTS_ROUNDS else MCTS)
    return {"agent": agent, "rounds": rounds, "policy": policy}


def _require_functions(spec: KernelSpec) -> None:
    """Raise `KernelError` for a neighbour that the reference file lacks."""
    links = (link for around in spec.surroundings for link in around.links)
    neighbours = (neighbour for link in links for neighbour in (*link.before, *link.after))
    wanted = [neighbour for neighbour in neighbours if neighbour.kind == "function"]
    if not wanted:
        return
    from tuner.device.reference import load_functions

    known = load_functions(spec.reference, "neighbours")
    for neighbour in wanted:
        if neighbour.function not in known:
            raise KernelError(
                f"{spec.reference.name} has no neighbour named {neighbour.function!r}",
                path=spec.path,
                line=neighbour.line,
                remedy=f"its `neighbours`: {', '.join(known) or 'none'}",
            )


def plan_of(definition: Definition, config: RunConfig) -> Plan:
    """Make the plan of a config: choices, neighbours, valid configs and template, all checked."""
    from tuner.space.callables import load_template
    from tuner.space.plan import Plan
    from tuner.space.surroundings import check_sizes, choose_surroundings

    definition = definition.chosen(config.operators, invariant=config.invariant)
    # A CPU's times say nothing, with neighbours or without, and an evaluator has none.
    alone = config.device == "host" or config.device.startswith(COMMAND)
    spec = choose_surroundings(definition.spec, config.surroundings)
    if alone:
        spec = choose_surroundings(spec, ALONE)
    _require_functions(spec)
    for workload in config.workloads:
        check_sizes(spec, workload)
    _ = config.weights  # which raises for one that is no number above 0
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
    if spec.source.samefile(kernel):
        return
    # `tune init` says in the first line of what it extracts from which file
    words = read_text(spec.source).partition("\n\n")[0].replace("//", " ").split()
    if "extracted" not in words or all(word.strip(",") != kernel.name for word in words):
        raise KernelError(
            f"the search space is for {spec.source}, not for {kernel}",
            path=spec.path,
            remedy="name the right one with --space",
        )
