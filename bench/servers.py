"""The servers of a measurement: started here, ended here, bound to loopback, with what CPU they used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from bench.load import PLAIN_TABLE
from fencegate.embedded.binaries import postgres_binaries
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import free_port
from fencegate.store import migrate

_TICK = os.sysconf("SC_CLK_TCK")
_SETTINGS = {"max_connections": "400", "shared_buffers": "2GB", "min_wal_size": "1GB"}
"""Memory as a server that is there for this has it, and see :func:`_as_if_used`."""


def cpu_seconds(pid: int) -> float:
    """CPU of a process, of its children that ended, and of those that live."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK + sum(map(cpu_seconds, children))


def rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@dataclass(frozen=True)
class Database:
    """A started Postgres with our tables and the peer's. ``binaries`` is where its programs are."""

    dsn: str
    pid: int
    binaries: Path


_shared: list[EmbeddedPostgres] = []


@contextlib.contextmanager
def postgres(*, own: bool = False) -> Iterator[Database]:
    """A server of its own; within :func:`one_postgres` a fresh database of that one server, unless ``own``."""
    if _shared and not own:
        server = _shared[0]
        name = f"bench_{secrets.token_hex(4)}"
        asyncio.run(_execute(server.dsn, f"CREATE DATABASE {name}"))
        dsn = server.dsn_of(name)
        try:
            asyncio.run(_prepare(dsn))
            yield Database(dsn, server.pid, postgres_binaries().directory)
        finally:
            asyncio.run(_execute(server.dsn, f"DROP DATABASE {name} WITH (FORCE)"))
        return
    with _server() as server:
        asyncio.run(_prepare(server.dsn))
        yield Database(server.dsn, server.pid, postgres_binaries().directory)


@contextlib.contextmanager
def one_postgres() -> Iterator[None]:
    """While it lasts, questions share one server instead of starting one each: quicker, and a little less even."""
    with _server() as server:
        _shared.append(server)
        try:
            yield
        finally:
            _shared.clear()


@contextlib.contextmanager
def _server() -> Iterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="fencegate-bench-"))
    server = EmbeddedPostgres(folder, port=0, settings=_SETTINGS)
    server.start_sync()
    try:
        asyncio.run(_as_if_used(server.dsn))
        yield server
    finally:
        server.stop_sync()
        shutil.rmtree(folder, ignore_errors=True)


async def _as_if_used(dsn: str) -> None:
    """Give a new server the files for its log that one has which ran for a while: to make one stalls it for 40 ms."""
    connection = await asyncpg.connect(dsn)
    for _ in range(64):
        await connection.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 16000000))")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


async def _prepare(dsn: str) -> None:
    await migrate.apply(dsn)
    await _execute(dsn, PLAIN_TABLE)


@dataclass(frozen=True)
class Gateway:
    """A started gateway that leads. ``address`` is ``host:port`` of its data listener."""

    address: str
    pid: int
    token: int


@contextlib.contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def gateway(
    database: Database,
    routes: str,
    *,
    module: str = "fencegate",
    node: str = "gw-1",
    leads: bool = True,
    workers: int = 1,
    python: str = sys.executable,
) -> Iterator[Gateway]:
    """``fencegate serve`` as an operator starts it, or a peer that takes the same configuration, run by ``python``.

    ``leads``: whether somebody leads the role ``ledger``; else ready is when it listens, and its ``token`` is 0.
    """
    data, admin = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="fencegate-bench-") as folder:
        path = Path(folder) / "fencegate.toml"
        path.write_text(
            f'node = "{node}"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
            f'[store]\ndsn = "{database.dsn}"\n[limits]\nin_flight = 5000\n[log]\nlevel = "error"\n{routes}'
        )
        command = [python, "-m", module, "serve", "--config", str(path)]
        command += ["--workers", str(workers)] if workers > 1 else []
        with started(*command, "--data", f"127.0.0.1:{data}", "--admin", f"127.0.0.1:{admin}") as process:
            if not leads:
                _until_ready(process, admin)
            yield Gateway(f"127.0.0.1:{data}", process.pid, _token(process, data) if leads else 0)


def _token(process: subprocess.Popen[bytes], port: int) -> int:
    """The term's token, once the gateway leads."""
    return int(_once_answered(process, f"http://127.0.0.1:{port}/.well-known/fencegate/leader/ledger")["token"])


def _until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    _once_answered(process, f"http://127.0.0.1:{port}/ready")


def _once_answered(process: subprocess.Popen[bytes], url: str) -> dict[str, Any]:
    """The JSON of the first good answer."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the gateway ended: {(process.communicate()[1] or b'').decode()[-2000:]}")
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=2) as answer:
            return dict(json.load(answer))
        time.sleep(0.1)
    raise RuntimeError(f"no good answer from {url} after 60 s")


@dataclass(frozen=True)
class Nginx:
    """nginx as the upstream (``upstream``) and as the unfenced proxy in front of it (``proxy``)."""

    upstream: str
    proxy: str
    refuser: str
    pid: int
    proxy_pid: int


def _nginx_conf(folder: str, servers: str, workers: int = 1) -> str:
    return (
        f"worker_processes {workers};\ndaemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\n"
        "events { worker_connections 4096; }\nhttp {\naccess_log off;\nkeepalive_requests 100000000;\n"
        f"client_body_temp_path {folder}/body;\nproxy_temp_path {folder}/proxy;\nfastcgi_temp_path {folder}/f;\n"
        f"uwsgi_temp_path {folder}/u;\nscgi_temp_path {folder}/s;\n{servers}\n}}\n"
    )


@contextlib.contextmanager
def nginx(*, workers: int = 1) -> Iterator[Nginx]:
    """``workers``: processes of the proxy; the upstream has one."""
    upstream, proxy, refuser = free_port(), free_port(), free_port()
    up = f"server {{ listen 127.0.0.1:{upstream} backlog=1024; location / {{ return 201 'made'; }} }}"
    front = (
        f"upstream there {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 100000000; }}\n"
        f"server {{ listen 127.0.0.1:{proxy} backlog=1024; location / {{ proxy_pass http://there; "
        'proxy_http_version 1.1; proxy_set_header Connection ""; } }\n'
        f"server {{ listen 127.0.0.1:{refuser} backlog=1024; location / {{ return 409 'stale'; }} }}"
    )
    with contextlib.ExitStack() as stack:
        pids = []
        for servers, processes in ((up, 1), (front, workers)):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fencegate-bench-"))
            conf = Path(folder) / "nginx.conf"
            conf.write_text(_nginx_conf(folder, servers, processes))
            pids.append(stack.enter_context(started("nginx", "-c", str(conf), "-p", folder)).pid)
        until_open(upstream, proxy, refuser)
        yield Nginx(f"127.0.0.1:{upstream}", f"127.0.0.1:{proxy}", f"127.0.0.1:{refuser}", pids[0], pids[1])


def until_open(*ports: int) -> None:
    end = time.monotonic() + 10
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


@dataclass(frozen=True)
class Front:
    """An nginx in front of somebody else's upstream, which passes request bodies on as they come."""

    address: str
    pid: int


@contextlib.contextmanager
def nginx_proxy(upstream: str) -> Iterator[Front]:
    port = free_port()
    servers = (
        f"upstream there {{ server {upstream}; keepalive 64; }}\n"
        f"server {{ listen 127.0.0.1:{port}; client_max_body_size 0; location / {{ proxy_pass http://there; "
        'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_request_buffering off; } }'
    )
    with tempfile.TemporaryDirectory(prefix="fencegate-bench-") as folder:
        conf = Path(folder) / "nginx.conf"
        conf.write_text(_nginx_conf(folder, servers))
        with started("nginx", "-c", str(conf), "-p", folder) as process:
            until_open(port)
            yield Front(f"127.0.0.1:{port}", process.pid)
