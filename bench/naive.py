"""The peer: our gateway with the group commit taken out. Each write is fenced in a transaction of its own.

``python -m bench.naive serve …`` takes what ``fencegate serve`` takes. Sixteen sessions share the writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fencegate.cli.main import main
from fencegate.errors import FencegateError
from fencegate.fence import Write, WriteResult
from fencegate.store import ledger
from fencegate.store.link import Link
from fencegate.store.postgres import PostgresStore
from fencegate.store.validity import check_write
from fencegate.telling import Tell, tell_of

SESSIONS = 16


class NaiveStore(PostgresStore):
    """One transaction a write."""

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._free: asyncio.Queue[Link] = asyncio.Queue()
        for number in range(SESSIONS):
            self._free.put_nowait(Link(dsn, f"naive {number}", limit=3.0, statement_timeout=4.0))

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        tell_of(self.append(write, time_limit), tell)

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        check_write(write)
        link = await self._free.get()
        try:
            results: Sequence[WriteResult | FencegateError] = await ledger.append(link, time_limit, [write])
        finally:
            self._free.put_nowait(link)
        if isinstance(results[0], FencegateError):
            raise results[0]
        return results[0]


if __name__ == "__main__":
    import fencegate.store.several

    fencegate.store.several.PostgresStore = NaiveStore  # type: ignore[misc]
    main()
