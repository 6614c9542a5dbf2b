"""The health question, against a listener that the test itself plays."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from fencegate.embedded import health
from fencegate.embedded.health import Health
from fencegate.testing.hand_clock import HandClock


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _ask(listener: socket.socket, answer: bytes) -> bool:
    """Whether the node that gives this answer counts as healthy."""
    with Health(listener.getsockname()[1]) as question:
        assert not question.look()  # asked; nothing has been said yet
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(4096).startswith(b"GET /health HTTP/1.0\r\n")
            connection.sendall(answer)
        for _ in range(2):  # one look reads the answer, the next its end
            assert question._socket is None or select.select([question._socket], [], [], 10)[0]
            if question.look():
                return True
            if question._socket is None:
                break
        return False


def test_a_node_that_says_so_is_healthy(listener: socket.socket) -> None:
    assert _ask(listener, b'HTTP/1.0 200 OK\r\n\r\n{"health":"true","reason":""}')


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.0 503 Service Unavailable\r\n\r\n{"health":"false","reason":"RAFT NO LEADER"}',
        b'HTTP/1.0 503 Service Unavailable\r\n\r\n{"health":"true"}',
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"",
    ],
)
def test_any_other_answer_is_not_healthy(listener: socket.socket, answer: bytes) -> None:
    assert not _ask(listener, answer)


def test_a_port_where_nobody_listens_is_not_healthy(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with Health(port) as question:
        assert not question.look()


def test_a_node_that_stays_silent_is_asked_again(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock(100.0)
    monkeypatch.setattr(health.time, "monotonic", clock)
    with Health(listener.getsockname()[1]) as question:
        assert not question.look()
        clock.now += 1.01
        assert not question.look()
        for _ in range(2):
            connection, _address = listener.accept()
            connection.close()
