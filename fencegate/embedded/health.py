"""Is this etcd node healthy? Asked over and over without ever blocking: a node without quorum may not answer at all."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Final, Self

_PATIENCE: Final = 1.0


class Health:
    """A question to ``/health`` of a node at ``host``, which makes a linearizable read and says how that went."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._asked_at = 0.0
        self._answer = b""

    def look(self) -> bool:
        """Takes one look, at once: whether the node has said that it is healthy. Asks (again) where that is due."""
        if self._socket is None or time.monotonic() - self._asked_at > _PATIENCE:
            self._ask()
        return self._hear()

    def _ask(self) -> None:
        self.close()
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.settimeout(0.5)  # on this machine: taken or refused at once
            connection.connect(self._address)
            connection.sendall(b"GET /health HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            connection.setblocking(False)
        except OSError:
            connection.close()
            return
        self._socket, self._asked_at, self._answer = connection, time.monotonic(), b""

    def _hear(self) -> bool:
        if self._socket is None:
            return False
        try:
            part = self._socket.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        self._answer += part
        if part:
            return False
        self.close()
        return b" 200 " in self._answer.partition(b"\r\n")[0] and b'"health":"true"' in self._answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
