"""What extensions bring, by the name of a seam: imported when it is first asked for.

Those that come in this wheel are listed here, so that a checkout works without being installed. To
the seams in `OPEN` other packages add by entry points of the seam's name.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tuner.model.errors import InputError

# A click command: `tune NAME`.
COMMANDS = "tuner.commands"
# tuner.device.families.DeviceFamily: `--device NAME` or `NAME:DETAIL`.
DEVICES = "tuner.devices"
# tuner.device.recorded.recording.ForeignFiles: `--device recorded:FILE` of other tuners.
RECORDINGS = "tuner.recordings"
# tuner.app.authors.Authors: who writes further candidates.
AUTHORS = "tuner.authors"
# tuner.app.drafters.Drafter: search spaces for kernels that have none.
DRAFTERS = "tuner.drafters"
# What several machines offer a run: a cluster's devices, a copy of its session (tuner/app/open.py).
REMOTES = "tuner.remotes"
# What writes sessions in a form that other programs load, called as `tune export` does.
FORMATS = "tuner.formats"
# tuner.app.proofs.Prover: what running the baseline shows of a search space.
PROVERS = "tuner.provers"
# What puts into a run's session how much of broken kernels its verification catches.
STRENGTH = "tuner.strength"
# What tunes source text on arrays, called as `tuner.tune(text, arguments, parameters, ...)` is.
ARRAYS = "tuner.arrays"
# tuner.search.base.Strategies: `--searcher NAME:STRATEGY`.
SEARCHERS = "tuner.searchers"
OPEN = frozenset({COMMANDS, DEVICES, RECORDINGS, SEARCHERS})
# What the core has by these names, and no extension may take.
CORE: dict[str, Collection[str]] = {
    COMMANDS: frozenset(
        {"run", "demo", "check", "render", "verify", "ncu", "show", "report"}
        | {"devices", "knowledge", "record"}
    ),
    DEVICES: frozenset({"auto", "cuda", "recorded"}),
    SEARCHERS: ("auto", "exhaustive", "random", "optuna"),
}
OWN: dict[str, dict[str, str]] = {
    COMMANDS: {
        "init": "tuner.extensions.draft.init_command:command",
        "cut": "tuner.extensions.draft.cut_command:command",
        "mcp": "tuner.extensions.agents.mcp_command:command",
        "gate": "tuner.extensions.agents.gate_command:command",
        "export": "tuner.extensions.export.export_command:command",
        "compare": "tuner.extensions.study.compare_command:command",
        "session": "tuner.extensions.scale.session_command:command",
        "mutate": "tuner.extensions.study.mutate_command:command",
        "timeline": "tuner.extensions.engines.timeline_command:command",
        "fleet": "tuner.extensions.engines.fleet_command:command",
        "campaign": "tuner.extensions.scale.campaign_command:command",
        "worker": "tuner.extensions.scale.worker_command:command",
    },
    DEVICES: {
        "host": "tuner.extensions.cpu.device:HOST",
        "hip": "tuner.extensions.backends.hip.device:HIP",
        "opencl": "tuner.extensions.backends.opencl.device:OPENCL",
        "command": "tuner.extensions.backends.program.device:COMMAND",
    },
    AUTHORS: {"agents": "tuner.extensions.agents.authors:AUTHORS"},
    DRAFTERS: {"source": "tuner.extensions.draft.drafter:DRAFTER"},
    REMOTES: {
        "cluster": "tuner.extensions.scale.cluster_run:open_on_cluster",
        "copies": "tuner.extensions.scale.session_copies:copying",
    },
    FORMATS: {
        "dispatch": "tuner.extensions.export.dispatch:export_dispatch",
        "sglang-configs": "tuner.extensions.engines.configs.winners:SGLANG",
        "vllm-configs": "tuner.extensions.engines.configs.winners:VLLM",
        "kernel-tuner": "tuner.extensions.study.kernel_tuner_recordings:write_both",
        "trajectories": "tuner.extensions.agents.training:export_trajectories",
    },
    PROVERS: {"host": "tuner.extensions.cpu.proof"},
    ARRAYS: {"arrays": "tuner.extensions.compat.arrays:tune_arrays"},
    STRENGTH: {"mutants": "tuner.extensions.study.mutation.at_once:measure_strength"},
    RECORDINGS: {"kernel_tuner": "tuner.extensions.study.kernel_tuner_recordings:FOREIGN"},
    SEARCHERS: {
        "kernel_tuner": "tuner.extensions.study.kernel_tuner_searcher:STRATEGIES",
    },
}


def names_of(seam: str) -> list[str]:
    """List what extensions bring for a seam, our own first; nothing of it is imported."""
    return list(points_of(seam))


def searchers() -> list[str]:
    """List what `--searcher` takes: the core's, then the families of extensions."""
    return [*CORE[SEARCHERS], *(f"{family}:<strategy>" for family in names_of(SEARCHERS))]


def is_searcher(name: str) -> bool:
    """Tell a searcher's name; of a family nobody asks yet whether it has the strategy."""
    family, _, strategy = name.partition(":")
    return name in CORE[SEARCHERS] or (bool(strategy) and family in names_of(SEARCHERS))


def load(seam: str, name: str, kind: type | None = None) -> Any:
    """Import what an extension calls by this name, which is of a `kind` where one is given.

    Raises `InputError` for what nobody has, and for what another package's entry point promises
    and does not keep.
    """
    point = points_of(seam).get(name)
    if point is None:
        known = ", ".join(points_of(seam)) or "none"
        raise InputError(f"no extension has {name!r} for {seam}", remedy=f"there are: {known}")
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        if name in OWN[seam]:
            raise
        raise _plugin_error(seam, point, f"cannot be loaded: {error}") from error
    if kind is not None and not isinstance(found, kind):
        raise _plugin_error(seam, point, f"is no {kind.__name__}")
    return found


def _plugin_error(seam: str, point: EntryPoint, why: str) -> InputError:
    package = point.dist.name if point.dist else point.value
    return InputError(
        f"the entry point {point.name!r} of {seam} in {package} {why}",
        remedy=f"mend it, or uninstall {package}",
    )


@cache
def points_of(seam: str) -> dict[str, EntryPoint]:
    """Find what is brought for a seam, by name; none in the place of ours or the core's."""
    own = {name: EntryPoint(name, place, seam) for name, place in OWN[seam].items()}
    taken = {*own, *CORE.get(seam, ())}
    others = entry_points(group=seam) if seam in OPEN else ()
    return {**own, **{point.name: point for point in others if point.name not in taken}}
