"""The stage of a drill: two regions with a Postgres and a real ``fencegate serve`` process each, and a three-node etcd.

Everything lives in one directory and on loopback, and ends with us: each server is a direct child that the kernel
ends when we die.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import EmbeddedServerError, afinish, clean_environment, free_port, last_lines, spawn
from fencegate.embedded.process import until_exit as until_exit_steps
from fencegate.gameday.plain_http import Answer, NoAnswer, NotSent, ask
from fencegate.lease import LeaseTimings
from fencegate.store import migrate

ROLE: Final = "ledger"
PATH: Final = "/v1/entries"
PRIMARY: Final = "primary"
DR: Final = "dr"
TIMINGS: Final = LeaseTimings(lease_duration=5.0, renew_deadline=3.5, retry_period=0.5, margin=0.5)
"""Short, so that a failover can be watched; fencegate's defaults are Kubernetes' (15, 10 and 2 s)."""

Mode = Literal["enforce", "observe"]

_UP_LIMIT: Final = 20.0
_STOP_LIMIT: Final = 6.0
_DISCOVERY: Final = f"/.well-known/fencegate/leader/{ROLE}"


@dataclass(slots=True)
class Region:
    """One region: its store, and the one process that is both its gateway and its elector."""

    name: str
    directory: Path
    postgres: EmbeddedPostgres
    data_port: int = 0
    admin_port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    environment: dict[str, str] = field(default_factory=dict)
    """What the gateway's process gets beside ours."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.data_port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def log(self) -> Path:
        return self.directory / "serve.log"

    @property
    def token_file(self) -> Path:
        return self.directory / "admin-token"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def start(self) -> None:
        """Starts ``fencegate serve`` and returns when it answers. Raises :class:`EmbeddedServerError` with its log."""
        self.launch()
        until = asyncio.get_running_loop().time() + _UP_LIMIT
        while not (await self.answers() and self.running):  # Somebody else may have the port, and answer in its place.
            if not self.running or asyncio.get_running_loop().time() >= until:
                raise EmbeddedServerError(
                    f"the gateway of region {self.name} did not come up. Its log, {self.log}, ends:\n"
                    + last_lines(self.log)
                )
            await asyncio.sleep(0.05)

    def launch(self) -> None:
        """Starts ``fencegate serve``, and waits for nothing."""
        self.process = spawn(
            [sys.executable, "-P", "-m", "fencegate", "serve", "--config", self.directory / "fencegate.toml"],
            log=self.log,
            death_signal=signal.SIGKILL,
            environment=clean_environment("FENCEGATE_") | self.environment,
        )

    async def answers(self) -> bool:
        try:
            await ask("GET", self.url + _DISCOVERY, limit=1.0)
        except (NotSent, NoAnswer):
            return False
        return True

    def kill(self) -> None:
        """kill -9 of gateway and elector: no goodbye, the lease is left to run out."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def resign(self) -> bool:
        """Asks the elector, over the admin listener, to hand the role over: drain, seal, release. False if it said no.

        Raises :class:`EmbeddedServerError` where it does not answer.
        """
        try:
            answer = await self._act("resign", limit=15.0)
        except (NotSent, NoAnswer) as error:
            raise EmbeddedServerError(f"region {self.name} could not be asked to resign: {error}") from error
        return 200 <= answer.status < 300

    async def hand_over(self, to: str, limit: float) -> Answer:
        """Asks the elector to hand the role to region ``to`` within ``limit`` seconds; how it ended.

        Raises :class:`NotSent` or :class:`NoAnswer`.
        """
        return await self._act("handoff", json.dumps({"to": to, "limit": limit}).encode(), limit=2 * limit)

    async def _act(self, action: str, body: bytes = b"", *, limit: float) -> Answer:
        headers = {"Authorization": f"Bearer {self.token_file.read_text('ascii').strip()}"}
        return await ask("POST", f"{self.admin_url}/-/roles/{ROLE}/{action}", headers=headers, body=body, limit=limit)

    async def stop(self) -> None:
        """SIGTERM, then by force. Idempotent."""
        if self.process is not None:
            if self.running:
                self.process.terminate()
                await afinish(until_exit_steps(self.process, _STOP_LIMIT))
            self.kill()


class TwoRegions:
    """The whole stage in ``directory``, which must exist. ``mode`` "observe" takes the fence off.

    With ``over_tcp`` the stores listen on TCP, so that something can stand in the way to them: see :meth:`links`.
    """

    def __init__(
        self, directory: Path, mode: Mode = "enforce", *, over_tcp: bool = False, timings: LeaseTimings = TIMINGS
    ) -> None:
        self.directory = directory
        self.timings = timings
        self._mode = mode
        # The data is thrown away with the directory: nothing is gained by an fsync of the quorum's.
        self.etcd = EmbeddedEtcd(directory / "etcd", 3, unsafe_no_fsync=True)
        port = 0 if over_tcp else None
        self.primary, self.dr = _region(directory, PRIMARY, port), _region(directory, DR, port)

    @property
    def regions(self) -> dict[str, Region]:
        return {region.name: region for region in (self.primary, self.dr)}

    async def start_servers(self) -> None:
        """The quorum and both databases, migrated; no gateway yet. Raises what the first of them to fail raised."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.etcd.start())
                for region in self.regions.values():
                    group.create_task(self._start_store(region))
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        for region in self.regions.values():
            region.data_port, region.admin_port = free_port(), free_port()
        for region in self.regions.values():
            region.token_file.touch(0o600)
            region.token_file.write_text(secrets.token_urlsafe(24), "ascii")
            dsn, endpoints = await self.links(region)
            text = self.configuration(region, dsn, endpoints) + self.route(region)
            (region.directory / "fencegate.toml").write_text(text, "utf-8")

    async def links(self, region: Region) -> tuple[str, list[str]]:
        """The store's DSN and the quorum's endpoints as ``region`` is told of them; the servers are up."""
        return region.postgres.dsn, self.etcd.endpoints

    async def _start_store(self, region: Region) -> None:
        region.directory.mkdir(mode=0o700, exist_ok=True)
        await region.postgres.start()
        await migrate.apply(region.postgres.dsn)

    async def stop(self) -> None:
        """Gateways first, then what they lean on. Idempotent; whatever fails, the rest is stopped too."""
        regions = self.regions.values()
        await asyncio.gather(*(region.stop() for region in regions), return_exceptions=True)
        for region in regions:
            region.kill()
        await asyncio.gather(*(region.postgres.stop() for region in regions), self.etcd.stop(), return_exceptions=True)

    def configuration(self, region: Region, dsn: str, endpoints: list[str]) -> str:
        """The gateway's file but for its route, for these ways to the store and the quorum."""
        return f"""\
node = {_quoted(f"gw-{region.name}")}
region = {_quoted(region.name)}
advertise = {_quoted(region.url)}

[listen]
data = {_quoted(f"127.0.0.1:{region.data_port}")}
admin = {_quoted(f"127.0.0.1:{region.admin_port}")}

[store]
dsn = {_quoted(dsn)}

[election]
source = "etcd"
endpoints = [{", ".join(_quoted(url) for url in endpoints)}]
lease_duration = {self.timings.lease_duration}
renew_deadline = {self.timings.renew_deadline}
retry_period = {self.timings.retry_period}
margin = {self.timings.margin}

[admin]
token_file = {_quoted(str(region.token_file))}

[log]
format = "json"
"""

    def route(self, region: Region) -> str:
        """The lines of the one route of ``region``."""
        return f"""
[[route]]
path = {_quoted(PATH)}
role = {_quoted(ROLE)}
target = "ledger"
mode = {_quoted(self._mode)}
"""


def _region(directory: Path, name: str, port: int | None) -> Region:
    own = directory / name
    return Region(name, own, EmbeddedPostgres(own / "postgres", port=port))


def _quoted(text: str) -> str:
    """A TOML basic string: for text like ours, the same as a JSON string."""
    return json.dumps(text)
