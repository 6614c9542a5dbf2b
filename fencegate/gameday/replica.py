"""A stand-in for the replication that a real pair of regions has between its two databases.

Real regions copy their ledger with the database's own asynchronous replication; two unrelated Postgres servers on one
machine have none, so this copies in its place: entries and idempotency keys, in order, from the region that is open to
the one that is closed, proving the hash chain at every step. It never writes into an open store, and where the chain
does not continue it stops and reports the fork instead of choosing a side.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from fencegate.errors import Unavailable
from fencegate.gameday.door import Door
from fencegate.gameday.ledgers import STANDING, LedgerReader, Standing, standing_of
from fencegate.store.chain import genesis, link
from fencegate.store.ledger import entry

_BATCH = 2000
_STANDS_STILL = 0.25
"""Seconds for which a source waits at most for a target that does not answer."""

_NEW = """
    SELECT f.role, e.seq, e.token, e.recorded_at, e.hash, e.key, e.caller, e.body::text AS body,
           k.key AS digest, k.payload, k.created_at
      FROM fencegate.entry e JOIN fencegate.fence f USING (role_id)
      LEFT JOIN fencegate.idempotency_key k ON k.role_id = e.role_id AND k.seq = e.seq
     WHERE f.role = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3"""

# One statement, and so one transaction: under the fence row's lock, only into a closed store, only where it stands.
_COPY = """
    WITH closed AS (
        SELECT role_id FROM fencegate.fence
         WHERE role = $1 AND last_seq = $2 AND last_hash = $3
           AND (sealed >= max_token_seen OR valid_until <= clock_timestamp())
           FOR NO KEY UPDATE
    ), row AS (
        SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::timestamptz[], $7::bytea[], $8::text[], $9::text[],
                             $10::bytea[], $11::bytea[], $12::timestamptz[], $13::text[])
                   AS r(seq, token, recorded_at, hash, key, body, digest, payload, created_at, caller)
    ), copied AS (
        INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body, caller)
        SELECT role_id, seq, token, recorded_at, hash, key, body::json, caller FROM closed, row
    ), keys AS (
        INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
        SELECT role_id, digest, payload, token, created_at, seq FROM closed, row WHERE digest IS NOT NULL
    )
    UPDATE fencegate.fence f SET last_seq = $14, last_hash = $15 FROM closed
     WHERE f.role_id = closed.role_id RETURNING f.last_seq"""


@dataclass(frozen=True, slots=True)
class ForkFound:
    """``source`` and ``target`` hold different entries at ``seq``: there is nothing left to copy in good faith."""

    source: str
    target: str
    seq: int


class Replicator:
    """Copies the ledger of ``role`` from the region that is open to the other. ``fork`` is set once it had to stop.

    While the source may still write, the target's *door* is held: its fence row stays locked, so that no term can be
    claimed there before the last entry is over, as a switchover waits for its replica. ``period`` is the seconds
    between two looks. A source that has not answered for ``patience`` seconds, longer than any lease, is given up: what
    it still has is lost to the other region, as with any asynchronous replication.
    """

    def __init__(
        self,
        readers: dict[str, LedgerReader],
        dsns: dict[str, str],
        role: str,
        *,
        period: float = 0.05,
        patience: float = 8.0,
    ) -> None:
        self._readers = readers
        self._doors = {name: Door(dsn, role) for name, dsn in dsns.items()}
        self._role = role
        self._period = period
        self._patience = patience
        self._source = next(iter(readers))
        self.fork: ForkFound | None = None

    @property
    def source(self) -> str:
        return self._source

    @property
    def target(self) -> str:
        return next(name for name in self._readers if name != self._source)

    async def run(self) -> None:
        """Copies until cancelled, or until a fork is found. A store that cannot be reached is asked again."""
        clock = asyncio.get_running_loop().time
        looked = clock()
        try:
            while self.fork is None:
                try:
                    await self.step()
                    looked = clock()
                except Unavailable:
                    if clock() > looked + self._patience:
                        await self._give_way()
                await asyncio.sleep(self._period)
        finally:
            await self.close()

    async def _give_way(self) -> None:
        """Nothing can be copied: whoever wins the next term opens."""
        for door in self._doors.values():
            with suppress(Unavailable):
                await door.release()

    async def step(self) -> int:
        """One look at both stores and one copy; how many entries went over. The door may be left held."""
        standings = {name: await reader.standing() for name, reader in self._readers.items()}
        opened = [name for name, standing in standings.items() if standing.open]
        if len(opened) == 1 and opened[0] != self._source:
            await self._doors[self.target].release()
            self._source = opened[0]
        here, there = standings[self._source], standings[self.target]
        if len(opened) == 2 or (not here.open and self._level(here, there)):
            await self._doors[self.target].release()
            return 0
        return await self._copy_behind_the_door(self._doors[self.target])

    async def caught_up(self, limit: float) -> bool:
        """Waits until both ledgers end with the same entry; False where they don't within ``limit`` seconds."""
        until = asyncio.get_running_loop().time() + limit
        while asyncio.get_running_loop().time() < until and self.fork is None:
            here, there = [await reader.standing() for reader in self._readers.values()]
            if self._level(here, there):
                return True
            await asyncio.sleep(self._period)
        return False

    async def close(self) -> None:
        for door in self._doors.values():
            await door.close()

    def _level(self, here: Standing, there: Standing) -> bool:
        return (here.last_seq, here.last_hash) == (there.last_seq, there.last_hash)

    async def _copy_behind_the_door(self, door: Door) -> int:
        await door.hold()
        source, copied = self._readers[self._source], 0
        while True:
            here = await source.standing()
            there = standing_of(self.target, await door.ask(STANDING, self._role))
            count = await self._copy(here, there, door)
            copied += count
            if self.fork is not None or (not count and not here.open):
                await door.release()
                return copied
            if not count and await self._passed_on(door):
                return copied

    async def _passed_on(self, door: Door) -> bool:
        """Lets those in who wait at the target, if the source is open.

        The source stands still meanwhile, though never for long: on a busy machine its last entry, its end and the next
        claim could all come between a look at it and what follows from that.
        """
        source = self._doors[self._source]
        await source.hold()
        try:
            if not standing_of(self._source, await source.ask(STANDING, self._role)).open:
                return False
            passing = asyncio.ensure_future(door.pass_on())
            try:
                await asyncio.wait([passing], timeout=_STANDS_STILL)
            except BaseException:
                passing.cancel()
                await asyncio.gather(passing, return_exceptions=True)
                raise
        finally:
            with suppress(Unavailable):
                await source.release()
        await passing
        return True

    async def _copy(self, here: Standing, there: Standing, door: Door) -> int:
        """Copies what ``there`` lacks of ``here``. Sets ``fork`` where the target's end is no entry of the source."""
        if await self._end_of(here, there.last_seq) != there.end(self._role):
            self.fork = ForkFound(here.region, there.region, await self._first_difference(here, there))
            return 0
        if here.last_seq == there.last_seq or there.open:
            return 0
        rows = await self._readers[here.region].ask(_NEW, self._role, there.last_seq, _BATCH)
        digest = there.end(self._role)
        for row in rows:
            copied = entry(row)
            digest = link(digest, copied)
            if digest.hex() != copied.hash:
                self.fork = ForkFound(here.region, there.region, copied.seq)
                return 0
        columns = ("seq", "token", "recorded_at", "hash", "key", "body", "digest", "payload", "created_at", "caller")
        values = [[row[name] for row in rows] for name in columns]
        end = rows[-1]
        done = await door.ask(_COPY, self._role, there.last_seq, there.last_hash, *values, end["seq"], end["hash"])
        return len(rows) if done else 0

    async def _end_of(self, here: Standing, seq: int) -> bytes | None:
        """The hash that the source would chain the entry behind ``seq`` to; ``None`` where it isn't there yet."""
        if seq == 0 or seq == here.last_seq:
            return genesis(self._role) if seq == 0 else here.last_hash
        found = await self._readers[here.region].hashes(seq - 1, 1)
        return found[0][1] if found else None

    async def _first_difference(self, here: Standing, there: Standing) -> int:
        ours = dict(await self._readers[here.region].hashes(0))
        theirs = await self._readers[there.region].hashes(0)
        return next((seq for seq, digest in theirs if ours.get(seq) != digest), there.last_seq)
