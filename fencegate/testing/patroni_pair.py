"""A real Patroni cluster of two members over a real etcd, as children on free ports, for tests of who leads.

Needs the packages patroni[etcd3] and psycopg, and the Postgres that :mod:`fencegate.embedded` finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from fencegate.embedded.binaries import postgres_binaries
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.process import (
    EmbeddedServerError,
    afinish,
    children_of,
    clean_environment,
    finish,
    free_port,
    last_lines,
    send,
    spawn,
    until_still,
)
from fencegate.testing.waiting import until

_LIMIT: Final = 90.0
_LOCAL: Final = "127.0.0.1"


class PatroniPair:
    """Members ``pg-1`` and ``pg-2`` of the cluster ``scope``, kept in the etcd at ``dcs`` (origins)."""

    def __init__(self, directory: Path, dcs: Sequence[str], scope: str) -> None:
        self._directory = directory
        self._dcs = [urlsplit(origin).netloc for origin in dcs]
        self.scope = scope
        self.members = {"pg-1": free_port(), "pg-2": free_port()}
        """The ports of the REST APIs."""
        self._databases = {name: free_port() for name in self.members}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_sync(self) -> None:
        """Returns when one member leads and the other streams from it."""
        for name in self.members:
            self._start(name)
        try:
            finish(until(self.whole, "a Patroni cluster of two", _LIMIT))
        except EmbeddedServerError as error:
            raise EmbeddedServerError(f"{error}; its log ends: {last_lines(self._log('pg-1'))}") from None

    def stop_sync(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def leader(self) -> str | None:
        """Who leads and runs as the primary, by Patroni's word."""
        for name in self._processes:
            for member in self._ask(name, "GET", "/cluster").get("members", []):
                if member["role"] == "leader" and member["state"] == "running":
                    return str(member["name"])
        return None

    def whole(self) -> bool:
        """Both members are there, and one could take over from the other."""
        for name in self._processes:
            states = [each["state"] for each in self._ask(name, "GET", "/cluster").get("members", [])]
            if sorted(states) == ["running", "streaming"]:
                return True
        return False

    async def switch_over(self) -> None:
        """A planned change of the leader; returns when the cluster is whole again."""
        await self.until_whole()
        before = self.leader()
        (candidate,) = set(self.members) - {before}
        body = json.dumps({"leader": before, "candidate": candidate})
        async with asyncio.timeout(_LIMIT):
            while self.leader() != candidate:
                # Asked again where it was refused, as it is while a member is not ready; done twice it changes nothing.
                await asyncio.to_thread(self._ask, candidate, "POST", "/switchover", body)
                with contextlib.suppress(EmbeddedServerError):
                    await afinish(until(lambda: self.leader() == candidate, "the switchover", 5.0))

    async def until_whole(self) -> None:
        await afinish(until(self.whole, "a whole cluster", _LIMIT))

    async def until_another_leads(self, than: str) -> None:
        await afinish(until(lambda: self.leader() not in (None, than), "another leader", _LIMIT))

    def kill(self, name: str) -> None:
        """kill -9 of a member: Patroni and its Postgres."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
            postmaster = int((self._directory / name / "data" / "postmaster.pid").read_text().splitlines()[0])
            send(postmaster, signal.SIGSTOP)
            until_still(postmaster)
            for backend in children_of(postmaster):
                send(backend, signal.SIGKILL)
            send(postmaster, signal.SIGKILL)

    async def revive(self, name: str) -> None:
        """Starts a killed member again; returns when the cluster is whole."""
        self._start(name)
        await self.until_whole()

    def _start(self, name: str) -> None:
        home = self._directory / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity = finish(identity_for(home))
        config = home / "patroni.yml"
        config.write_text(json.dumps(self._config(name, home)))  # JSON is YAML
        chown_tree(home, identity)
        self._processes[name] = spawn(
            [sys.executable, "-m", "patroni", str(config)],
            log=self._log(name),
            death_signal=signal.SIGTERM,
            environment=clean_environment("PATRONI", "PG"),
            identity=identity,
        )

    def _config(self, name: str, home: Path) -> dict[str, Any]:
        port, rest = self._databases[name], self.members[name]
        user = {"username": "fencegate", "password": "fencegate"}
        return {
            "scope": self.scope,
            "name": name,
            "restapi": {"listen": f"{_LOCAL}:{rest}", "connect_address": f"{_LOCAL}:{rest}"},
            "etcd3": {"hosts": self._dcs},
            "bootstrap": {
                "dcs": {
                    # The least that Patroni takes.
                    "ttl": 20,
                    "loop_wait": 1,
                    "retry_timeout": 3,
                    "postgresql": {"parameters": {"max_connections": 20, "shared_buffers": "16MB"}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
            },
            "postgresql": {
                "listen": f"{_LOCAL}:{port}",
                "connect_address": f"{_LOCAL}:{port}",
                "data_dir": str(home / "data"),
                "bin_dir": str(postgres_binaries().directory),
                "pgpass": str(home / "pgpass"),
                "pg_hba": ["local all all trust", f"host all all {_LOCAL}/32 trust", "host replication all all trust"],
                "authentication": {"superuser": user, "replication": {**user, "username": "replicator"}},
                # A socket's path must be short; the members do not need one.
                "parameters": {"unix_socket_directories": "", "fsync": "off"},
            },
        }

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _ask(self, name: str, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        """The answer as JSON, empty where there is none."""
        connection = http.client.HTTPConnection(_LOCAL, self.members[name], timeout=30 if body else 5)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            found = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return found if isinstance(found, dict) else {}
