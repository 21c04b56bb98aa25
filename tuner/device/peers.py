"""Peers: other implementations of an operator, which its reference file names and runs."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tuner.device.base import Program
from tuner.device.inputs import load_module
from tuner.model.errors import DeviceError, KernelError, WorkerError
from tuner.model.kernel import Workload
from tuner.model.trial import Status

if TYPE_CHECKING:
    from pathlib import Path

PeerFunction = Callable[..., Mapping[str, Any] | None]

_EXAMPLE = 'peers = {"pytorch": pytorch}, with def pytorch(tensors, axes, **operator)'
_SPACES = frozenset(" \t\r\n")


class PeerError(WorkerError):
    """Report a peer that failed, with the status of its trial.

    `not_recorded` is one that is not installed (ImportError), `constraint` one that has no
    counterpart of this operator or shape (NotImplementedError). `sticky` says that it may have
    left its process unusable.
    """

    def __init__(self, message: str, *, status: Status = Status.LAUNCH) -> None:
        super().__init__(message)
        self.status, self.sticky = status, True


def load_peers(path: Path) -> dict[str, PeerFunction]:
    """Import the reference file and return its `peers`, {} where it has none.

    Raises `KernelError` with file and line for anything but a dict of functions by name.
    """
    module = load_module(path)
    # torch.compile and Triton look up a function's module by its name.
    sys.modules[module.__name__] = module
    peers = getattr(module, "peers", {})
    if not isinstance(peers, Mapping):
        raise _mistake(path, f"`peers` is a {type(peers).__name__}, not a dict")
    for name, function in peers.items():
        if not _is_name(name):
            raise _mistake(path, f"`peers` has the name {name!r}: a text without spaces is needed")
        if not callable(function):
            raise _mistake(path, f"the peer {name!r} is a {type(function).__name__}, no function")
    return dict(peers)


def chosen_peers(path: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Return the peers of a reference file by name, all of them where no `names` are given.

    Raises `KernelError` where there are none, or none of such a name.
    """
    known = load_peers(path)
    if not known:
        raise KernelError(
            "names no peers", path=path, remedy=f"write {_EXAMPLE}; or leave --peers out"
        )
    wanted = tuple(dict.fromkeys(names)) or tuple(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise KernelError(
            f"has no peer named {', '.join(map(repr, unknown))}",
            path=path,
            line=_line_of_peers(path),
            remedy=f"its peers: {', '.join(known)}",
        )
    return wanted


def require_gpu(device: str) -> None:
    """Raise `DeviceError` where peers are to run on the CPU."""
    if device == "host":
        raise DeviceError(
            "peers run on a GPU only, not on --device host",
            remedy="use a GPU (--device cuda) or a recording that has them (--device recorded), "
            "or leave --peers out",
        )


def peer_program(name: str, reference: Path, workload: Workload) -> Program:
    """Make what a device runs for a peer: no cubin and no launches, only its name."""
    text = reference.read_bytes()
    key = hashlib.sha256(b"\0".join((b"peer", name.encode(), text))).hexdigest()
    return Program(key, workload, (), peer=name)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name) and not _SPACES & set(name)


def _mistake(path: Path, message: str) -> KernelError:
    line = _line_of_peers(path)
    return KernelError(message, path=path, line=line, remedy=f"write {_EXAMPLE}")


def _line_of_peers(path: Path) -> int | None:
    for node in ast.parse(path.read_bytes()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(one, ast.Name) and one.id == "peers" for one in targets):
            return node.lineno
    return None
