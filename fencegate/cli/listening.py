"""The sockets of a data port that several workers share: one set a worker, made by their supervisor.

``SO_REUSEPORT``: the kernel spreads new connections evenly over the sets. With one socket for all, whichever worker is
quickest takes a whole burst, and keep-alive makes that last. The supervisor holds every socket open as well, so that
connections which a killed worker had not accepted yet wait for the next one instead of being reset.
"""

from __future__ import annotations

import socket

from fencegate.gateway.listener import BACKLOG

_Address = tuple[socket.AddressFamily, tuple[str, int]]


class SharedPort:
    """``host:port``, port 0 for a free one. Raises ``OSError`` where it is taken, also by another with REUSEPORT."""

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        resolved = dict.fromkeys((info[0], str(info[4][0])) for info in found)
        self._addresses: list[_Address] = []
        for family, name in resolved:
            # SO_REUSEPORT would let two gateways take one port, each a part of the other's clients.
            with _listening(family, name, port, shared=False) as alone:
                port = alone.getsockname()[1]
            self._addresses.append((family, (name, port)))
        self.port = port

    def sockets(self) -> list[socket.socket]:
        """A set of listening sockets of its own, to accept from and to hold."""
        made: list[socket.socket] = []
        try:
            for family, (name, port) in self._addresses:
                made.append(_listening(family, name, port, shared=True))
        except OSError:
            close_all(made)
            raise
        return made


def close_all(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _listening(family: socket.AddressFamily, name: str, port: int, *, shared: bool) -> socket.socket:
    return socket.create_server((name, port), family=family, backlog=BACKLOG, reuse_port=shared)
