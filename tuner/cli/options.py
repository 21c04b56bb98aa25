"""Options that several commands have, and readers for those with a syntax of their own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tuner import plugins
from tuner.model.settings import (
    ASSIGNMENT,
    FOLDER,
    MONEY,
    NEW_FOLDER,
    PATH,
    SEARCHER,
    SECONDS,
    SEED,
    SETTINGS,
    SHARE,
    CallSettings,
    RunSettings,
    duration_s,
    settings_in,
)
from tuner.model.settings import FILE as SOME_FILE

if TYPE_CHECKING:
    from tuner.model.cluster import TlsFiles

Command = TypeVar("Command", bound="Callable[..., object]")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHARE = re.compile(r"(\d+(?:\.\d+)?(?:e-\d+)?)\s*(%?)")


def seed(text: str) -> int:
    """Read a seed that every searcher takes."""
    if not text.isdecimal() or int(text) > SEED.bounds["le"]:
        raise click.BadParameter(f"{text!r} is not {SEED.said}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time such as `90s`, `5m` or `1h30m`."""
    try:
        return duration_s(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def searcher(text: str) -> str:
    """Check a searcher's name; a strategy is checked where Kernel Tuner is loaded."""
    if not plugins.is_searcher(text):
        raise click.BadParameter(f"{text!r} is none of {', '.join(plugins.searchers())}")
    return text


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


class WholeNumber(click.IntRange):
    """A whole number within bounds, which click calls an integer range."""

    name = "whole number"


# How the words of an option are read, and what stands for them in a help text.
_READERS: dict[str, dict[str, Any]] = {
    SOME_FILE: {"type": FILE},
    FOLDER: {"type": click.Path(exists=True, file_okay=False, path_type=Path), "metavar": "DIR"},
    NEW_FOLDER: {"type": folder, "metavar": "DIR"},
    PATH: {"type": click.Path(path_type=Path)},
    SEARCHER: {"type": searcher, "metavar": "SEARCHER"},
    ASSIGNMENT: {"type": assignment, "metavar": "NAME=VALUE"},
    SHARE.said: {"type": share, "metavar": "SHARE"},
    SECONDS.said: {"type": seconds, "metavar": "TIME"},
    MONEY.said: {"type": click.FloatRange(min=0, min_open=True), "metavar": "MONEY"},
    SEED.said: {"type": seed, "metavar": "N"},
}


def setting(name: str, /, **changes: Any) -> Callable[[Command], Command]:
    """Declare the option of a setting, with what a command says differently of it."""
    stated = SETTINGS[name]
    form: dict[str, Any] = {"help": stated.help, "multiple": stated.several}
    if stated.within is not None:
        form |= {"metavar": "N", "type": WholeNumber(min=stated.within.bounds.get("ge"))}
    form |= _READERS.get(stated.within.said if stated.within else stated.reads, {})
    if stated.choices:
        form["type"] = click.Choice(stated.choices)
    if stated.metavar:
        form["metavar"] = stated.metavar
    if stated.default is True:
        form |= {"flag_value": False, "default": True}
    elif stated.default is False or name == "peers":
        form["is_flag"] = True
    declare = click.option(stated.option, name, **(form | changes))
    if name != "peers":
        return declare
    # `--peers` is all of them, `--peer NAME` some.
    some = click.option("--peer", metavar="NAME", multiple=True, help="Only this peer; repeatable.")
    return lambda command: declare(some(command))


def settings(
    command: str | None = None, first: str | None = None, last: str | None = None, /, **helps: str
) -> Callable[[Command], Command]:
    """Declare the options of all settings that a command offers, from the `first` to the `last`.

    Without a command they are those of `tune KERNEL.cu`. `helps` are texts of the command's own.
    """
    names = list(SETTINGS)
    names = names[names.index(first) if first else 0 : names.index(last) + 1 if last else None]
    offered = [name for name in names if command is None or command in SETTINGS[name].commands]

    def declare(function: Command) -> Command:
        for name in reversed(offered):
            function = setting(name, **({"help": helps[name]} if name in helps else {}))(function)
        return function

    return declare


def settings_of(context: click.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the settings of a run that stand on the command line."""

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    run_names = [stated.name for stated in settings_in(RunSettings) if stated.name in values]
    given = {name: values[name] for name in run_names if is_given(name)}
    if "operators" in given:
        given["operators"] = unique(given["operators"], "operator")
    if values.get("peer"):
        given["peers"] = values["peer"]
    return given


def call_settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what says how this one call goes, and no session keeps."""
    call_names = (stated.name for stated in settings_in(CallSettings))
    return {name: values[name] for name in call_names if name in values}


moved_space = click.option(
    "--space", type=FILE, help="The session's search space, where it is no longer where it was."
)
trust = click.option(
    "--trust", is_flag=True, help="Run the session's reference, Python that you have read."
)
resume = click.option(
    "--resume", metavar="DIR", type=folder, help="Go on with the session in this folder."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
# It wants a name and a `help` of each command's own.
count = partial(click.option, metavar="N", type=WholeNumber(min=1))


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


def say(text: str) -> None:
    click.echo(text, err=True)


def asker(trusted: bool) -> Callable[[str], bool]:
    """Make what asks whether a stranger's Python may run: on a terminal, unless it is trusted."""

    return lambda question: trusted or (on_terminal() and click.confirm(question, err=True))


def on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def require_one_choice(within: float | None, most: int | None) -> None:
    """Refuse both ways of choosing variants at once."""
    if within is not None and most is not None:
        raise click.UsageError("--variants-within and --max-variants exclude one another")
