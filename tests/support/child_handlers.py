"""What runs in child processes under test: importable there, unlike the test modules."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np

from tuner.model.errors import KernelError


class Handler:
    """Answer, fail, die or hang, as asked."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._calls = 0

    def echo(self, value: object) -> object:
        return value

    def greet(self, name: str) -> str:
        self._calls += 1
        return f"{self._prefix}{name} {self._calls}"

    def pid(self) -> int:
        return os.getpid()

    def bytes_of(self, count: int) -> bytes:
        return b"x" * count

    def refuse(self, message: str) -> None:
        raise KernelError(message, path=Path("kernel.py"), line=3, remedy="write it differently")

    def divide_by_zero(self) -> float:
        return 1 / 0

    def exhaust(self) -> object:
        return np.ones(1 << 58)

    def leave(self, code: int) -> None:
        os._exit(code)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def start_a_sleeper(self) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    def hang(self) -> None:
        threading.Event().wait()


class Refusing:
    """Cannot be made."""

    def __init__(self) -> None:
        raise KernelError("cannot start", remedy="repair it")


class Dying:
    """Ends its process while it is made."""

    def __init__(self) -> None:
        os._exit(9)


class Leaving:
    """Writes a file when its process ends by itself."""

    def __init__(self, path: str) -> None:
        atexit.register(Path(path).touch)

    def hang(self) -> None:
        threading.Event().wait()
