"""A standby of an embedded Postgres that received nothing after a moment, and is promoted in its place.

The simplest lagging standby there is: a base backup of that moment. Promotion ends its recovery, which begins a new
timeline, and it serves at the old server's address, as after a failover behind a virtual address.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from fencegate.embedded.base_backup import base_backup
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import afinish


class LaggingStandby:
    """Of ``postgres``, which :meth:`take` must find running; what is written there later never reaches it."""

    def __init__(self, postgres: EmbeddedPostgres) -> None:
        self._postgres = postgres
        self._backup = postgres.directory / "standby"

    async def take(self) -> None:
        """Makes the backup. Raises as :func:`~fencegate.embedded.base_backup.base_backup` does."""
        await base_backup(self._postgres, self._backup, "--no-sync")

    async def promote(self) -> None:
        """Kills the server with -9 and starts the standby in its place, on a new timeline, at the same address.

        Raises :class:`~fencegate.embedded.process.EmbeddedServerError` where it does not come up.
        """
        data = self._postgres.directory / "data"
        identity = await afinish(identity_for(data))
        self._postgres.kill()
        await asyncio.to_thread(self._take_its_place, data)
        chown_tree(data, identity)
        await self._postgres.start()

    def _take_its_place(self, data: Path) -> None:
        shutil.rmtree(data)
        self._backup.rename(data)
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")  # there is no archive: recovery ends with what the backup has
        (data / "recovery.signal").touch()
