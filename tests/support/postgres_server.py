"""A PostgreSQL server of the tests' own: on a loopback port, in a folder that goes away with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

OWNER, PASSWORD = "owner", "s3cret-of-the-owner"
# What the server runs as where the tests run as root, which it refuses to do.
USER = "postgres"
START_S = 60.0
PR_SET_PDEATHSIG = 1


def programs() -> Path | None:
    """Find the folder with initdb and postgres: Debian has them outside of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    return Path(on_path).parent if on_path else None


class PostgresServer:
    """One server with the superuser `OWNER`; `settings` go to its command line."""

    def __init__(self, bin_folder: Path, folder: Path, settings: Mapping[str, str]) -> None:
        self.programs, self.folder, self._settings = bin_folder, folder, settings
        self.environment: Mapping[str, str] = {}
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
        password = folder / "password"
        password.write_text(PASSWORD)
        if self._as:
            for path in (folder, password):
                shutil.chown(path, USER, USER)
        subprocess.run(
            [
                *(bin_folder / "initdb", "-D", folder / "data", "-U", OWNER, "--no-sync"),
                *("-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--locale=C"),
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            **self._as,
        )

    def url(
        self, *, user: str = OWNER, password: str = PASSWORD, database: str = "postgres"
    ) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple]:
        """Run statements as the owner; return the last one's rows."""
        import psycopg

        with psycopg.connect(self.url(database=database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """Make a database of this name, give its URL, and drop it."""
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(database=name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def add_small_disk(self, library: Path, after_bytes: int) -> None:
        """Put tables on a disk that is full once a connection has written so much there.

        `library` is built of `disk_full.c`.
        """
        small = self.folder / "small"
        small.mkdir()
        # Pytest's folders are their user's alone.
        preloaded = shutil.copy(library, self.folder)
        if self._as:
            shutil.chown(small, USER, USER)
        self.stop()
        self.environment = {
            "LD_PRELOAD": preloaded,
            "DISK_FULL_FOLDER": str(small),
            "DISK_FULL_AFTER": str(after_bytes),
        }
        self.start()
        self.execute(
            f"CREATE TABLESPACE small LOCATION '{small}'",
            f"ALTER ROLE {OWNER} SET default_tablespace = small",
        )

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "60",
            **self._settings,
        }
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", *chosen],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - tests start it from one thread
                **self._as,
            )
        self._wait()

    def stop(self) -> None:
        """End it at once, as a crash would: what was committed is there again later."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def _wait(self) -> None:
        import psycopg

        ends_s = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > ends_s:
                    raise AssertionError(f"PostgreSQL does not start: {self.log()}") from None
            time.sleep(0.05)


@contextmanager
def running(bin_folder: Path, *, durable: bool = False) -> Iterator[PostgresServer]:
    """Run a server; one that is not durable may lose data with the machine, not with a crash."""
    # Not below pytest's folders, which only their user may enter.
    folder = Path(tempfile.mkdtemp(prefix="tune-postgres-"))
    settings = {} if durable else {"fsync": "off"}
    try:
        server = PostgresServer(bin_folder, folder, settings)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
