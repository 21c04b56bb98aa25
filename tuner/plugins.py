"""What extensions bring, by the name of a seam: imported when it is first asked for.

A package of somebody else's joins by an entry point of the seam's name in its metadata. Those that
come in this wheel are listed here, so that a checkout works without being installed.
"""

from __future__ import annotations

import importlib
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
# tuner.search.base.Strategies: `--searcher NAME:STRATEGY`.
SEARCHERS = "tuner.searchers"
OWN: dict[str, dict[str, str]] = {
    COMMANDS: {
        "init": "tuner.extensions.draft.init_command:command",
        "mcp": "tuner.extensions.agents.mcp_command:command",
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
        "host": "tuner.extensions.cpu.family:HOST",
        "hip": "tuner.extensions.backends.hip.family:HIP",
        "opencl": "tuner.extensions.backends.opencl.family:OPENCL",
        "command": "tuner.extensions.backends.program.family:COMMAND",
    },
    AUTHORS: {"agents": "tuner.extensions.agents.authors:AUTHORS"},
    DRAFTERS: {"source": "tuner.extensions.draft.drafter:DRAFTER"},
    REMOTES: {
        "cluster": "tuner.extensions.scale.cluster_run:open_on_cluster",
        "copies": "tuner.extensions.scale.copier:copying",
    },
    FORMATS: {
        "dispatch": "tuner.extensions.export.dispatch:export_dispatch",
        "sglang-configs": "tuner.extensions.engines.configs.writing:SGLANG",
        "vllm-configs": "tuner.extensions.engines.configs.writing:VLLM",
        "kernel-tuner": "tuner.extensions.study.kernel_tuner_export:write_both",
        "trajectories": "tuner.extensions.agents.training:export_trajectories",
    },
    PROVERS: {"host": "tuner.extensions.cpu.proof:PROVER"},
    RECORDINGS: {"kernel_tuner": "tuner.extensions.study.foreign_recordings:FOREIGN"},
    SEARCHERS: {
        "kernel_tuner": "tuner.extensions.study.kernel_tuner_searcher:STRATEGIES",
    },
}


# Which extra brings a library that isn't part of every installation.
EXTRAS = {
    "distributed": "cluster",
    "dask": "cluster",
    "mcp": "mcp",
    "msgpack": "hip",
    "elftools": "hip",
    "pyopencl": "opencl",
    "psycopg": "postgresql",
}


def names_of(seam: str) -> list[str]:
    """List what extensions bring for a seam, our own first; nothing of it is imported."""
    return list(points_of(seam))


def load(seam: str, name: str) -> Any:
    """Import what an extension calls by this name; raise `InputError` for what nobody has."""
    point = points_of(seam).get(name)
    if point is None:
        known = ", ".join(points_of(seam)) or "none"
        raise InputError(f"no extension has {name!r} for {seam}", remedy=f"there are: {known}")
    try:
        return getattr(importlib.import_module(point.module), point.attr)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(library)
        install = f"pip install '.[{extra}]' in the checkout" if extra else f"pip install {library}"
        raise InputError(
            f"{name} needs {library}, which is not installed", remedy=install
        ) from None


@cache
def points_of(seam: str) -> dict[str, EntryPoint]:
    """Find what is brought for a seam, by name; ours first, and none in the place of ours."""
    own = {name: EntryPoint(name, place, seam) for name, place in OWN.get(seam, {}).items()}
    others = {point.name: point for point in entry_points(group=seam)}
    return {**own, **others, **own}
