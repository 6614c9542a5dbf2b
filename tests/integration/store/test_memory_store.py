"""The fake store that electors are tested with answers as Postgres does, step by step, whatever is asked of both."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import asyncpg
import pytest

from fencegate.fence import Mode, StoreClock
from fencegate.store.postgres import PostgresStore
from fencegate.testing.memory_store import MemoryStore

STEPS = 100
ELSEWHERE = "1/00000001"


class Both:
    """One role, in both stores, and what either says to the same step."""

    def __init__(self, store: PostgresStore, beside: asyncpg.Connection, role: str, mode: Mode) -> None:
        self.real, self.beside, self.role = store, beside, role
        self.fake = MemoryStore([role], time.time, mode=mode)

    async def step(self, dice: random.Random) -> tuple[str, object, object]:
        """A step by chance, in words, and both answers to it."""
        real = await self.real.clock()
        self.fake.incarnation = real.incarnation
        here = dice.choice((real.incarnation, real.incarnation, real.incarnation, ELSEWHERE))
        token, holder = dice.randint(1, 5), dice.choice(("eu/gw", "dr/gw"))
        clocks = StoreClock(real.now, here), StoreClock(time.time(), here)
        what = dice.choice(("claim", "claim", "extend", "extend", "seal", "drain", "move"))
        answers: list[object] = []
        valid_for = dice.choice((60.0, 600.0, -5.0))
        for store, clock in zip((self.real, self.fake), clocks, strict=True):
            if what == "claim":
                answers.append(await store.claim(self.role, token, holder, clock, valid_for))
            elif what == "extend":
                answers.append(await store.extend(self.role, token, holder, clock, valid_for))
            elif what == "seal":
                answers.append(await store.seal(self.role, token, here))
            elif what == "drain":
                answers.append(await store.set_draining(self.role, token, valid_for > 60))
        if what == "move":  # from now on the row is one of another server's
            await self.beside.execute(
                "UPDATE fencegate.fence SET incarnation = $2 WHERE role = $1", self.role, ELSEWHERE
            )
            self.fake._fences[self.role] = replace(self.fake._fences[self.role], incarnation=ELSEWHERE)
            answers = [None, None]
        return f"{what} {token} {holder} {valid_for} {here}", *answers

    async def differ(self) -> bool:
        """Whether the two rows say different things; times may be as far apart as two clocks and a slow machine."""
        real, fake = await self.real.read(self.role), await self.fake.read(self.role)
        assert real is not None
        assert fake is not None
        same_time = real.valid_until == fake.valid_until or abs(real.valid_until - fake.valid_until) < 20
        return not same_time or real != replace(fake, valid_until=real.valid_until)


@pytest.mark.parametrize("fenced", ["lease", "token"])
async def test_the_fake_store_answers_as_postgres_does(
    store: PostgresStore, beside: asyncpg.Connection, fenced: Mode
) -> None:
    for seed in range(2):
        role, story = f"{fenced}-{seed}", []
        await store.ensure_roles({role: fenced})
        both, dice = Both(store, beside, role, fenced), random.Random(f"{fenced} {seed}")
        for _ in range(STEPS):
            what, real, fake = await both.step(dice)
            story.append(what)
            assert real == fake, story[-8:]
            assert not await both.differ(), story[-8:]
