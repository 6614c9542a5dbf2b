"""The real process: started as an operator starts it, watched through its listeners, its lines and its exit code."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

LIMIT = 45.0


def until(what: str, condition: Callable[[], Any], limit: float = LIMIT) -> Any:
    """The first true answer of ``condition``; fails, naming ``what``, when none came within ``limit`` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"{what}: not within {limit:g} s")


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> str | None:
        return self.headers.get("x-fencing-outcome")


@dataclass
class Serving:
    """One ``fencegate`` process. Its facts (JSON log lines) and its printed lines are read as they come."""

    process: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    data: str = ""
    admin: str = ""

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=_keep_lines, args=(pipe, to), daemon=True)
            for to, pipe in ((self.out, self.process.stdout), (self.err, self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    # -- what it says -----------------------------------------------------------------------------

    @property
    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.err) if line.startswith("{")]

    def facts_of(self, event: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["event"] == event]

    def listens(self, limit: float = LIMIT) -> Serving:
        """Wait for the start line and take the addresses from it."""

        def look() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode}: {''.join(self.out)} {''.join(self.err)}")
            for line in list(self.out):
                found = re.search(r"requests at https?://(\S+), operators at https?://(\S+)", line)
                if found:
                    self.data, self.admin = found.groups()
                    return True
            return False

        until("the start line", look, limit)
        return self

    def leads(self, limit: float = LIMIT) -> int:
        """Wait until this process leads; the token of its term."""
        return int(self._until("leadership", lambda: self.facts_of("leadership_gained"), limit)[-1]["token"])

    def _until(self, what: str, condition: Callable[[], Any], limit: float = LIMIT) -> Any:
        """As :func:`until`; where it fails, with the latest that the process said."""
        try:
            return until(what, condition, limit)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}\n{''.join(self.err[-30:])}")

    # -- what it answers --------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        return ask(self.data, method, path, body, **headers)

    def write(self, token: int, body: object = None, path: str = "/v1/entries", **headers: str) -> Answer:
        return self.ask("POST", path, body or {"decision": "approve"}, **{"X-Fencing-Token": str(token), **headers})

    def discovered(self, role: str = "ledger") -> int:
        answer = self._until("discovery", lambda: _ok(self.ask("GET", f"/.well-known/fencegate/leader/{role}")))
        return int(answer.json["token"])

    # -- how it ends ------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self, limit: float = LIMIT) -> int:
        """Wait for the end; the exit code. Everything it said has been read then."""
        code = self.process.wait(limit)
        for reader in self._readers:
            reader.join(limit)
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ends()


def _keep_lines(pipe: Any, lines: list[str]) -> None:
    for line in pipe:
        lines.append(line)


def _ok(answer: Answer) -> Answer | None:
    return answer if answer.status == 200 else None


def ask(
    address: str, method: str, path: str, body: object = None, tls: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """One request on a connection of its own."""
    host, _, port = address.rpartition(":")
    if tls is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=LIMIT)
    else:
        connection = http.client.HTTPSConnection(host, int(port), timeout=LIMIT, context=tls)
    try:
        payload = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        content = response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
    finally:
        connection.close()


def environment(**more: str) -> dict[str, str]:
    """The environment of a process: ours, without any setting of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FENCEGATE_")} | more


def fencegate(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [sys.executable, "-m", "fencegate", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
    )


class Upstream:
    """An upstream that holds every request until it is let go; ``tokens`` are those of what reached it, in order."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        self.tokens: list[str | None] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                upstream.tokens.append(self.headers["X-Fencing-Token"])
                upstream.reached.set()
                upstream.let_go.wait(LIMIT)
                self.send_response(201)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"done")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_port}"
