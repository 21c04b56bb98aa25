"""What a store keeps: the best of one search, workload by workload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tuner.kernel import Workload
from tuner.space import Config
from tuner.trial import Status


@dataclass(frozen=True, slots=True)
class PastConfig:
    """One config: its time, or how it failed where its status isn't `correct`."""

    config: Config
    status: Status
    time_us: float | None = None


@dataclass(frozen=True, slots=True)
class PastWorkload:
    """What a search found on one workload: the fastest configs first, then some that failed."""

    workload: Workload
    baseline_us: float | None
    configs: tuple[PastConfig, ...]


@dataclass(frozen=True, slots=True)
class PastSearch:
    """The best of one candidate's search in one run.

    `architecture` is the compile target, `sm_90a`. `parameters` are the names of the space's
    parameters, sorted. `created` is when the run began (ISO 8601), and `state` what it said of
    itself at its end.
    """

    kernel: str
    operators: Mapping[str, str]
    device: str
    architecture: str
    candidate: str
    template_sha: str
    parameters: tuple[str, ...]
    tuner_version: str
    created: str
    state: str
    workloads: tuple[PastWorkload, ...]

    @property
    def uid(self) -> str:
        """A hash of all it says: the same search is kept once, also when stores are merged."""
        whole = asdict(self) | {
            "workloads": [
                [one.workload.key, one.baseline_us, [_whole(config) for config in one.configs]]
                for one in self.workloads
            ]
        }
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _whole(config: PastConfig) -> list[object]:
    return [config.config.key, config.status, config.time_us]
