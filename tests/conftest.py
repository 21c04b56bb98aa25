"""No test reads or writes what the user's own runs keep, ignores Ctrl-C or fails for being slow.

And a PostgreSQL server for those that ask for one.
"""

import gc
import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from kept import kept_folder
from postgres_server import PostgresServer, programs, running

pytest_plugins = ("cpu_time", "selection")

os.environ["TUNE_STORE"] = "none"
os.environ["TUNER_CACHE_DIR"] = str(kept_folder())
# Where it is kept whose Python may run.
os.environ["XDG_STATE_HOME"] = f"{tempfile.gettempdir()}/tune-tests-{os.getuid()}"

# A test has no screen unless it says so; pytest-xdist states one of 24 lines.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A shell starts background jobs of a script with SIGINT ignored, and so would be every `tune` that
# a test starts and interrupts. `tune` itself goes on ignoring it there, as such jobs should.
ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
if ignored and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long hypothesis takes to draw or to run an example says how busy the machine is.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

databases = itertools.count()

# Of the million objects that thousands of tests and what they import make, none ends before them.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on, among what tests make."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of the tests' own."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install -e '.[postgresql]'")
    folder = programs()
    if folder is None:
        pytest.skip("needs a PostgreSQL server: apt-get install postgresql")
    with running(folder) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database, with its password."""
    with postgres.database(f"tune_{next(databases)}") as url:
        yield url
