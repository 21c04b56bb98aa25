"""A scheduler that cannot be reached is one error that says why."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from certificates import Authority
from cluster_processes import free_port
from cryptography.hazmat.primitives import serialization
from distributed import LocalCluster

from tuner.extensions.scale.cluster import network
from tuner.extensions.scale.cluster.network import (
    require_address,
    require_dask,
    require_scheduler,
    security_of,
)
from tuner.model.cluster import TlsFiles
from tuner.model.errors import DeviceError, InputError

SHORT_S = 2.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[str]:
    """The address of a scheduler that wants certificates."""
    require_dask()
    from distributed.security import Security

    cert, key = map(str, authority.sign("scheduler"))
    security = Security(
        require_encryption=True,
        tls_ca_file=str(authority.certificate),
        tls_scheduler_cert=cert,
        tls_scheduler_key=key,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_worker_cert=cert,
        tls_worker_key=key,
    )
    with LocalCluster(
        n_workers=0,
        processes=False,
        protocol="tls://",
        host="tls://127.0.0.1",
        security=security,
        dashboard_address=None,
    ) as cluster:
        yield str(cluster.scheduler_address)


def tls_of(authority: Authority, name: str = "ours") -> TlsFiles:
    return TlsFiles(authority.certificate, *authority.sign(name))


@pytest.mark.parametrize(
    ("given", "address"),
    [("node:8786", "tcp://node:8786"), ("tls://10.0.0.1:1", "tls://10.0.0.1:1")],
)
def test_an_address_is_completed(given: str, address: str) -> None:
    assert require_address(given) == address


@pytest.mark.parametrize(
    "given",
    ["", "node", "node:port", ":8786", "http://node:8786", "ucx://a:1", "a:0", "a:65536", "a:٣"],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(InputError, match=r"(?s)is not the address.*tcp://HOST:8786"):
        require_address(given)


@pytest.mark.parametrize("role", ["client", "worker"])
def test_certificates_of_one_authority_fit(
    encrypted: str, authority: Authority, role: network.Role
) -> None:
    require_scheduler(encrypted, security_of(tls_of(authority), role), role, 20.0)


def test_a_certificate_of_another_authority_does_not_fit(encrypted: str, tmp_path: Path) -> None:
    security = security_of(tls_of(Authority(tmp_path)), "client")
    with pytest.raises(DeviceError, match=r"(?s)certificates do not fit.*--tls-ca"):
        require_scheduler(encrypted, security, "client", SHORT_S)


def test_a_certificate_that_another_authority_signed_does_not_get_in(
    encrypted: str, authority: Authority, tmp_path: Path
) -> None:
    strange = TlsFiles(authority.certificate, *Authority(tmp_path).sign("strange"))
    with pytest.raises(DeviceError, match=r"certificates do not fit|refuses this certificate"):
        require_scheduler(encrypted, security_of(strange, "client"), "client", SHORT_S)


def test_a_key_with_a_passphrase_is_told_and_nobody_is_asked(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, plain = authority.sign("locked")
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(plain.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a secret"),
        )
    )
    tls = TlsFiles(authority.certificate, certificate, locked)
    with pytest.raises(InputError, match=r"(?s)locked\.key: the key has a passphrase.*openssl"):
        security_of(tls, "worker")


def test_encryption_on_one_side_alone_is_told(encrypted: str, authority: Authority) -> None:
    place = encrypted.partition("://")[2]
    with pytest.raises(InputError, match=r"(?s)needs certificates.*--tls-ca"):
        require_scheduler(encrypted, security_of(None, "client"), "client", SHORT_S)
    with pytest.raises(InputError, match=rf"(?s)without encryption.*tls://{place}"):
        security = security_of(tls_of(authority), "client")
        require_scheduler(f"tcp://{place}", security, "client", SHORT_S)
    with pytest.raises(DeviceError, match=r"no Dask scheduler answers.*|.*TLS"):
        require_scheduler(f"tcp://{place}", security_of(None, "client"), "client", SHORT_S)


def test_an_address_that_does_not_answer_is_told() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    why = "refused"
    with pytest.raises(DeviceError, match=rf"(?s)no Dask scheduler answers at {address}.*{why}"):
        require_scheduler(address, security_of(None, "client"), "client", SHORT_S)


def test_a_name_that_nobody_knows_is_told_as_one(authority: Authority) -> None:
    address = "tls://nobody.invalid:8786"
    with pytest.raises(DeviceError, match=f"no Dask scheduler answers at {address}") as told:
        require_scheduler(address, security_of(tls_of(authority), "client"), "client", SHORT_S)
    assert re.search("not known|resolution|No address", told.value.message)


def test_who_takes_a_connection_and_says_nothing_is_told_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeviceError, match=f"no Dask scheduler answers at {address}") as told:
            require_scheduler(address, security_of(None, "client"), "client", SHORT_S)
    assert "TimeoutError" not in told.value.message


def test_what_is_no_scheduler_is_told() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def speak_http() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = Thread(target=speak_http, daemon=True)
        thread.start()
        with pytest.raises(DeviceError, match=f"no Dask scheduler answers at {address}"):
            require_scheduler(address, security_of(None, "client"), "client", SHORT_S)


@pytest.mark.parametrize("missing", ["authority", "certificate", "key"])
def test_a_file_that_is_no_certificate_is_named(
    authority: Authority, tmp_path: Path, missing: str
) -> None:
    good = tls_of(authority)
    gone = tmp_path / "gone.pem"
    files = {"authority": good.authority, "certificate": good.certificate, "key": good.key}
    with pytest.raises(InputError, match=r"gone\.pem: there is no such file"):
        security_of(TlsFiles(**{**files, missing: gone}), "client")
    gone.write_text("garbage", encoding="utf-8")
    with pytest.raises(InputError, match=r"is no certificate|do not fit"):
        security_of(TlsFiles(**{**files, missing: gone}), "client")


def test_a_key_of_another_certificate_is_told(authority: Authority) -> None:
    mixed = TlsFiles(authority.certificate, authority.sign("one")[0], authority.sign("another")[1])
    with pytest.raises(InputError, match="certificate and key do not fit"):
        security_of(mixed, "client")


def test_a_certificate_without_its_key_is_told_where_to_name_it(authority: Authority) -> None:
    alone = TlsFiles(authority.certificate, authority.sign("one")[0], None)
    with pytest.raises(InputError, match=r"(?s)holds no key of the certificate.*--tls-key"):
        security_of(alone, "client")


def test_without_dask_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    with pytest.raises(
        DeviceError, match=r"(?s)Dask is not installed.*pip install -e '\.\[cluster\]'"
    ):
        require_dask()
