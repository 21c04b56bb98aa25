"""A Python that has imported an engine once, without a GPU, and forks for each program it runs.

`python engine_python.py run SOCKET PROGRAM` is, to whoever starts it, a Python that runs the
program: with its own standard streams, environment, folder and exit code. What a program does to
the engine ends with its fork. The processes of one run of the tests share the server that forks,
which ends with the last of them.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

READY = b"r"
LEASE, RUN = b"l", b"p"
# What a program and its environment take, in bytes.
MOST = 1 << 20


@contextmanager
def engine_python(engine: str, path: Sequence[Path], folder: Path) -> Iterator[tuple[str, ...]]:
    """Give the words that start a Python which can import the engine; its server is in `folder`."""
    from filelock import FileLock

    place = folder / f"{engine}.socket"
    with FileLock(folder / f"{engine}.lock"):
        lease = _lease(place) or _started(engine, path, place)
    try:
        # Nothing of site-packages is needed to say what the server shall run.
        yield (sys.executable, "-I", "-S", __file__, "run", str(place))
    finally:
        lease.close()


def _lease(place: Path) -> socket.socket | None:
    """Keep the server until this connection is closed; None where there is none."""
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        connection.connect(str(place))
        connection.sendall(LEASE)
        if connection.recv(1) == READY:
            return connection
    connection.close()
    return None


def _started(engine: str, path: Sequence[Path], place: Path) -> socket.socket:
    said = place.with_suffix(".log")
    with said.open("wb") as log:
        done = subprocess.run(
            [sys.executable, __file__, "serve", str(place), engine],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    lease = _lease(place)
    assert done.returncode == 0 and lease, said.read_text(encoding="utf-8", errors="replace")
    return lease


def serve(place: Path, engine: str) -> None:
    """Import the engine, and fork for one program after another while anybody has a lease."""
    told, tell = os.pipe()
    if os.fork():
        os.close(tell)
        sys.exit(os.read(told, 1) != READY)
    os.setsid()
    import_engine(engine)
    # A fork would write it once more.
    sys.stdout.flush()
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as waiting:
        listener.bind(str(place))
        listener.listen()
        waiting.register(listener, selectors.EVENT_READ)
        os.write(tell, READY)
        leases = 0
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not listener:
                    waiting.unregister(key.fileobj)
                    leases -= 1
                    continue
                connection, _ = listener.accept()
                if connection.recv(1) == LEASE:
                    connection.sendall(READY)
                    waiting.register(connection, selectors.EVENT_READ)
                    leases += 1
                else:
                    with connection:
                        connection.sendall(b"%d" % run_in_a_fork(connection))
            if not leases:
                return


def import_engine(engine: str) -> None:
    """Import what programs will ask about, with stand-ins for what is compiled."""
    from tuner.extensions.engines.configs.asking import MODULES

    if engine == "sglang":
        import genuine_sglang

        for name in genuine_sglang.FAKED:
            sys.modules[name] = genuine_sglang._Fake(name)
        genuine_sglang.stand_in_for_triton()
        triton: Any = importlib.import_module("triton")
        triton.__version__ = "3.6.0"
        # Newer, for our own tests, than what SGLang's transformers can be imported beside.
        sys.modules["kernels"] = None  # type: ignore[assignment]
    for (of, _), module in MODULES.items():
        if of == engine:
            importlib.import_module(module)


def run_in_a_fork(connection: socket.socket) -> int:
    """Run the program that a connection tells of, and return its exit code."""
    request, streams, _, _ = socket.recv_fds(connection, MOST, 3)
    child = os.fork()
    if not child:
        _run(json.loads(request), streams)
    for stream in streams:
        os.close(stream)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(request: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = request["program"]
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    finally:
        # Not further up: what is on this stack is the server's.
        if status:
            traceback.print_exc()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def run(place: str, program: Sequence[str]) -> int:
    """Let the server run a program as if it were this process."""
    request = {"environment": dict(os.environ), "folder": str(Path.cwd()), "program": program}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        connection.sendall(RUN)
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
        return int(connection.makefile("rb").read())


if __name__ == "__main__":
    role, socket_name, *words = sys.argv[1:]
    if role == "run":
        sys.exit(run(socket_name, words))
    serve(Path(socket_name), *words)
