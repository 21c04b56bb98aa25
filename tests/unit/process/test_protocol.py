"""Messages arrive whole, with what came along, or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.process.protocol import MAX_MESSAGE_BYTES, Message, pack, receive, send, unpack


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_in_order_whatever_their_size(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    messages = [Message({"a": 1}, b"payload"), Message({}, bytes(3 << 20)), Message({"text": "é"})]

    def send_all() -> None:
        for message in messages:
            send(ends[0], message.header, message.payload)

    sender = threading.Thread(target=send_all)
    sender.start()
    assert [receive(ends[1], 10.0) for _ in messages] == messages
    sender.join()
    assert [unpack(pack(one.header, one.payload)) for one in messages] == messages


def test_open_files_come_along(ends: tuple[socket.socket, socket.socket]) -> None:
    with Path(os.devnull).open("rb") as file:
        send(ends[0], {"a": 1}, b"x" * 10, [file.fileno()])
    message = receive(ends[1], 10.0)
    (descriptor,) = message.descriptors
    assert (message.header, message.payload) == ({"a": 1}, b"x" * 10)
    assert os.read(descriptor, 1) == b""
    os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EOFError),
        (b"\0\0", EOFError),
        (pack({"a": 1})[:-1], EOFError),
        (b"\xff" * 8, ValueError),
        (b"\0\0\0\3\0\0\0\0abc", ValueError),
    ],
)
def test_half_a_message_and_rubbish_are_none(
    ends: tuple[socket.socket, socket.socket], data: bytes, error: type[Exception]
) -> None:
    ends[0].sendall(data)
    ends[0].close()
    with pytest.raises(error):
        receive(ends[1], 10.0)
    with pytest.raises(ValueError, match=r"a message of|Expecting|Invalid|Unterminated"):
        unpack(data[:8] if error is EOFError else data)


def test_a_message_that_stops_halfway_is_late(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(pack({}, bytes(100))[:50])
    with pytest.raises(TimeoutError):
        receive(ends[1], 0.05)
    assert MAX_MESSAGE_BYTES == 1 << 30
