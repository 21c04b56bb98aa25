"""`tune knowledge`: what past runs found, as the store has it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli import options
from tuner.model.errors import InputError

if TYPE_CHECKING:
    from tuner.session.knowledge import KnowledgeStore

_COLUMNS = ("kernel", "device", "searches", "workloads", "best speedup", "last run")


@click.group("knowledge")
def command() -> None:
    """List, delete or add what past runs found.

    A search starts from it: a few of the best configs of the same kernel are tried first.
    """


@command.command("list")
@options.setting("store")
@options.as_json
def list_known(store: str | None, as_json: bool) -> None:
    """List the stored results, by kernel and device."""
    from tuner.session.knowledge import ALL_SEARCHES, summaries

    opened = _open_knowledge(store)
    known = summaries(opened.searches(most=ALL_SEARCHES))
    if as_json:
        told = {"store": str(opened.location), "kernels": [asdict(summary) for summary in known]}
        click.echo(json.dumps(told))
        return
    click.echo(f"store {opened.location}")
    if not known:
        click.echo("nothing is known yet")
        return
    rows = [_COLUMNS]
    for knowledge_summary in known:
        kernel = knowledge_summary.kernel + "".join(
            f" {name}={value}" for name, value in knowledge_summary.operators.items()
        )
        speedup = "" if knowledge_summary.speedup is None else f"{knowledge_summary.speedup:.2f}x"
        counts = (str(knowledge_summary.searches), str(knowledge_summary.workloads))
        rows.append(
            (kernel, knowledge_summary.device, *counts, speedup, knowledge_summary.last[:10])
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())


@command.command("forget")
@click.argument("kernel")
@click.option("--device", metavar="NAME", help="Only what was found on this device.")
@options.setting("store")
def forget(kernel: str, device: str | None, store: str | None) -> None:
    """Delete the stored results of KERNEL, such as silu_and_mul."""
    opened = _open_knowledge(store)
    count = opened.forget(kernel, device)
    if not count:
        where = f" on {device}" if device else ""
        raise InputError(
            f"{opened.location}: nothing is known of {kernel}{where}",
            remedy="`tune knowledge list` names what is",
        )
    click.echo(f"forgotten: {_searches(count)} of {kernel}")


@command.command("merge")
@click.argument("other", metavar="URL|FILE")
@options.setting("store")
def merge(other: str, store: str | None) -> None:
    """Add the results of another store."""
    from tuner.session.knowledge import ALL_SEARCHES

    opened, source = _open_knowledge(store), _open_knowledge(other)
    if source.location.file is not None and not source.location.file.exists():
        raise InputError(f"{source.location}: there is no store", remedy="name its file or its URL")
    if source.location.url == opened.location.url:
        raise InputError(f"{source.location}: is the store itself", remedy="name another")
    added = opened.add(source.searches(most=ALL_SEARCHES))
    click.echo(f"added: {_searches(added)} from {source.location}")


@command.command("add")
@click.argument("sessions", metavar="SESSION...", nargs=-1, required=True, type=options.folder)
@options.setting("store")
def add(sessions: tuple[Path, ...], store: str | None) -> None:
    """Add the results of these sessions, such as those of another machine."""
    from tuner.session.session import Session
    from tuner.tuning.warm_start import searches_of

    opened, found = _open_knowledge(store), []
    for folder in sessions:
        with Session.open(folder, read_only=True) as session:
            found += searches_of(session)
    click.echo(f"added: {_searches(opened.add(found))} to {opened.location}")


def _open_knowledge(option: str | None) -> KnowledgeStore:
    from tuner.session.database import find_store
    from tuner.session.knowledge import KnowledgeStore

    place = find_store(option, os.environ)
    if place is None:
        raise InputError("there is no store: it is `none`", remedy="name one with --store")
    return KnowledgeStore(place)


def _searches(count: int) -> str:
    return f"{count} search" if count == 1 else f"{count} searches"
