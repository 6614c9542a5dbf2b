"""A streaming standby of an embedded Postgres: itself an embedded Postgres, made from a base backup."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from fencegate.embedded.base_backup import base_backup
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.postgres import EmbeddedPostgres, EmbeddedServerError
from fencegate.embedded.process import afinish
from fencegate.testing.postgres_owner import by_hand

_LIMIT = 30.0


async def follower(
    primary: EmbeddedPostgres,
    directory: Path,
    port: int,
    synchronous: bool,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
) -> EmbeddedPostgres:
    """A running standby in ``directory`` that follows ``primary`` over ``port`` of 127.0.0.1.

    ``synchronous``: from now on each commit of the primary waits for it. Raises :class:`EmbeddedServerError`.
    """
    data = directory / "data"
    await asyncio.to_thread(directory.mkdir, 0o700)
    await base_backup(primary, data)
    _make_it_follow(directory, primary.directory / "password", port)
    chown_tree(data, await afinish(identity_for(primary.directory / "data")))
    standby = EmbeddedPostgres(directory, port=0, settings=settings, environment=environment)
    await standby.start()
    if synchronous:
        await wait_for_it(primary)
    return standby


def _make_it_follow(directory: Path, password: Path, port: int) -> None:
    secret = password.read_text("ascii")
    conninfo = f"host=127.0.0.1 port={port} user=fencegate password={secret} application_name=standby"
    with open(directory / "data" / "postgresql.auto.conf", "a", encoding="utf-8") as file:
        file.write(f"primary_conninfo = '{conninfo}'\nwal_retrieve_retry_interval = '200ms'\n")
    (directory / "data" / "standby.signal").touch()
    shutil.copy(password, directory / "password")


async def wait_for_it(primary: EmbeddedPostgres) -> None:
    """Each commit of ``primary`` waits for the standby from now on. Raises :class:`EmbeddedServerError`."""
    await by_hand(
        primary.dsn, "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()", limit=_LIMIT
    )
    for _ in range(600):
        if await by_hand(primary.dsn, "SELECT max(sync_state) FROM pg_stat_replication") == "sync":
            return
        await asyncio.sleep(0.05)
    raise EmbeddedServerError(f"the standby of {primary.directory} does not become synchronous")


async def promote(standby: EmbeddedPostgres) -> None:
    """Make it a primary. Raises :class:`EmbeddedServerError` where it does not become one."""
    if not await by_hand(standby.dsn, f"SELECT pg_promote(true, {_LIMIT:.0f})", limit=_LIMIT + 1):
        raise EmbeddedServerError(f"the standby in {standby.directory} was not promoted in {_LIMIT:g} s")
