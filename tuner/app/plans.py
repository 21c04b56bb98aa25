"""From the words of a command line, or from a session's manifest, to a plan for the tuner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.app.locate import find_space, require_kernel, require_space
from tuner.model.errors import KernelError, SessionError
from tuner.model.version import TUNER_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.model.energy import Objective
    from tuner.model.kernel import KernelSpec, Workload
    from tuner.session.session import Manifest
    from tuner.space.load import Definition
    from tuner.space.plan import Plan


STRATEGIES = "kernel_tuner:"


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `tune KERNEL.cu`; `given` names those that stood on the command line."""

    kernel: Path | None
    space: Path | None
    template: Path | None
    device: str
    searcher: str
    trials: int | None
    time: float | None
    seed: int
    workload: tuple[str, ...]
    operator: tuple[tuple[str, str], ...]
    session: Path | None
    resume: Path | None
    as_json: bool
    quiet: bool
    jobs: int | None
    given: frozenset[str]
    words: tuple[str, ...]
    agent: str = "literal"
    model: str | None = None
    rounds: int | None = None
    policy: str | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Path | None = None
    exchange: Path | None = None
    wait: float | None = None
    sources: tuple[Path, ...] = ()
    store: str | None = None
    objective: Objective = "time"
    variants_within: float | None = None
    max_variants: int | None = None
    peers: bool = False
    peer: tuple[str, ...] = ()


def unique(pairs: tuple[tuple[str, str], ...], what: str) -> Mapping[str, str]:
    """Return the pairs as a mapping; a name given twice is a usage error."""
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise click.UsageError(f"{what} {', '.join(repeated)} is given more than once")
    return dict(pairs)


def new_plan(request: Request) -> Plan:
    """Find and read everything that the request names; raise `InputError` for what is wrong."""
    from tuner.space.choices import chosen_operators
    from tuner.space.plan import WITHIN

    if request.kernel is None:
        raise click.UsageError("no kernel given; name a .cu file, or a session with --resume")
    require_kernel(request.kernel)
    path = request.space or find_space(request.kernel, Path.cwd())
    definition = read_definition(path, request.template)
    _require_same(request.kernel, definition.spec)
    workloads = asked_workloads(definition.spec, request.workload)
    require_strategy(request.searcher)
    within = WITHIN if request.variants_within is None else request.variants_within
    return _plan(
        definition,
        searcher=request.searcher,
        trials=request.trials,
        time_s=request.time,
        seed=request.seed,
        workloads=workloads or definition.spec.workloads,
        operators=chosen_operators(definition.spec, unique(request.operator, "operator")),
        objective=request.objective,
        variants_within=within,
        max_variants=request.max_variants,
        peers=asked_peers(definition.spec, request),
    )


def resumed_plan(directory: Path, manifest: Manifest, request: Request) -> Plan:
    """Rebuild a session's plan; raise `SessionError` where files or options have changed."""
    space, template = Path(manifest.space_path), Path(manifest.template_path)
    if not space.exists():
        raise SessionError(f"its search space is gone: {space}", path=directory)
    definition = read_definition(space, template)
    _require_unchanged(directory, manifest, definition.spec)
    plan = _plan_of(definition, manifest)
    _require_agreement(directory, manifest, plan, request)
    return plan


def verified_plan(directory: Path, manifest: Manifest, space: Path | None) -> Plan:
    """Rebuild a session's plan to verify its winners, with files moved to another place."""
    path = space or Path(manifest.space_path)
    if not path.exists():
        raise SessionError(
            f"its search space is gone: {path}",
            path=directory,
            remedy="name a copy of it with --space",
        )
    moved = space is not None or not Path(manifest.template_path).exists()
    definition = read_definition(path, None if moved else Path(manifest.template_path))
    _require_unchanged(directory, manifest, definition.spec)
    return _plan_of(definition, manifest)


def manifest_of(
    plan: Plan, *, device: str, words: tuple[str, ...], options: AgentOptions | None = None
) -> Manifest:
    """Write down all that a resumed run must find unchanged."""
    from tuner.session.knowledge import without_password
    from tuner.session.records import Manifest, file_sha

    spec = plan.spec
    return Manifest(
        kernel=spec.name,
        space_path=str(spec.path),
        template_path=str(spec.template),
        space_text_sha=file_sha(spec.path),
        template_sha=file_sha(spec.template),
        source_sha=file_sha(spec.source),
        reference_sha=file_sha(spec.reference),
        device=device,
        searcher=plan.searcher,
        trials=plan.trials,
        time_s=plan.time_s,
        seed=plan.seed,
        workloads=plan.workloads,
        operators=plan.operators,
        objective=plan.objective,
        variants_within=plan.variants_within,
        max_variants=plan.max_variants,
        peers=plan.peers,
        tuner_version=TUNER_VERSION,
        command=tuple(map(without_password, words)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        **({} if options is None or not options.rounds else _agent_fields(options)),
    )


def _agent_fields(options: AgentOptions) -> dict[str, Any]:
    return {
        "agent": options.agent,
        "rounds": options.rounds,
        "policy": options.policy,
        "agent_options": options.kept(),
    }


def asked_peers(spec: KernelSpec, request: Request) -> tuple[str, ...]:
    """Name the peers that a request asks for; raise where there are none or they can't run."""
    from tuner.device.reference import chosen_peers, require_gpu

    if not (request.peers or request.peer):
        return ()
    require_gpu(request.device)
    return chosen_peers(spec.reference, request.peer)


def asked_workloads(spec: KernelSpec, texts: tuple[str, ...]) -> tuple[Workload, ...]:
    """Read `--workload` options; the same one twice counts once."""
    from tuner.space.load import workload_from_text

    return tuple(dict.fromkeys(workload_from_text(spec, text) for text in texts))


def require_strategy(searcher: str) -> None:
    """Raise `InputError` for a strategy that Kernel Tuner lacks, before anything is measured."""
    if searcher.startswith(STRATEGIES):
        from tuner.search.kernel_tuner import find_strategy

        find_strategy(searcher.removeprefix(STRATEGIES))


def read_definition(space: Path, template: Path | None = None) -> Definition:
    """Read a search space that is no draft any more; `template` takes the place of its own."""
    from tuner.draft import require_filled, restore_template
    from tuner.space.load import load_definition

    require_space(space)
    require_filled(space)
    if template is None:
        restore_template(space)
    definition = load_definition(space)
    require_filled(definition.spec.reference)
    if template is None:
        return definition
    return replace(definition, spec=replace(definition.spec, template=template.resolve()))


def new_session_folder(kernel: str, now: datetime) -> Path:
    """Name a folder under `sessions/` that isn't there yet."""
    name = f"{kernel}-{now:%Y%m%d-%H%M%S}"
    folder, number = Path("sessions") / name, 1
    while folder.exists():
        number += 1
        folder = Path("sessions") / f"{name}-{number}"
    return folder


def _plan_of(definition: Definition, manifest: Manifest) -> Plan:
    return _plan(
        definition,
        searcher=manifest.searcher,
        trials=manifest.trials,
        time_s=manifest.time_s,
        seed=manifest.seed,
        workloads=manifest.workloads,
        operators=manifest.operators,
        objective=manifest.objective,
        variants_within=manifest.variants_within,
        max_variants=manifest.max_variants,
        peers=manifest.peers,
    )


def _plan(
    definition: Definition,
    *,
    searcher: str,
    trials: int | None,
    time_s: float | None,
    seed: int,
    workloads: tuple[Workload, ...],
    operators: Mapping[str, str],
    objective: Objective,
    variants_within: float,
    max_variants: int | None,
    peers: tuple[str, ...],
) -> Plan:
    from tuner.app.check import check_signature
    from tuner.space.plan import Plan
    from tuner.space.template import Template

    definition = definition.chosen(operators)
    template = Template.load(definition.spec.template)
    template.check(definition.space, definition.spec)
    check_signature(definition.spec)
    if definition.space.default is not None:
        # Some mistakes show only in what comes out: found here, they cost no measurement.
        for workload in workloads:
            template.render({**workload.values, **operators, **definition.space.default})
    return Plan(
        spec=definition.spec,
        space=definition.space,
        template=template,
        searcher=searcher,
        trials=trials,
        time_s=time_s,
        seed=seed,
        workloads=workloads,
        operators=operators,
        objective=objective,
        variants_within=variants_within,
        max_variants=max_variants,
        peers=peers,
    )


def _require_same(kernel: Path, spec: KernelSpec) -> None:
    if not spec.source.samefile(kernel):
        raise KernelError(
            f"the search space is for {spec.source}, not for {kernel}",
            path=spec.path,
            remedy="name the right one with --space",
        )


def _require_unchanged(directory: Path, manifest: Manifest, spec: KernelSpec) -> None:
    from tuner.session.records import file_sha

    files = {
        spec.path: manifest.space_text_sha,
        spec.template: manifest.template_sha,
        spec.source: manifest.source_sha,
        spec.reference: manifest.reference_sha,
    }
    # Sessions of the first version did not keep the reference's hash.
    changed = [str(path) for path, sha in files.items() if sha and file_sha(path) != sha]
    if changed:
        raise SessionError(
            f"changed since the session began: {', '.join(changed)}",
            path=directory,
            remedy="undo the change to resume, or start a new session: the times of two versions "
            "must not mix",
        )


def _require_agreement(directory: Path, manifest: Manifest, plan: Plan, request: Request) -> None:
    spec = plan.spec
    if request.kernel is not None:
        require_kernel(request.kernel)
        _require_same(request.kernel, spec)
    asked: dict[str, tuple[object, object]] = {
        "space": (request.space and request.space.resolve(), spec.path),
        "template": (request.template and request.template.resolve(), spec.template),
        "device": (request.device, manifest.device),
        "searcher": (request.searcher, manifest.searcher),
        "trials": (request.trials, manifest.trials),
        "time": (request.time, manifest.time_s),
        "seed": (request.seed, manifest.seed),
        "objective": (request.objective, manifest.objective),
        "variants_within": (request.variants_within, manifest.variants_within),
        "max_variants": (request.max_variants, manifest.max_variants),
        "session": (request.session and request.session.resolve(), directory.resolve()),
        "policy": (request.policy, manifest.policy),
        "model": (request.model, manifest.agent_options.get("model")),
        "agent": (request.agent, manifest.agent or "literal"),
    }
    if "workload" in request.given:
        own = asked_workloads(spec, request.workload)
        asked["workload"] = (own, manifest.workloads)
    if "operator" in request.given:
        from tuner.space.choices import chosen_operators

        chosen = chosen_operators(spec, unique(request.operator, "operator"))
        asked["operator"] = (dict(chosen), dict(manifest.operators))
    if {"peers", "peer"} & request.given:
        asked["peers"] = (asked_peers(spec, request), manifest.peers)
    given = request.given | ({"peers"} if "peer" in request.given else set())
    differing = [n for n, (own, kept) in asked.items() if n in given and own != kept]
    if differing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in differing)
        raise SessionError(
            f"{options}: not what the session was started with",
            path=directory,
            remedy="leave it out to resume, or start a new session: "
            f"`{' '.join(manifest.command)}` started this one",
        )


AUTO, LITERAL, OPENAI, FILES = "auto", "literal", "openai", "files"
# The client of `tune mcp`: no option names it.
MCP = "mcp"
AGENTS = (AUTO, LITERAL, OPENAI, FILES)
MCTS, GREEDY, LLM = "mcts", "greedy", "llm"
POLICIES = (MCTS, GREEDY, LLM)
# With fewer rounds a tree search loses to building on the best: it has no time to be wrong and
# come back (tests/unit/agent/test_policies.py simulates both).
MCTS_ROUNDS = 16
# Without a number, an agent that can think gets so many rounds.
DEFAULT_ROUNDS = 4
# What a draft is widened by at most: each round doubles a range.
LITERAL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Which agent writes, and with what; budgets are None where there is no such limit."""

    agent: str
    model: str = ""
    rounds: int = 0
    policy: str = GREEDY
    max_tokens: int | None = None
    max_cost: float | None = None
    prices: Path | None = None
    exchange: Path | None = None
    wait_s: float | None = None
    sources: tuple[Path, ...] = ()

    @classmethod
    def asked(cls, request: Request, *, drafted: bool = False) -> AgentOptions:
        """Complete what the command line says; raise `UsageError` where parts do not fit.

        A key in the environment alone sends nothing anywhere: a model has to be named.
        """
        agent = request.agent
        if agent == AUTO:
            agent = OPENAI if request.model else FILES if request.exchange else LITERAL
        _require_fitting(agent, request)
        rounds = request.rounds
        if rounds is None:
            literal = LITERAL_ROUNDS if drafted else 0
            rounds = literal if agent == LITERAL else DEFAULT_ROUNDS
        return cls(
            agent=agent,
            model=request.model or "",
            rounds=rounds,
            policy=request.policy or (GREEDY if rounds < MCTS_ROUNDS else MCTS),
            max_tokens=request.max_tokens,
            max_cost=request.max_cost,
            prices=request.prices,
            exchange=request.exchange,
            wait_s=request.wait,
            sources=request.sources,
        )

    @classmethod
    def resumed(cls, manifest: Manifest, request: Request) -> AgentOptions:
        """Take what the session began with; budgets, rounds and folders may be given anew."""
        kept = manifest.agent_options
        options = cls(
            agent=manifest.agent or LITERAL,
            model=kept.get("model", ""),
            rounds=manifest.rounds,
            policy=manifest.policy,
            max_tokens=int(kept["max_tokens"]) if "max_tokens" in kept else None,
            max_cost=float(kept["max_cost"]) if "max_cost" in kept else None,
            prices=Path(kept["prices"]) if "prices" in kept else None,
            exchange=Path(kept["exchange"]) if "exchange" in kept else None,
            sources=tuple(map(Path, filter(None, kept.get("sources", "").split("\n")))),
        )
        changed = {
            name: getattr(request, name)
            for name in ("rounds", "max_tokens", "max_cost", "prices", "exchange", "sources")
            if name in request.given
        }
        return replace(options, **changed, wait_s=request.wait)

    def kept(self) -> Mapping[str, str]:
        """Write what the manifest keeps of them."""
        found = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "max_cost": self.max_cost,
            "prices": self.prices and self.prices.resolve(),
            "exchange": self.exchange and self.exchange.resolve(),
            "sources": "\n".join(str(path.resolve()) for path in self.sources),
        }
        return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _require_fitting(agent: str, request: Request) -> None:
    if agent == OPENAI and not request.model:
        raise click.UsageError("--agent openai needs the name of a model: --model NAME")
    if agent == FILES and request.exchange is None:
        raise click.UsageError("--agent files needs a folder to write to: --exchange DIR")
    misplaced = {
        OPENAI: ("model", "max_tokens", "max_cost", "prices"),
        FILES: ("exchange", "wait"),
    }
    for owner, names in misplaced.items():
        given = [f"--{name.replace('_', '-')}" for name in names if name in request.given]
        if given and agent != owner:
            raise click.UsageError(f"{', '.join(given)} is for --agent {owner}, not for {agent}")
