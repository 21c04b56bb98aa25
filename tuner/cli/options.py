"""Options that several commands have, and readers for those with a syntax of their own."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from tuner import plugins
from tuner.model.settings import (
    MCTS_ROUNDS,
    POLICIES,
    SEARCHERS,
    RunSettings,
    duration_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tuner.model.cluster import TlsFiles

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHARE = re.compile(r"(\d+(?:\.\d+)?(?:e-\d+)?)\s*(%?)")


def seed(text: str) -> int:
    """Read a seed that every searcher takes."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise click.BadParameter(f"{text!r} is not a whole number from 0 to {2**32 - 1}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time such as `90s`, `5m` or `1h30m`."""
    try:
        return duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def searcher(text: str) -> str:
    """Check a searcher's name; a strategy is checked where Kernel Tuner is loaded."""
    family, _, strategy = text.partition(":")
    families = plugins.names_of(plugins.SEARCHERS)
    if text in SEARCHERS or (family in families and strategy):
        return text
    known = ", ".join((*SEARCHERS, *(f"{one}:<strategy>" for one in families)))
    raise click.BadParameter(f"{text!r} is none of {known}")


def share(text: str) -> float:
    """Read a share: `2%`, `2 %` or `0.02`."""
    match = _SHARE.fullmatch(text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0.0 <= value < 1.0:
        raise click.BadParameter(f"{text!r} is not a share from 0 to 100 %; write 2% or 0.02")
    return value


def folder(text: str) -> Path:
    """Read a folder's name; an empty one, as of an unset variable, is not the current folder.

    One that the system won't even look for, too long or below what nobody may read, is refused.
    """
    if not text.strip():
        raise click.BadParameter("no folder is named; `.` is the current one")
    path = Path(text)
    try:
        path.exists()
    except OSError as error:
        raise click.BadParameter(f"{text!r}: {error.strerror}") from error
    return path


def assignment(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE` at its first equals sign."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def unique(pairs: tuple[tuple[str, str], ...], what: str) -> dict[str, str]:
    """Return the pairs as a mapping; a name given twice is a usage error."""
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise click.UsageError(f"{what} {', '.join(repeated)} is given more than once")
    return dict(pairs)


def percent(text: str) -> float:
    """Read a number from 0 to 100; NaN is none."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 100.0:
        raise click.BadParameter(f"{text!r} is not a number from 0 to 100")
    return value


_SETTINGS = {"time": "time_s", "workload": "workloads", "operator": "operators"}


def settings_of(context: click.Context, values: Mapping[str, Any]) -> RunSettings:
    """Collect the settings of a run that stand on the command line."""

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    known = RunSettings.__optional_keys__
    settings = {_SETTINGS.get(n, n): v for n, v in values.items() if given(n)}
    if "operators" in settings:
        settings["operators"] = unique(settings["operators"], "operator")
    if "peer" in settings or "peers" in settings:
        settings["peers"] = settings.get("peer") or True
    return cast(RunSettings, {name: value for name, value in settings.items() if name in known})


# Whole options, for commands where they mean the same.
space = click.option(
    "--space", type=FILE, help="The search space; by default search_spaces/**/KERNEL.yaml."
)
kernel = partial(
    click.option,
    "--kernel",
    metavar="NAME[,NAME]",
    help="The kernel, or the kernels, where the file has several.",
)
instantiate = click.option(
    "--instantiate",
    metavar="ARGUMENTS",
    multiple=True,
    help="Which instantiation of a template to tune: 'bf16, 8' or 'scale<__nv_bfloat16, 8>'.",
)
include = click.option(
    "--include",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Where the project's headers are; repeatable.",
)
moved_space = click.option(
    "--space", type=FILE, help="The session's search space, where it is no longer where it was."
)
policy = click.option(
    "--policy",
    type=click.Choice(POLICIES),
    help="What chooses the template that a round builds on; by default greedy, and mcts from "
    f"{MCTS_ROUNDS} rounds on.",
)
gpus = click.option(
    "--gpus",
    metavar="all|0,1",
    help="The GPUs that share the workloads, each timing its own; with recorded and host, how many "
    "of them side by side.",
)
surroundings = click.option(
    "--surroundings",
    metavar="NAME",
    default="auto",
    help="What the kernel is timed in: auto (the neighbours that the space gives each workload, "
    "else alone), alone, or the name of some that the space gives.",
)
variants_within = click.option(
    "--variants-within",
    metavar="SHARE",
    type=share,
    help="How much slower than its best a workload may run, to save variants; 2 % by default.",
)
max_variants = click.option(
    "--max-variants",
    metavar="N",
    type=click.IntRange(min=1),
    help="Keep the best N variants, instead of --variants-within.",
)
prune = click.option(
    "--no-prune",
    "prune",
    flag_value=False,
    default=True,
    help="Try configs too that the space's `prune` leaves out as slow.",
)
store = click.option(
    "--store",
    metavar="URL|FILE|none",
    help="The store of past runs, to start from and to add to: a file, a database's URL, or none; "
    "by default $TUNE_STORE, or a file of your own.",
)
copy_session = click.option(
    "--copy-session",
    is_flag=True,
    help="Copy the session to the store as well, a PostgreSQL server, while the run goes on.",
)
trust = click.option(
    "--trust", is_flag=True, help="Run the session's reference, Python that you have read."
)
token = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The token that coordinator and workers share; by default $TUNE_CLUSTER_TOKEN.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

# Options that want a `help` of each command's own; `count` wants its name, too.
count = partial(click.option, metavar="N", type=click.IntRange(min=1))
jobs = partial(
    count, "--jobs", help="How many compilers run at a time; by default one for each core."
)
time = partial(click.option, "--time", metavar="TIME", type=seconds)
workload = partial(click.option, "--workload", metavar="T=1024,...", multiple=True)
operator = partial(click.option, "--operator", metavar="NAME=VALUE", multiple=True, type=assignment)
session = partial(click.option, "--session", metavar="DIR", type=folder)
resume = partial(
    click.option,
    "--resume",
    metavar="DIR",
    type=folder,
    help="Go on with the session in this folder.",
)
sources = partial(
    click.option,
    "--sources",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)


def tls(command: Callable[..., None]) -> Callable[..., None]:
    """Declare the certificates of a cluster's connections."""
    pem = partial(click.option, metavar="PEM", type=click.Path(path_type=Path))
    authority = pem("--tls-ca", help="The certificate that signed all of the cluster's.")
    certificate = pem("--tls-cert", help="The certificate to show.")
    key = pem("--tls-key", help="Its key, where that is not in the same file.")
    return authority(certificate(key(command)))


def tls_files(
    authority: Path | None, certificate: Path | None, key: Path | None
) -> TlsFiles | None:
    """Collect the certificates; one without the other is a usage error."""
    if authority is None and certificate is None and key is None:
        return None
    if authority is None or certificate is None:
        raise click.UsageError("--tls-ca and --tls-cert are needed together")
    from tuner.model.cluster import TlsFiles

    return TlsFiles(authority, certificate, key)


def asker(trusted: bool) -> Callable[[str], bool]:
    """Make what asks whether a stranger's Python may run: on a terminal, unless it is trusted."""

    return lambda question: trusted or (on_terminal() and click.confirm(question, err=True))


def on_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_one_choice(within: float | None, most: int | None) -> None:
    """Refuse both ways of choosing variants at once."""
    if within is not None and most is not None:
        raise click.UsageError("--variants-within and --max-variants exclude one another")


def enough(default: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare `--enough`, with what it is by default."""
    return click.option(
        "--enough",
        metavar="SHARE",
        type=share,
        help="End the search of a workload where what is untried is thought to save less than this "
        f"share of the best time; {default:.1%} by default.",
    )


def peers(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare `--peers` and, as often as one likes, `--peer NAME`; the help begins with `text`."""
    every = click.option(
        "--peers", is_flag=True, help=f"{text} the implementations that KERNEL.py names as peers."
    )
    some = click.option("--peer", metavar="NAME", multiple=True, help="Only this peer; repeatable.")
    return lambda command: every(some(command))
