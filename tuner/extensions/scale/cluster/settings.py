"""What of Dask's own settings a cluster needs, and whose loggers it quiets."""

from __future__ import annotations

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
