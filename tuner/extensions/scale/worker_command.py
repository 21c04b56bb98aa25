"""`tune worker`: offer this host's GPUs to the runs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tuner.cli import options
from tuner.cli.exits import interrupt_on_sigterm

if TYPE_CHECKING:
    from pathlib import Path


@click.command("worker")
@click.argument("address")
@click.option(
    "--device",
    metavar="DEVICE",
    default="auto",
    help="auto or cuda (every GPU), cuda:N, or host (the CPU: its times mean nothing).",
)
@click.option("--name", metavar="NAME", default="", help="The name of this host in messages.")
@options.setting("jobs", help="Compilers for each GPU; by default its share of the cores.")
@options.settings(None, "tls_ca")
def command(
    address: str,
    device: str,
    name: str,
    jobs: int | None,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> None:
    """Offer this host's GPUs to runs with --cluster, through the Dask scheduler at ADDRESS.

    It runs until Ctrl-C, or until the scheduler has been away for ten minutes.
    """
    from tuner.extensions.scale.cluster.network import require_dask

    require_dask()  # which the other imports
    from tuner.extensions.scale.cluster.host import HostOptions, serve_host

    asked = HostOptions(
        address=address,
        device=device,
        name=name,
        compilers=jobs,
        tls=options.tls_files(tls_ca, tls_cert, tls_key),
    )
    with interrupt_on_sigterm():
        serve_host(asked, lambda text: click.echo(text, err=True))
