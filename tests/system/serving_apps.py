"""Other people's services, each in a process of its own with the server that it would have, and a tap before one."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencegate.testing.raw_http import Answer, Line
from fencegate.testing.tcp_server import TcpServer
from system.serving import environment, until

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples" / "middleware"

_UVICORN: Final = """\
import importlib, socket, sys, uvicorn
module, name, number = sys.argv[1:]
app = getattr(importlib.import_module(module), name)
config = uvicorn.Config(app, log_level="warning", lifespan="auto" if module == "with_fastapi" else "off")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(number))])
"""
_THREADED: Final = """\
import importlib, sys
from werkzeug.serving import make_server
module, name, number = sys.argv[1:]
app = getattr(importlib.import_module(module), name)
make_server("127.0.0.1", 0, app, threaded=True, fd=int(number)).serve_forever()
"""
SERVED: Final = {
    "fastapi": (_UVICORN, "with_fastapi", "app"),
    "django over asgi": (_UVICORN, "with_django", "asgi_application"),
    "flask": (_THREADED, "with_flask", "app"),
    "django over wsgi": (_THREADED, "with_django", "application"),
}
"""How each example is served: uvicorn for what is asynchronous, else Werkzeug's server with a thread a request."""


@contextmanager
def served(name: str, dsn: str, key_file: Path) -> Iterator[int]:
    """The example as a process; its port. Another one with the same key file is another worker of the same machine."""
    program, module, attribute = SERVED[name]
    said = key_file.with_name("service.log")
    with said.open("ab") as log, socket.create_server(("127.0.0.1", 0)) as listening:
        number, port = listening.fileno(), int(listening.getsockname()[1])
        process = subprocess.Popen(
            [sys.executable, "-c", program, module, attribute, str(number)],
            cwd=EXAMPLES,
            env=environment(
                LEDGER_DSN=dsn,
                PROOF_KEY_FILE=str(key_file),
                USED_PROOFS=str(key_file.with_name("used-proofs")),
                PYTHONPATH=os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]),
                PYTHONDONTWRITEBYTECODE="1",
            ),
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(f"{name} answers", lambda: _answers(process, port, said))
        yield port
    finally:
        process.kill()
        process.wait()


def _answers(process: subprocess.Popen[bytes], port: int, said: Path) -> bool:
    assert process.poll() is None, said.read_text()
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as probe:
            probe.sendall(b"GET /none HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


class Tap(TcpServer):
    """A place between gateway and service where what passes can be read, and swallowed, as on any wire."""

    def __init__(self, port: int) -> None:
        super().__init__(self._pass_on)
        self._port = port
        self.taken: list[bytes] = []
        self.swallows = False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        self.taken.append(head + body)
        if self.swallows:
            return
        answer, to_service = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            to_service.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            writer.write(await answer.read())
            await writer.drain()
        finally:
            to_service.close()


async def sent_to(port: int, request: bytes) -> Answer:
    """One request straight to the service."""
    async with Line.to(port) as line:
        return await line.ask(request)
