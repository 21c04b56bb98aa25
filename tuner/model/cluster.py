"""What is set of a cluster: its address and certificates, and how long to wait for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: who signs the cluster's certificates, our own certificate, and its key.

    `key` is None where the certificate's file holds it.
    """

    authority: Path
    certificate: Path
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a cluster is waited for, in seconds.

    A scheduler has `connect_s` to answer. A worker whose heartbeat was not heard for `silent_s` has
    lost its call. A run that has no worker waits `rejoin_s` for one, also for those that another
    run holds: a coordinator that was killed holds its slots for `lease_s`. It says that it lives
    every `keep_s`.
    """

    connect_s: float = 10.0
    silent_s: float = 30.0
    rejoin_s: float = 120.0
    lease_s: float = 60.0
    keep_s: float = 15.0

    # What a call may take; past it the slot counts as hanging. A device ends what hangs on its host
    # long before: by its limits a kernel has 10 s, a timed one 60 s and a verdict 120 s.
    open_s: float = 600.0
    run_s: float = 900.0
    compare_s: float = 1800.0
    compile_s: float = 300.0
    file_s: float = 120.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Which cluster a run uses; `gpu_model` is a part of the name of the GPUs that it may use."""

    address: str
    tls: TlsFiles | None = None
    gpu_model: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
