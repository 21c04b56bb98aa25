"""Reach a scheduler: Dask's settings, TLS, and what is wrong where nobody answers."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import resource
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tuner.model.cluster import TlsFiles
from tuner.model.errors import DeviceError, InputError

if TYPE_CHECKING:
    from distributed.core import ConnectionPool
    from distributed.security import Security

# What of Dask's own settings matters here, for coordinator and workers, whatever a file of the
# user's says: `distributed` reads them when connections and workers are made.
DASK = {
    # An address that doesn't answer is told soon, not after half a minute.
    "distributed.comm.timeouts.connect": "10s",
    # A connection through which nothing comes for so long is dead: a host that lost the network
    # must not hold its calls for hours.
    "distributed.comm.timeouts.tcp": "30s",
    # A call is sent once: what is to be tried again is tried by us, elsewhere, and counted.
    "distributed.comm.retry.count": 0,
    # Dask samples its threads every 10 ms and looks at the clock every 20 ms: on the CPU that runs
    # or launches what is being timed.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    # And asks the system for its load twice a second.
    "distributed.admin.system-monitor.interval": "10s",
    # Nothing but the measuring process may touch the GPU.
    "distributed.diagnostics.nvml": False,
}
# Dask's loggers tell of every connection; what matters here becomes one message of ours. asyncio's
# tells of calls that were given up with a worker.
LOGGERS = ("distributed", "tornado", "asyncio")
LOOPBACK = "127.0.0.1"

PROBE_S = 1.0
# Enough for any cluster, and soon counted through by programs that close all files.
MOST_FILES = 65536

Role = Literal["client", "worker"]
_T = TypeVar("_T")
_PORT = re.compile(r"[0-9]{1,5}")


def require_dask() -> None:
    """Raise `DeviceError` unless Dask is installed; prepare it for our use."""
    if find_spec("distributed") is None:
        raise DeviceError(
            "Dask is not installed, which a cluster needs",
            remedy="pip install -e '.[cluster]' in the checkout",
        )
    import dask
    import distributed  # noqa: F401 - it sets its loggers' levels when it is imported

    dask.config.set(DASK)
    # Several of them have levels of their own.
    for name in [*logging.root.manager.loggerDict, *LOGGERS]:
        if name.partition(".")[0] in LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def allow_connections() -> None:
    """Let this process have as many open files as it may: each connection to a worker is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def security_of(tls: TlsFiles | None, role: Role) -> Security:
    """Make Dask's security of PEM files, or of its own configuration where none are given.

    Raises `InputError` for a file that cannot be used.
    """
    from distributed.security import Security

    if tls is None:
        return Security()
    key = tls.key or tls.certificate
    for path in (tls.authority, tls.certificate, key):
        if not path.is_file():
            raise InputError("there is no such file", path=path)
    try:
        trusted = ssl.create_default_context(cafile=str(tls.authority))
    except ssl.SSLError as error:
        message = f"is no certificate of an authority: {error}"
        raise InputError(message, path=tls.authority) from error
    try:
        # Dask would ask for a passphrase on a terminal, in each process, and wait for ever.
        trusted.load_cert_chain(tls.certificate, key, password=partial(_refused_passphrase, key))
    except ssl.SSLError as error:
        if tls.key is None:
            message, remedy = "holds no key of the certificate", "name the key's file: --tls-key"
        else:
            message, remedy = "certificate and key do not fit", f"the key is taken from {key}"
        raise InputError(f"{message}: {error}", path=tls.certificate, remedy=remedy) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=key) from error
    ours = {f"tls_{role}_cert": str(tls.certificate), f"tls_{role}_key": str(key)}
    return Security(require_encryption=True, tls_ca_file=str(tls.authority), **ours)


def _refused_passphrase(key: Path) -> str:
    raise InputError(
        "the key has a passphrase, and nobody is there to enter it",
        path=key,
        remedy=f"take it off in a copy that only you can read: openssl pkey -in {key} -out key.pem",
    )


def require_address(address: str) -> str:
    """Complete `HOST:PORT`; raise `InputError` for what is no address of a scheduler."""
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    known = scheme in ("", "tcp", "tls") and host and _PORT.fullmatch(port)
    if not known or not 0 < int(port) < 1 << 16:
        raise InputError(
            f"{address!r} is not the address of a Dask scheduler",
            remedy="write it as the scheduler says it: tcp://HOST:8786, or tls://HOST:8786",
        )
    return f"{scheme or 'tcp'}://{place}"


def require_scheme(address: str, security: Security, role: Role) -> None:
    """Raise `InputError` for `tls` without certificates, and for `tcp` with them."""
    if address.startswith("tls:") and not security.get_connection_args(role).get("ssl_context"):
        raise InputError(
            f"{address} needs certificates",
            remedy="name them with --tls-ca, --tls-cert and --tls-key",
        )
    if address.startswith("tcp:") and security.require_encryption:
        raise InputError(
            f"certificates are given, and {address} is without encryption",
            remedy=f"use tls://{address.partition('://')[2]}",
        )
    if address.startswith("tcp:") and not _is_loopback(address):
        raise InputError(
            f"{address} is without encryption: whoever reaches it could run code on every host",
            remedy=f"use tls://{address.partition('://')[2]}, with --tls-ca and --tls-cert "
            "(docs/clusters.md); tcp is for this machine alone",
        )


def _is_loopback(address: str) -> bool:
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def require_scheduler(address: str, security: Security, role: Role, timeout_s: float) -> None:
    """Raise `DeviceError` with the reason unless a scheduler answers at this address."""
    require_scheme(address, security, role)

    async def identity() -> Any:
        async with make_connections(security, role, timeout_s) as pool:
            return await asyncio.wait_for(pool(address).identity(n_workers=0), timeout_s)

    with refused_connection(address):
        said = run_without_pickles(identity())
    if not isinstance(said, dict) or said.get("type") != "Scheduler":
        raise DeviceError(f"what answers at {address} is no Dask scheduler")


def make_connections(security: Security, role: Role, timeout_s: float) -> ConnectionPool:
    """Make the connections to all of a cluster; what comes is no more than plain values."""
    from distributed.core import ConnectionPool

    arguments = security.get_connection_args(role)
    return ConnectionPool(
        MOST_FILES, deserialize=False, connection_args=arguments, timeout=timeout_s
    )


def run_without_pickles(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a loop of its own, in whose thread Dask opens no pickle.

    One can run code, and Dask opens those that come before its caller sees a message: it has no
    setting for it.
    """
    from distributed.protocol import core

    if not isinstance(core.pickle, _RefusingPickle):
        core.pickle = _RefusingPickle(core.pickle)
    _thread.refuses = True
    try:
        return asyncio.run(coroutine)
    finally:
        _thread.refuses = False


_thread = threading.local()


class _RefusingPickle:
    """Dask's module for pickles, which opens none in threads that refuse them."""

    def __init__(self, pickle: Any) -> None:
        self.dumps, self._loads = pickle.dumps, pickle.loads

    def loads(self, *arguments: Any, **options: Any) -> Any:
        if getattr(_thread, "refuses", False):
            raise ValueError("it sent a pickle, which could run code here")
        return self._loads(*arguments, **options)


@contextmanager
def refused_connection(address: str) -> Iterator[None]:
    """Turn what a connection fails with into one `DeviceError` that says why."""
    from distributed.comm.core import CommClosedError

    try:
        yield
    # Of what does not speak Dask's language the first bytes are taken for a size.
    except (OSError, CommClosedError, TimeoutError, MemoryError, ValueError) as error:
        text = " ".join(map(str, _causes(error)))
        if "ertificate" in text or "CERTIFICATE" in text or "tlsv1 alert" in text.lower():
            raise DeviceError(
                f"the certificates do not fit those of the scheduler at {address}: {_last(error)}",
                remedy="both sides need certificates that the authority of --tls-ca has signed",
            ) from error
        if address.startswith("tls:") and "SSL" in text.upper():
            raise DeviceError(
                f"what answers at {address} speaks no TLS, or refuses this certificate: "
                f"{_last(error)}",
                remedy="start the scheduler with --tls-ca-file, --tls-cert and --tls-key, and use "
                "certificates that one authority has signed",
            ) from error
        why = unreachable(address, PROBE_S) or _last(error)
        raise DeviceError(
            f"no Dask scheduler answers at {address}: {why}",
            remedy="`dask scheduler` prints its address; with certificates it begins with tls://",
        ) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def unreachable(address: str, timeout_s: float) -> str:
    """Say why the system connects nobody to an address; "" where it does.

    Dask tries until its time is over, and tells of the last try, which that often cut off.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def _last(error: BaseException) -> str:
    """Return the innermost reason, which names what happened."""
    said = [str(cause) for cause in _causes(error) if str(cause)]
    if not said and isinstance(error, TimeoutError):
        return "nothing was heard in time"
    return said[-1] if said else type(error).__name__
