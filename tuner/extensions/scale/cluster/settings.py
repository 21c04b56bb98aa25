"""What is set of a cluster: its address, token and certificates, and how long to wait for what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
class Patience:
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
    token_file: Path | None = None
    tls: TlsFiles | None = None
    gpu_model: str = ""
    patience: Patience = field(default_factory=Patience)

    def patient(self, **seconds: float) -> ClusterSettings:
        """Wait for another time; the names are those of `Patience`."""
        return replace(self, patience=replace(self.patience, **seconds))


# What of Dask's own settings matters here, for coordinator and workers, whatever a file of the
# user's says: `distributed` reads them when connections and workers are made.
DASK = {
    # An address that doesn't answer is told soon, not after half a minute.
    "distributed.comm.timeouts.connect": "10s",
    # A connection through which nothing comes for so long is dead: a host that lost the network
    # must not hold its calls for hours.
    "distributed.comm.timeouts.tcp": "30s",
    # A call is sent once: what is to be tried again is tried by us, elsewhere, and counted.
    "distributed.comm.retry.count": 0,
    # Dask samples its threads every 10 ms and looks at the clock every 20 ms: on the CPU that runs
    # or launches what is being timed.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    # And asks the system for its load twice a second.
    "distributed.admin.system-monitor.interval": "10s",
    # Nothing but the measuring process may touch the GPU.
    "distributed.diagnostics.nvml": False,
    # A request may hold the headers of a project.
    "distributed.admin.large-graph-warning-threshold": "1GiB",
}
# Dask's loggers tell of every connection; what matters here becomes one message of ours. asyncio's
# tells of calls that Dask's client has given up with a worker.
LOGGERS = ("distributed", "tornado", "asyncio")
