"""A base backup of an embedded Postgres: what a standby of it is made from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from fencegate.embedded.postgres import EmbeddedPostgres, binaries
from fencegate.embedded.process import EmbeddedServerError, clean_environment

_LIMIT: Final = 60.0


async def base_backup(primary: EmbeddedPostgres, data: Path, *options: str) -> None:
    """A copy of the running ``primary`` in the new folder ``data``, with all that it needs to start.

    ``options`` are further ones of ``pg_basebackup``. Raises :class:`EmbeddedServerError` with what that said, and
    ``TimeoutError`` after a minute.
    """
    process = await asyncio.create_subprocess_exec(
        *(str(binaries().program("pg_basebackup")), "-D", str(data), "-d", primary.dsn),
        *("-X", "stream", "-c", "fast", *options),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment("PG"),
    )
    try:
        async with asyncio.timeout(_LIMIT):
            _, said = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise EmbeddedServerError(f"no standby could be made: {said.decode('utf-8', 'replace').strip()}")
