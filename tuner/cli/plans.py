"""From the words of a command line, or from a session's manifest, to a plan for the tuner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import __version__
from tuner.cli.locate import find_space, require_kernel, require_space
from tuner.cli.options import STRATEGIES, unique
from tuner.errors import KernelError, SessionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tuner.cli.agent_options import AgentOptions
    from tuner.consumption import Objective
    from tuner.kernel import KernelSpec, Workload
    from tuner.plan import Plan
    from tuner.session import Manifest
    from tuner.space_file import Definition


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


def new_plan(request: Request) -> Plan:
    """Find and read everything that the request names; raise `InputError` for what is wrong."""
    from tuner.operator_choice import chosen_operators
    from tuner.plan import WITHIN

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
    from tuner.knowledge.place import without_password
    from tuner.session_records import Manifest, file_sha

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
        tuner_version=__version__,
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
    from tuner.device.peers import chosen_peers, require_gpu

    if not (request.peers or request.peer):
        return ()
    require_gpu(request.device)
    return chosen_peers(spec.reference, request.peer)


def asked_workloads(spec: KernelSpec, texts: tuple[str, ...]) -> tuple[Workload, ...]:
    """Read `--workload` options; the same one twice counts once."""
    from tuner.space_file import workload_from_text

    return tuple(dict.fromkeys(workload_from_text(spec, text) for text in texts))


def require_strategy(searcher: str) -> None:
    """Raise `InputError` for a strategy that Kernel Tuner lacks, before anything is measured."""
    if searcher.startswith(STRATEGIES):
        from tuner.search.kernel_tuner_strategy import find_strategy

        find_strategy(searcher.removeprefix(STRATEGIES))


def read_definition(space: Path, template: Path | None = None) -> Definition:
    """Read a search space that is no draft any more; `template` takes the place of its own."""
    from tuner.draft import require_filled, restore_template
    from tuner.space_file import load_definition

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
    from tuner.checking import check_signature
    from tuner.plan import Plan
    from tuner.template import Template

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
    from tuner.session_records import file_sha

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
        from tuner.operator_choice import chosen_operators

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
