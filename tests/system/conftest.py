"""Fixtures of the tests that start the real process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import free_port
from system.serving import Serving, Upstream, environment


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    """Starts ``fencegate serve`` on free ports; whatever still runs after the test is killed."""
    started: list[Serving] = []

    def start(*arguments: str, **more: str) -> Serving:
        command = [sys.executable, "-m", "fencegate", "serve", "--data", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--log-format", "json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(PYTHONUNBUFFERED="1", **more),
            start_new_session=True,
        )
        started.append(Serving(process))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        # A stopped process must be thawed to die of anything but SIGKILL; its pipes end with it.
        one.ends()
        for pipe in (one.process.stdout, one.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    found = Upstream()
    with ExitStack() as stack:
        stack.callback(found.server.server_close)
        thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        stack.callback(thread.join)
        stack.callback(found.server.shutdown)
        stack.callback(found.let_go.set)
        yield found


@pytest.fixture
def configuration(tmp_path: Path) -> Callable[[str], str]:
    """Writes a configuration file; its path."""

    def write(text: str, name: str = "fencegate.toml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def other_dsn(make_postgres: Callable[..., EmbeddedPostgres]) -> str:
    """The other region's store."""
    other = make_postgres(port=0)
    other.start_sync()
    return other.dsn


@pytest.fixture
def unused_ports() -> list[int]:
    """Two ports that nothing listens on."""
    return [free_port(), free_port()]
