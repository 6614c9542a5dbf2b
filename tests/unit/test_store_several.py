"""Writes over several stores: each goes to the store that holds its role, and nothing of one touches another."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Effect, Forward, StoredAnswer, Verdict, Write, WriteResult
from fencegate.observations import FenceSeen, KeysExpired, Observation, StoreCameUp, StoreWentDown
from fencegate.store.several import SeveralStores, _naming
from fencegate.telling import give, heard
from fencegate.testing.memory_write_path import MemoryWritePath


def memory(*roles: str) -> MemoryWritePath:
    path = MemoryWritePath()
    for role in roles:
        path.open(role, 7)
    return path


def write(role: str) -> Write:
    return Write(role, 7, b'{"n":1}', key="k", key_digest=bytes(16), payload_digest=bytes(16))


async def test_a_write_goes_to_the_store_of_its_role_and_only_there() -> None:
    north, south = memory("a", "b"), memory("b")
    both = SeveralStores({"a": north, "b": south})
    assert (await both.append(write("b"), 1)).effect is Effect.APPLIED
    answer: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    both.send(write("b"), 1, partial(give, answer))
    assert (await answer).effect is Effect.REPLAYED
    assert await north.entries("b", 0, 10) == []
    assert [entry.seq for entry in await both.entries("b", 0, 10)] == [1]
    assert await both.entries("a", 0, 10) == []
    assert (await both.entry("b", 1)) is not None
    assert await both.peek("a", 7, 1) == (Verdict.ADMIT, 7)
    assert (
        await heard(partial(both.knows, "b", bytes(16), 1)),
        await heard(partial(both.knows, "a", bytes(16), 1)),
    ) == (True, False)


async def test_a_store_that_fails_refuses_its_own_roles_alone() -> None:
    north, south = memory("a"), memory("b")
    both = SeveralStores({"a": north, "b": south})
    south.failure = Unavailable("down")
    with pytest.raises(Unavailable, match="down"):
        await both.append(write("b"), 1)
    assert (await both.append(write("a"), 1)).effect is Effect.APPLIED


async def test_tickets_of_two_stores_with_the_same_number_are_settled_each_in_its_own() -> None:
    north, south = memory("a"), memory("b")
    both = SeveralStores({"a": north, "b": south})
    forwards = {role: Forward(role, 7, 5.0, key_digest=role.encode() * 16) for role in "ab"}
    tickets = {role: (await both.admit(forward, 1)).ticket for role, forward in forwards.items()}
    assert len(set(tickets.values())) == 2
    assert all(tickets.values())
    await both.settle(tickets["b"], StoredAnswer(201, (), b"of b", bytes(16)))
    again = {role: await both.admit(forward, 1) for role, forward in forwards.items()}
    assert (again["a"].effect, again["b"].effect) == (Effect.IN_PROGRESS, Effect.REPLAYED)
    assert again["b"].stored is not None
    assert again["b"].stored.body == b"of b"
    await both.settle(tickets["a"], None, sent=False)
    assert (await both.admit(forwards["a"], 1)).effect is Effect.APPLIED


async def test_a_role_that_no_store_holds_is_refused_as_by_a_store_that_does_not_answer() -> None:
    both = SeveralStores({"a": memory("a")})
    with pytest.raises(Unavailable, match="no store holds the role b"):
        await both.append(write("b"), 1)
    with pytest.raises(Unavailable, match="no store holds the role b"):
        both.send(write("b"), 1, lambda found: None)


def test_what_a_store_tells_has_its_name_and_nothing_of_rows_that_are_anothers() -> None:
    heard: list[Observation] = []
    told = _naming("south", {"b"}, heard.append)
    for fact in (StoreWentDown("gone"), StoreCameUp("1/1"), FenceSeen("a", 9, False), FenceSeen("b", 7, False)):
        told(fact)
    told(KeysExpired(3))
    assert heard == [
        StoreWentDown("gone", "south"),
        StoreCameUp("1/1", "south"),
        FenceSeen("b", 7, False),
        KeysExpired(3),
    ]
