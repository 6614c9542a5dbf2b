"""What an idle keep-alive connection costs the gateway in memory: thousands of them, each after one request."""

from __future__ import annotations

import resource
import socket

from bench.ledger_writes import ROUTE
from bench.rounds import Answer, plain
from bench.servers import Gateway, gateway, postgres, rss_kib

COUNT = 4000
_REQUEST = b"GET /.well-known/fencegate/leader/ledger HTTP/1.1\r\nHost: gate.example\r\n\r\n"


def run(rounds: int, seconds: float) -> list[Answer]:
    """Each round opens as many connections again, to a new gateway."""
    _allow_files(COUNT + 1000)
    found = []
    with postgres() as database:
        for _ in range(min(rounds, 3)):
            with gateway(database, ROUTE) as ours:
                found.append(_each(ours))
    return [plain(f"an idle keep-alive connection, of {COUNT:,}", "≤ 4 KiB", found, " KiB")]


def _each(ours: Gateway) -> float:
    """KiB of resident memory a connection. The first ones warm up what is shared and are not counted."""
    host, _, port = ours.address.rpartition(":")
    held = [_asked(host, int(port)) for _ in range(500)]
    before = rss_kib(ours.pid)
    held += [_asked(host, int(port)) for _ in range(COUNT)]
    kib = (rss_kib(ours.pid) - before) / COUNT
    for connection in held:
        connection.close()
    return kib


def _asked(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), 10)
    connection.sendall(_REQUEST)
    if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
        raise RuntimeError("an idle connection's only request was not answered")
    return connection


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard) if hard > 0 else count, hard))
