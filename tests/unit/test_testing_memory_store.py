"""The fake store keeps the contract of a store, or tests on it would prove nothing."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.errors import Unavailable
from fencegate.fence import ClaimRefused, StoreClock, Verdict
from fencegate.testing.memory_store import MemoryStore

ROLE, EU, DR = "ledger", "eu/gw", "dr/gw"


class Scene:
    def __init__(self, mode: str = "lease") -> None:
        self.now = 1000.0
        self.store = MemoryStore([ROLE], lambda: self.now, mode=mode)  # type: ignore[arg-type]

    async def claim(self, token: int, holder: str = EU, valid_for: float = 10) -> ClaimRefused | None:
        return await self.store.claim(ROLE, token, holder, await self.store.clock(), valid_for)

    async def extend(self, token: int, holder: str = EU) -> ClaimRefused | None:
        return await self.store.extend(ROLE, token, holder, await self.store.clock(), 10)


async def test_a_claim_opens_and_time_closes() -> None:
    scene = Scene()
    assert scene.store.write(ROLE, 5) is Verdict.NOT_LEADING
    assert await scene.claim(5) is None
    assert scene.store.write(ROLE, 5) is Verdict.ADMIT
    scene.now += 10
    assert scene.store.write(ROLE, 5) is Verdict.NOT_LEADING


async def test_claims_that_must_be_refused_are() -> None:
    scene = Scene()
    await scene.claim(5)

    assert await scene.claim(4) is ClaimRefused.SUPERSEDED
    assert await scene.claim(5, DR) is ClaimRefused.SUPERSEDED
    assert await scene.claim(5) is None
    assert await scene.claim(6, valid_for=0) is ClaimRefused.EXPIRED
    stale = StoreClock(scene.now, "0/0")
    assert await scene.store.claim(ROLE, 6, EU, stale, 10) is ClaimRefused.INCARNATION
    assert await scene.store.claim("other", 6, EU, stale, 10) is ClaimRefused.NO_FENCE
    await scene.store.seal(ROLE, 7, scene.store.incarnation)
    assert await scene.claim(7) is ClaimRefused.SEALED
    assert await scene.claim(8) is None


async def test_an_extension_needs_exactly_the_open_term() -> None:
    scene = Scene()
    await scene.claim(5)

    assert await scene.extend(4) is ClaimRefused.SUPERSEDED
    assert await scene.extend(6) is ClaimRefused.SUPERSEDED
    assert await scene.extend(5, DR) is ClaimRefused.SUPERSEDED
    assert await scene.extend(5) is None
    before = await scene.store.clock()
    scene.now += 11
    assert await scene.store.extend(ROLE, 5, EU, before, 10) is ClaimRefused.EXPIRED
    assert not scene.store.is_open(ROLE)
    scene.store.fail_over()
    assert await scene.extend(5) is ClaimRefused.INCARNATION
    assert await scene.store.extend("other", 5, EU, before, 10) is ClaimRefused.NO_FENCE


async def test_an_extension_never_shortens() -> None:
    scene = Scene()
    await scene.claim(5, valid_for=100)
    await scene.extend(5)
    scene.now += 50

    assert scene.store.is_open(ROLE)


async def test_a_late_renewal_does_not_undo_a_seal() -> None:
    scene = Scene()
    await scene.claim(5)
    assert await scene.store.seal(ROLE, 5, scene.store.incarnation)

    assert await scene.extend(5) is ClaimRefused.SEALED
    assert scene.store.write(ROLE, 5) is Verdict.NOT_LEADING


async def test_a_seal_elsewhere_than_where_the_term_was_open_is_not_known_to_stand() -> None:
    scene = Scene()
    await scene.claim(5)
    opened_on = scene.store.incarnation
    scene.store.fail_over()

    assert not await scene.store.seal(ROLE, 5, opened_on)
    assert not await scene.store.seal("other", 5, opened_on)


async def test_a_seal_of_a_term_that_was_never_claimed_here_is_not_known_to_stand() -> None:
    scene = Scene()
    await scene.claim(5)

    assert not await scene.store.seal(ROLE, 6, scene.store.incarnation)
    assert await scene.claim(6) is ClaimRefused.SEALED


async def test_sealing_an_old_term_leaves_the_newer_one_open() -> None:
    scene = Scene()
    await scene.claim(5)
    await scene.claim(6)
    await scene.store.seal(ROLE, 5, scene.store.incarnation)

    assert scene.store.is_open(ROLE)


async def test_draining_closes_and_a_new_claim_opens_again() -> None:
    scene = Scene()
    await scene.claim(5)
    assert not await scene.store.set_draining(ROLE, 4, True)
    assert not await scene.store.set_draining("other", 4, True)
    assert await scene.store.set_draining(ROLE, 5, True)
    assert scene.store.write(ROLE, 5) is Verdict.DRAINING
    await scene.claim(6)
    assert scene.store.write(ROLE, 6) is Verdict.ADMIT


async def test_a_write_raises_only_in_token_mode_and_only_to_what_was_issued() -> None:
    lease, token = Scene(), Scene("token")
    await lease.claim(5)
    await token.claim(5)

    assert lease.store.write(ROLE, 6, issued=6) is Verdict.ABOVE
    assert token.store.write(ROLE, 6, issued=5) is Verdict.ABOVE
    assert token.store.write(ROLE, 6, issued=6) is Verdict.ADMIT
    assert token.store.write(ROLE, 5) is Verdict.STALE
    assert token.store.accepted == [(ROLE, 6)]


async def test_its_faults_are_those_of_a_store() -> None:
    scene = Scene()
    scene.store.down = True
    with pytest.raises(Unavailable):
        await scene.store.read_all()
    scene.store.down = False
    scene.store.hanging = {"read"}
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(scene.store.read(ROLE), 0.01)
