"""Which idempotency keys the store knows: many questions in one read, each with an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fencegate.errors import Unavailable
from fencegate.store.postgres import PostgresStore
from fencegate.telling import heard
from store.writing import ROLE, open_term, write


async def test_many_questions_at_once_each_get_their_own_answer(store: PostgresStore) -> None:
    await store.ensure_roles({"other": "lease"})
    await open_term(store, 1)
    written = [write(1, key=f"k-{n}") for n in range(0, 700, 2)]
    await asyncio.gather(*(store.append(one, 5.0) for one in written))
    asked = [write(1, key=f"k-{n}").key_digest for n in range(700)]
    known = await asyncio.gather(*(heard(partial(store.knows, ROLE, digest, 5.0)) for digest in asked))
    assert known == [n % 2 == 0 for n in range(700)]
    assert not await heard(partial(store.knows, "other", asked[0], 5.0))
    assert not await heard(partial(store.knows, "no-such-role", asked[0], 5.0))


async def test_a_write_that_was_committed_before_the_question_is_known(store: PostgresStore) -> None:
    await open_term(store, 1)
    other = write(1, key="other").key_digest
    for n in range(20):
        one = write(1, key=f"k-{n}")
        busy = asyncio.ensure_future(heard(partial(store.knows, ROLE, other, 5.0)))
        await asyncio.sleep(0)  # A read is under way, which began before the write.
        await store.append(one, 5.0)
        assert await heard(partial(store.knows, ROLE, one.key_digest, 5.0))
        assert not await busy


async def test_a_store_that_cannot_be_asked_gives_no_answer(make_store: Callable[..., Any]) -> None:
    down = await make_store("postgresql://127.0.0.1:1/none")
    with pytest.raises(Unavailable):
        await heard(partial(down.knows, ROLE, bytes(16), 2.0))
    with pytest.raises(ValueError, match="16 bytes"):
        await heard(partial(down.knows, ROLE, b"short", 2.0))
