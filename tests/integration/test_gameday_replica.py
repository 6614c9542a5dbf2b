"""The stand-in replication against two real stores: in order, chain proved, only into a closed one, forks reported."""

from __future__ import annotations

import asyncio
import hashlib
import uuid

import asyncpg
import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Effect, Verdict, Write
from fencegate.gameday import replica
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

    async def write(self, name: str, token: int, key: str, *, enforce: bool = True, caller: str = ""):
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        body = b'{"case": "%b"}' % key.encode()
        payload = hashlib.blake2b(body, digest_size=16).digest()
        write = Write(ROLE, token, body, key=key, key_digest=digest, payload_digest=payload, enforce=enforce)
        write.caller = caller
        return await self.stores[name].append(write, 5.0)

    async def ledger(self, name: str) -> list[tuple[int, str, str | None, str | None]]:
        return [(e.seq, e.hash, e.key, e.caller) for e in await self.readers[name].entries()]


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


@pytest.fixture
async def running(pair):
    """The replicator at work in the background."""
    task = asyncio.create_task(pair.replicator.run())
    yield pair
    task.cancel()
    await asyncio.wait([task])


async def test_entries_and_keys_go_over_and_a_retry_in_the_other_region_is_replayed(running):
    pair = running
    await pair.open("primary", 5)
    for n in range(7):
        await pair.write("primary", 5, f"k{n}", caller="alice" if n % 2 else "")
    assert await pair.replicator.caught_up(30.0)
    assert await pair.ledger("dr") == await pair.ledger("primary")
    await pair.close_term("primary", 5)
    await pair.open("dr", 9)
    retried = await pair.write("dr", 9, "k3")
    assert (retried.effect, retried.entry.seq) == (Effect.REPLAYED, 4)
    fresh = await pair.write("dr", 9, "k7")
    assert (fresh.effect, fresh.entry.seq) == (Effect.APPLIED, 8)


async def test_it_follows_the_open_region_and_back(running):
    pair = running
    for name, token, other in (("primary", 5, "dr"), ("dr", 9, "primary"), ("primary", 12, "dr")):
        await pair.open(name, token)
        for n in range(3):
            await pair.write(name, token, f"{token}-{n}")
        assert await pair.replicator.caught_up(30.0)
        assert pair.replicator.source == name
        assert await pair.ledger(other) == await pair.ledger(name)
        await pair.close_term(name, token)
    assert len(await pair.ledger("primary")) == 9
    assert pair.replicator.fork is None


async def test_a_term_that_ends_without_warning_is_over_whole_before_the_next_one_opens(running):
    """However soon the other region claims, the last entry is there first: else the ledgers would part."""
    pair, tokens = running, iter(range(5, 100, 5))
    for name in ("primary", "dr") * 5:
        token = next(tokens)
        await pair.open(name, token)
        for n in range(4):
            await pair.write(name, token, f"{token}-{n}")
        # Seen open at least once, as any term is that lasts longer than a look.
        async with asyncio.timeout(30.0):
            while pair.replicator.source != name:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await pair.write(name, token, f"{token}-last")
        await pair.close_term(name, token)
    assert await pair.replicator.caught_up(30.0)
    assert [seq for seq, *_ in await pair.ledger("primary")] == list(range(1, 51))


async def test_a_claim_waits_while_the_source_is_open(pair):
    await pair.open("primary", 5)
    await pair.write("primary", 5, "a")
    assert await pair.replicator.step() == 1
    claiming = asyncio.create_task(pair.open("dr", 9))
    await pair.write("primary", 5, "b")
    await pair.close_term("primary", 5)
    assert not claiming.done()
    assert await pair.replicator.step() == 1
    await claiming
    assert await pair.ledger("dr") == await pair.ledger("primary")


async def test_no_term_ends_between_the_look_at_its_source_and_those_who_are_let_in_at_the_target(pair, monkeypatch):
    """On a busy machine that takes a while: the last entry, the seal and the next claim would all find the time."""
    await pair.open("primary", 5)
    await pair.write("primary", 5, "a")
    ending: list[asyncio.Task[None]] = []
    door = pair.replicator._doors["dr"]

    async def end() -> None:
        await pair.write("primary", 5, "last")
        await pair.close_term("primary", 5)
        await pair.open("dr", 9)

    async def pass_on_slowly() -> None:
        if not ending:
            ending.append(asyncio.create_task(end()))
            await asyncio.sleep(0.2)
        await door.release()
        await asyncio.sleep(0.1)
        await door.hold()

    monkeypatch.setattr(door, "pass_on", pass_on_slowly)
    monkeypatch.setattr(replica, "_STANDS_STILL", 5.0)
    async with asyncio.timeout(30.0):
        while not ending or not ending[0].done():
            await pair.replicator.step()
    ending[0].result()
    assert pair.replicator.fork is None
    assert await pair.ledger("dr") == await pair.ledger("primary")
    assert len(await pair.ledger("dr")) == 2


async def test_a_target_that_goes_away_and_comes_back_is_held_again(pair):
    await pair.open("primary", 5)
    await pair.write("primary", 5, "a")
    await pair.replicator.step()
    admin = await asyncpg.connect(pair.dsns["dr"])
    await admin.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'fencegate replica' AND datname = current_database()"
    )
    await admin.close()
    with pytest.raises(Unavailable):
        await pair.replicator.step()
    await pair.write("primary", 5, "b")
    assert await pair.replicator.step() >= 1
    assert await pair.replicator.caught_up(1.0)


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
    await pair.replicator.close()  # the door: an unfenced write does not wait for it for long
    unfenced = await pair.write("dr", 5, "stale", enforce=False)
    assert (unfenced.verdict, unfenced.entry.seq) == (Verdict.NOT_LEADING, 4)
    await pair.write("primary", 5, "k3")
    assert await pair.replicator.step() == 0
    assert (pair.replicator.fork.source, pair.replicator.fork.target, pair.replicator.fork.seq) == ("primary", "dr", 4)
    before = await pair.ledger("dr")
    await pair.replicator.run()  # returns at once: there is nothing left to copy in good faith
    assert await pair.ledger("dr") == before
    assert not await pair.replicator.caught_up(30.0)


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
