"""Where a store is: what `--store` or the environment says, or a file of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy import URL

ENVIRONMENT = "TUNE_STORE"
NONE = "none"
FILE_NAME = "knowledge.sqlite"
_REMEDY = (
    "name a file, a URL such as postgresql+psycopg://HOST/DATABASE "
    "(https://docs.sqlalchemy.org/core/engines.html), or `none`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A database; `explicit` says that the command line named it."""

    url: URL
    explicit: bool = False

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database, None for one on a server."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def __str__(self) -> str:
        """Name it without its password."""
        return str(self.file or self.url.render_as_string(hide_password=True))


def find_place(option: str | None, environment: Mapping[str, str]) -> Place | None:
    """Find the store of a run: the option's, else `TUNE_STORE`'s, else the user's own file.

    None where there is to be none. Raises `InputError` for text that names no database.
    """
    given = option if option is not None else environment.get(ENVIRONMENT)
    source = "--store" if option is not None else ENVIRONMENT
    if given is None:
        from platformdirs import user_data_path

        return Place(_file_url(user_data_path("kernel-tune") / FILE_NAME))
    if given.strip() == NONE:
        return None
    if not given.strip():
        raise InputError(f"{source} is empty", remedy=_REMEDY)
    explicit = option is not None
    if "://" in given:
        return Place(_url(given.strip(), source), explicit)
    return Place(_file_url(Path(given)), explicit)


def without_password(text: str) -> str:
    """Return what `--store` was given with the password of a URL starred out."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if "://" not in text:
        return text
    try:
        return make_url(text).render_as_string(hide_password=True)
    except (ArgumentError, ValueError):
        return text.partition("://")[0] + "://..."


def _file_url(path: Path) -> URL:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(path.expanduser().absolute()))


def _url(text: str, source: str) -> URL:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    shown = without_password(text)
    try:
        url = make_url(text)
        # Loads the driver, so that a missing one is told before anything is measured.
        url.get_dialect().import_dbapi()
    except NoSuchModuleError as error:
        raise InputError(
            f"{source}: SQLAlchemy knows no database {url.drivername!r}", remedy=_REMEDY
        ) from error
    except (ArgumentError, ValueError) as error:
        raise InputError(f"{source}: {shown!r} is no database URL", remedy=_REMEDY) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"{source}: the driver of {url.drivername} is not installed: there is no module "
            f"{error.name!r}",
            remedy=f"install it in the same environment, such as `pip install {error.name}`, or "
            "name another driver, as in postgresql+psycopg://",
        ) from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError(f"{source}: {shown!r} keeps nothing", remedy="name a file")
    return url
