"""How the program ends: error messages, exit codes and interruption."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import click
from click.exceptions import Exit

from tuner.app.environment import resume_line
from tuner.model.errors import INTERRUPTED, InputError, Interrupted, TunerError

# `tune check`: nothing is wrong that was seen, and the reference was not compared.
NOT_SHOWN = 5
# Of a line of an error: a stranger's text may be of any length.
MOST_CHARACTERS = 4000
# What the system says of a name that a user may well have given, wherever it is first used.
_NOT_LOOKED_FOR = frozenset({errno.ENAMETOOLONG, errno.EACCES})


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn `TunerError`, names that cannot be used and interruption into a message and a code."""
    try:
        yield
    except TunerError as error:
        click.echo(f"Error: {_from_here(str(error))}", err=True)
        raise Exit(error.exit_code) from error
    except OSError as error:
        if error.errno not in _NOT_LOOKED_FOR or error.filename is None:
            raise
        click.echo(f"Error: {_from_here(str(error.filename))}: {error.strerror}", err=True)
        raise Exit(InputError.exit_code) from error
    except (MemoryError, RecursionError) as error:
        what = (
            "nested too deep" if isinstance(error, RecursionError) else "too large for the memory"
        )
        click.echo(f"Error: what was read is {what}", err=True)
        raise Exit(InputError.exit_code) from error
    except KeyboardInterrupt as interrupt:
        how = resume_line(interrupt) if isinstance(interrupt, Interrupted) else "interrupted"
        click.echo(how, err=True)
        # Where it came while Python ran a string, as making a dataclass does, the interpreter
        # remembers that and `python -m tuner` would end by SIGINT, whatever the exit code; running
        # another string makes it forget (`run_eval_code_obj` in CPython's pythonrun.c).
        exec("")  # noqa: S102
        raise Exit(INTERRUPTED) from interrupt


@contextmanager
def resumed_by(command: tuple[str, ...]) -> Iterator[None]:
    """Turn an interruption of the block into one that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(command) from None


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C is handled."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stdout_kept_for_result(as_json: bool) -> Iterator[None]:
    """Send everything to standard error meanwhile, what kernels and child processes print too.

    Only where the result is JSON: else what is said on the way belongs to it.
    """
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def require_writable(folder: Path, option: str) -> None:
    """Refuse now, not after an hour, a folder that cannot be written to."""
    # Not `Path.exists`: a link to nothing is in the way, and what may not be looked into raises.
    places = (folder, *folder.absolute().parents)
    there = next(place for place in places if os.path.lexists(place))
    is_folder = os.path.isdir(there)  # noqa: PTH112
    if not is_folder or not os.access(there, os.W_OK | os.X_OK):
        what = "cannot be written to" if is_folder else "is no folder"
        raise InputError(what, path=there, remedy=f"choose another place with {option}")


@contextmanager
def writing(path: Path, what: str, option: str) -> Iterator[None]:
    """Tell of a result that cannot be written; `option` names another place."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the {what} cannot be written: {error.strerror or error}",
            path=path,
            remedy=f"choose another place with {option}",
        ) from error


def _from_here(text: str) -> str:
    """Shorten paths below the current folder, as the user would type them."""
    text = "\n".join(line[:MOST_CHARACTERS] for line in text.splitlines())
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return text
    if here == here.parent:
        return text
    # Not in the middle of another path, which may hold this one's text.
    return re.sub(rf"(?<![\w./-]){re.escape(str(here))}/", "", text)
