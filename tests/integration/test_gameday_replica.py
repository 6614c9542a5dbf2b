"""The stand-in replication against two real stores: in order, chain proved, only into a closed one, forks reported."""

from __future__ import annotations

import asyncio
import hashlib
import uuid

import asyncpg
import pytest

from fencegate.fence import Effect, Verdict, Write
from fencegate.gameday.ledgers import LedgerReader
from fencegate.gameday.replica import Replicator
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore

ROLE = "ledger"
NAMES = ("primary", "dr")


class Pair:
    """Two stores with a role each, and the replicator between them."""

    def __init__(self, dsns: dict[str, str]) -> None:
        self.dsns = dsns
        self.stores = {name: PostgresStore(dsn, gateway=name) for name, dsn in dsns.items()}
        self.readers = {name: LedgerReader(name, dsn, ROLE) for name, dsn in dsns.items()}
        self.replicator = Replicator(self.readers, dsns, ROLE, period=0.01)

    async def open(self, name: str, token: int) -> None:
        clock = await self.stores[name].clock()
        assert await self.stores[name].claim(ROLE, token, name, clock, 60.0) is None

    async def close_term(self, name: str, token: int) -> None:
        assert await self.stores[name].seal(ROLE, token, (await self.stores[name].clock()).incarnation)

    async def write(self, name: str, token: int, key: str, *, enforce: bool = True):
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        body = b'{"case": "%b"}' % key.encode()
        payload = hashlib.blake2b(body, digest_size=16).digest()
        write = Write(ROLE, token, body, key=key, key_digest=digest, payload_digest=payload, enforce=enforce)
        return await self.stores[name].append(write, 5.0)

    async def ledger(self, name: str) -> list[tuple[int, str, str | None]]:
        return [(e.seq, e.hash, e.key) for e in await self.readers[name].entries()]


@pytest.fixture
async def pair(postgres):
    names = {name: f"replica_{name}_{uuid.uuid4().hex}" for name in NAMES}
    admin = await asyncpg.connect(postgres.dsn)
    for database in names.values():
        await admin.execute(f"CREATE DATABASE {database} TEMPLATE template1")
    made = Pair({name: postgres.dsn_of(database) for name, database in names.items()})
    for name in NAMES:
        await migrate.apply(made.dsns[name])
        await made.stores[name].ensure_roles({ROLE: "lease"})
    yield made
    for part in (*made.stores.values(), *made.readers.values(), made.replicator):
        await part.close()
    for database in names.values():
        await admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
    await admin.close()


async def test_entries_and_keys_go_over_and_a_retry_in_the_other_region_is_replayed(pair):
    await pair.open("primary", 5)
    for n in range(7):
        await pair.write("primary", 5, f"k{n}")
    assert await pair.replicator.step() == 7
    assert await pair.ledger("dr") == await pair.ledger("primary")
    await pair.close_term("primary", 5)
    await pair.open("dr", 9)
    retried = await pair.write("dr", 9, "k3")
    assert (retried.effect, retried.entry.seq) == (Effect.REPLAYED, 4)
    fresh = await pair.write("dr", 9, "k7")
    assert (fresh.effect, fresh.entry.seq) == (Effect.APPLIED, 8)


async def test_it_follows_the_open_region_and_back(pair):
    await pair.open("primary", 5)
    await pair.write("primary", 5, "a")
    await pair.replicator.step()
    await pair.close_term("primary", 5)
    await pair.open("dr", 9)
    await pair.write("dr", 9, "b")
    assert await pair.replicator.step() == 1
    assert pair.replicator.source == "dr"
    assert await pair.replicator.caught_up(1.0)
    await pair.close_term("dr", 9)
    await pair.open("primary", 12)
    assert (await pair.write("primary", 12, "c")).entry.seq == 3
    assert await pair.replicator.step() == 1
    assert await pair.ledger("dr") == await pair.ledger("primary")
    assert pair.replicator.fork is None


async def test_nothing_is_copied_into_an_open_store(pair):
    await pair.open("primary", 5)
    await pair.open("dr", 6)
    await pair.write("primary", 5, "a")
    assert await pair.replicator.step() == 0
    assert await pair.ledger("dr") == []


async def test_a_fork_stops_it_and_is_located(pair):
    await pair.open("primary", 5)
    for n in range(3):
        await pair.write("primary", 5, f"k{n}")
    await pair.replicator.step()
    unfenced = await pair.write("dr", 5, "stale", enforce=False)
    assert (unfenced.verdict, unfenced.entry.seq) == (Verdict.NOT_LEADING, 4)
    await pair.write("primary", 5, "k3")
    assert await pair.replicator.step() == 0
    assert (pair.replicator.fork.source, pair.replicator.fork.target, pair.replicator.fork.seq) == ("primary", "dr", 4)
    before = await pair.ledger("dr")
    await pair.replicator.run()  # returns at once: there is nothing left to copy in good faith
    assert await pair.ledger("dr") == before
    assert not await pair.replicator.caught_up(5.0)


async def test_an_entry_that_was_changed_behind_our_back_is_not_copied(pair):
    await pair.open("primary", 5)
    for n in range(3):
        await pair.write("primary", 5, f"k{n}")
    connection = await asyncpg.connect(pair.dsns["primary"])
    await connection.execute("SET session_replication_role = replica")  # past the trigger that forbids it
    await connection.execute("""UPDATE fencegate.entry SET body = '{"case": "forged"}' WHERE seq = 2""")
    await connection.close()
    assert await pair.replicator.step() == 0
    assert pair.replicator.fork.seq == 2
    assert await pair.ledger("dr") == []


async def test_while_the_door_is_held_the_target_cannot_open_before_everything_is_over(pair):
    await pair.open("primary", 5)
    async with pair.replicator.door_held() as finish:
        claiming = asyncio.create_task(pair.open("dr", 9))
        for n in range(5):
            await pair.write("primary", 5, f"k{n}")
        finishing = asyncio.create_task(finish(5.0))
        while not (await pair.readers["primary"].standing()).sealed:
            await pair.close_term("primary", 5)
        assert await finishing == 5
        assert not claiming.done()
    await claiming
    assert await pair.ledger("dr") == await pair.ledger("primary")
    assert (await pair.readers["dr"].standing()).open


async def test_the_door_opens_after_its_limit_when_the_source_never_closes(pair):
    await pair.open("primary", 5)
    async with pair.replicator.door_held() as finish:
        assert await finish(0.1) == 0
    await pair.open("dr", 9)
