"""A real streaming standby of an embedded Postgres, that can be stopped, started without its primary, and promoted."""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

import asyncpg

from fencegate.embedded.base_backup import base_backup
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.postgres import EmbeddedPostgres, binaries
from fencegate.embedded.process import afinish, clean_environment, spawn, until_exit
from store.writing import until


class Standby:
    """Made by ``pg_basebackup`` from ``primary``. Listens on a Unix socket only."""

    def __init__(self, primary: EmbeddedPostgres, directory: Path) -> None:
        self._primary = primary
        self._directory = directory
        self._data = directory / "data"
        self._socket = Path(tempfile.mkdtemp(prefix="fgsb-", dir="/tmp"))
        self._process: subprocess.Popen[bytes] | None = None
        self._identity = "same"

    @property
    def dsn(self) -> str:
        return f"postgresql://fencegate@/fencegate?host={self._socket}&port=5432"

    async def make(self) -> None:
        self._directory.mkdir()
        self._identity = await afinish(identity_for(self._primary.directory / "data"))
        await base_backup(self._primary, self._data, "-R")
        for path in (self._data, self._socket):
            chown_tree(path, self._identity)

    async def start(self, *, streaming: bool = True) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self._socket), "logging_collector": "off"}
        settings["max_prepared_transactions"] = "16"  # no fewer than on the primary, or it does not start
        if not streaming:
            settings["primary_conninfo"] = ""
        self._process = spawn(
            [binaries().program("postgres"), "-D", self._data]
            + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")],
            log=self._directory / "log",
            death_signal=signal.SIGINT,
            environment=clean_environment("PG"),
            identity=self._identity,
        )
        await until(lambda: self._ask("SELECT pg_is_in_recovery()"), 30)

    async def caught_up(self) -> None:
        primary = await asyncpg.connect(self._primary.dsn, timeout=60)
        position = await primary.fetchval("SELECT pg_current_wal_insert_lsn()::text")
        await primary.close()
        await until(lambda: self._ask(f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"), 30)

    async def promote(self) -> None:
        assert await self._ask("SELECT pg_promote(true, 30)")

    async def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            if not await afinish(until_exit(self._process, 10)):
                self._process.kill()
                self._process.wait()
            self._process = None

    async def remove(self) -> None:
        await self.stop()
        for path in self._socket.iterdir():
            path.unlink()
        self._socket.rmdir()

    async def _ask(self, query: str) -> object:
        try:
            connection = await asyncpg.connect(self.dsn, timeout=60)
        except (OSError, asyncpg.CannotConnectNowError):
            return None
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()
