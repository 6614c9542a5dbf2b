"""``fencegate serve`` under a service manager: it says when it takes requests, that it is alive, and when it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from system.serving import Serving, until

pytestmark = pytest.mark.system


def test_a_manager_hears_ready_signs_of_life_and_the_end(
    fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str], tmp_path: Path
) -> None:
    text = (
        'node = "gw-1"\nregion = "eu"\nadvertise = "http://127.0.0.1:1"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
        '[election]\nsource = "postgres"\n'
    )
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)

        def hears(word: str) -> bool:
            try:
                heard.append(manager.recv(4096).decode())
            except BlockingIOError:
                return False
            return word in heard[-1]

        gateway = serve(
            "--migrate", "--config", configuration(text), NOTIFY_SOCKET=manager.getsockname(), WATCHDOG_USEC="600000"
        ).listens()
        until("ready", lambda: hears("READY=1"))
        assert f"requests at http://{gateway.data}" in heard[-1]
        until("a sign of life", lambda: hears("WATCHDOG=1"))
        gateway.leads()
        assert gateway.stop() == 0
        until("the end", lambda: hears("STOPPING=1"))
        assert "SIGTERM" in heard[-1]
