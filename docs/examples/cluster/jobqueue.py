"""Tune a kernel on nodes that Slurm gives one after the other, through dask-jobqueue.

    python jobqueue.py 4 kernels/rmsnorm.cu --trials 200        (pip install dask-jobqueue)

Four jobs of one node each: every one that begins joins the run, and one that Slurm ends costs the
trials that it was at. All behind the number goes to `tune`. $TUNE_TLS, in the environment that
Slurm passes on, names the cluster's file of certificate and key, readable by you alone
(docs/clusters.md). PBS, LSF and others have such clusters and jobs in dask-jobqueue too.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from typing import Any

from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed.security import Security

# What a job asks Slurm for. The memory is for compilers and for judges of results.
ASKED = {
    "cores": 16,
    "memory": "64GB",
    "walltime": "04:00:00",
    "job_extra_directives": ["--gpus-per-node=8"],
}
DEVICE = os.environ.get("TUNE_DEVICE", "auto")
TLS = os.environ.get("TUNE_TLS", "")
TLS_WORDS = ["--tls-ca", TLS, "--tls-cert", TLS]


class TuneJob(SLURMJob):
    """A job that runs `tune worker` in place of Dask's own worker."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        words = [sys.executable, "-m", "tuner", "worker", self.scheduler, "--device", DEVICE]
        self._command_template = shlex.join([*words, *TLS_WORDS])


def security() -> Security:
    """Have the scheduler show the certificate, and take no other."""
    ends = ("client", "scheduler", "worker")
    shown = {f"tls_{end}_{what}": TLS for end in ends for what in ("cert", "key")}
    return Security(tls_ca_file=TLS, require_encryption=True, **shown)


def main(jobs: int, words: list[str]) -> int:
    """Run `tune` while so many jobs wait for nodes and work; return its exit code."""
    with SLURMCluster(
        job_cls=TuneJob,
        job_name="tune",
        processes=1,
        log_directory="slurm-logs",
        scheduler_options={"dashboard": False},
        security=security(),
        protocol="tls://",
        **ASKED,
    ) as cluster:
        cluster.scale(jobs=jobs)
        run = [sys.executable, "-m", "tuner", *words, "--cluster", cluster.scheduler_address]
        # `tune` has Ctrl-C too, ends as it should and says how to go on: this only waits for it.
        # (On import, dask_jobqueue had Ctrl-C end this process at once.)
        signal.signal(signal.SIGINT, lambda *_: None)
        return subprocess.call([*run, *TLS_WORDS])


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal() or not TLS:
        raise SystemExit(__doc__)
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))
