"""What a region's store says of itself, asked past its gateway: the drill believes no process that takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencegate.fence import Entry
from fencegate.store.chain import genesis
from fencegate.store.ledger import ENTRIES, entry
from fencegate.store.link import Link

STANDING = """
    SELECT max_token_seen, sealed, last_seq, last_hash,
           sealed < max_token_seen AND clock_timestamp() < valid_until
               AND incarnation = fencegate.incarnation() AS open
      FROM fencegate.fence WHERE role = $1"""
_HASHES = """
    SELECT e.seq, e.hash FROM fencegate.entry e JOIN fencegate.fence f USING (role_id)
     WHERE f.role = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3"""
_ALL = 1 << 40
_PAGE = 20_000


@dataclass(frozen=True, slots=True)
class Standing:
    """A store's fence, by its own clock: whether a term is open there *now*, and where its ledger ends."""

    region: str
    open: bool
    max_token_seen: int
    sealed: int
    last_seq: int
    last_hash: bytes

    def end(self, role: str) -> bytes:
        """The hash that the next entry will be chained to."""
        return self.last_hash if self.last_seq else genesis(role)


def standing_of(region: str, rows: Any) -> Standing:
    """What the rows of ``STANDING`` say of ``region``."""
    if not rows:
        return Standing(region, False, 0, 0, 0, b"")
    row = rows[0]
    return Standing(region, row["open"], row["max_token_seen"], row["sealed"], row["last_seq"], row["last_hash"])


class LedgerReader:
    """Reads one region's store. Every method raises :class:`fencegate.errors.Unavailable`."""

    def __init__(self, region: str, dsn: str, role: str) -> None:
        self.region = region
        self._role = role
        self._link = Link(dsn, "game day", limit=3.0, statement_timeout=4.0)

    async def ask(self, query: str, *arguments: Any) -> Any:
        """The rows of a read-only statement."""
        return await self._link.read(5.0, query, *arguments)

    async def standing(self) -> Standing:
        """The fence as it is; closed and empty while its row does not exist yet."""
        return standing_of(self.region, await self.ask(STANDING, self._role))

    async def hashes(self, after: int, limit: int = _ALL) -> list[tuple[int, bytes]]:
        """Sequence and hash of the entries behind ``after``, in order."""
        return [(row["seq"], row["hash"]) for row in await self.ask(_HASHES, self._role, after, limit)]

    async def entries(self) -> list[Entry]:
        """The whole ledger, in order; page by page, since no statement's time would do for a long one."""
        found: list[Entry] = []
        while page := await self.ask(ENTRIES, self._role, found[-1].seq if found else 0, _PAGE):
            found += map(entry, page)
        return found

    async def close(self) -> None:
        await self._link.close()
