"""A real PgBouncer in front of a Postgres."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from fencegate.embedded.process import clean_environment, free_port, spawn


def program() -> str | None:
    """Where it is installed (Debian: pgbouncer); ``None`` where it is not."""
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")


class Pgbouncer:
    """In front of the database at ``dsn``, with ``settings`` of its own such as ``pool_mode``. Stop it in the end."""

    def __init__(self, dsn: str, directory: Path, **settings: str) -> None:
        found, target = program(), urlsplit(dsn)
        assert found is not None
        port = free_port()
        upstream = f"host=127.0.0.1 port={target.port} user={target.username} password={target.password}"
        lines = ["[databases]", f"* = {upstream}", "[pgbouncer]", "listen_addr = 127.0.0.1", f"listen_port = {port}"]
        lines += ["unix_socket_dir =", "auth_type = any", "user = nobody", "default_pool_size = 5"]
        lines += [f"{key} = {value}" for key, value in settings.items()]
        configuration = directory / f"pgbouncer-{port}.ini"
        configuration.write_text("\n".join(lines) + "\n")
        self.dsn = f"postgresql://{target.username}@127.0.0.1:{port}{target.path}"
        self._process: subprocess.Popen[bytes] = spawn(
            [found, configuration],
            log=directory / f"pgbouncer-{port}.log",
            death_signal=signal.SIGKILL,
            environment=clean_environment("PG"),
        )
        self._until_it_listens(port)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    @staticmethod
    def _until_it_listens(port: int) -> None:
        ends = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.05)
            else:
                return
