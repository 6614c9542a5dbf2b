"""The built-in ledger: sequence, chain, keys, and what one bad write does to its neighbours (nothing)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Verdict
from fencegate.store import ledger
from fencegate.store.chain import verify_chain
from fencegate.store.postgres import PostgresStore
from store.writing import ROLE, bodies, open_term, whole_ledger, write


async def test_a_write_lands_once_and_says_where(store: PostgresStore) -> None:
    await open_term(store, 7)
    result = await store.append(write(7, b'{"amount":  5}', key="k-1"), 5.0)
    assert (result.verdict, result.effect, result.max_token_seen) == (Verdict.ADMIT, Effect.APPLIED, 7)
    assert result.entry is not None
    [entry] = await whole_ledger(store)
    assert (entry.role, entry.seq, entry.token, entry.body, entry.key) == (ROLE, 1, 7, b'{"amount":  5}', "k-1")
    assert (result.entry.seq, result.entry.hash, result.entry.recorded_at) == (1, entry.hash, entry.recorded_at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.recorded_at)
    assert await store.entry(ROLE, 1) == entry
    assert await store.entry(ROLE, 2) is None
    assert await store.entry("other", 1) is None


async def test_the_chain_can_be_checked_without_the_database(store: PostgresStore) -> None:
    await open_term(store, 1)
    texts = [b'"plain"', '"Zürich — 東京"'.encode(), b'"\\u0000\\ud83d\\ude00"', b" [1,\n2] ", b'{"a":1,"a":2}']
    await asyncio.gather(
        *(store.append(write(1, text, key=f"k{i}" if i % 2 else ""), 5.0) for i, text in enumerate(texts))
    )
    await open_term(store, 2)
    await store.append(write(2, b"9007199254740993"), 5.0)
    entries = await whole_ledger(store)
    assert verify_chain(ROLE, entries) is None
    assert set(texts) <= {entry.body for entry in entries}
    changed = entries[2]
    tampered = [*entries[:2], type(changed)(**{f: getattr(changed, f) for f in changed.__slots__} | {"body": b"0"})]
    broken = verify_chain(ROLE, tampered)
    assert broken is not None
    assert broken.seq == 3


async def test_who_wrote_an_entry_is_kept_with_it_and_cannot_be_changed_unseen(
    store: PostgresStore, beside: asyncpg.Connection
) -> None:
    await open_term(store, 1)
    callers = ["", "alice", "spiffe://example.org/ns/a/billing", "CN=b\\, c,O=Example"]
    written = await asyncio.gather(*(store.append(write(1, caller=caller), 5.0) for caller in callers))
    alone = [await store.append(write(1, caller=caller), 5.0) for caller in callers]
    assert [r.entry and r.entry.caller for r in (*written, *alone)] == [caller or None for caller in callers] * 2
    entries = await whole_ledger(store)
    assert sorted(entry.caller or "" for entry in entries) == sorted([*callers, *callers])
    assert verify_chain(ROLE, entries) is None
    for seq, change in ((2, "'mallory'"), (3, "NULL")):
        async with beside.transaction():
            await beside.execute("SET LOCAL session_replication_role = replica")
            await beside.execute(f"UPDATE fencegate.entry SET caller = {change} WHERE seq = {seq} + 4")
        broken = verify_chain(ROLE, await whole_ledger(store))
        assert broken is not None
        assert broken.seq <= seq + 4
        async with beside.transaction():
            await beside.execute("SET LOCAL session_replication_role = replica")
            await beside.execute(
                "UPDATE fencegate.entry SET caller = $1 WHERE seq = $2", callers[seq - 1] or None, seq + 4
            )
    assert verify_chain(ROLE, await whole_ledger(store)) is None


async def test_a_replay_is_told_with_who_wrote_it(store: PostgresStore) -> None:
    await open_term(store, 1)
    await store.append(write(1, key="k", caller="alice"), 5.0)
    again = await store.append(write(1, key="k", caller="alice"), 5.0)
    assert again.effect is Effect.REPLAYED
    assert again.entry is not None
    assert again.entry.caller == "alice"


async def test_a_replay_gives_the_first_result_in_one_batch_and_across_batches(store: PostgresStore) -> None:
    await open_term(store, 3)
    together = await asyncio.gather(*(store.append(write(3, key="same"), 5.0) for _ in range(20)))
    assert sorted(r.effect for r in together if r.effect is not None) == [Effect.APPLIED] + [Effect.REPLAYED] * 19
    assert len({(r.entry.seq, r.entry.hash, r.entry.recorded_at) for r in together if r.entry}) == 1
    later = await store.append(write(3, key="same"), 5.0)
    assert later.effect is Effect.REPLAYED
    assert later.entry == (await whole_ledger(store))[0]
    assert len(await whole_ledger(store)) == 1


async def test_a_key_with_another_payload_is_told_apart(store: PostgresStore) -> None:
    await open_term(store, 3)
    await store.append(write(3, b"1", key="k"), 5.0)
    other = await store.append(write(3, b"2", key="k"), 5.0)
    assert (other.effect, other.entry) == (Effect.KEY_REUSED, None)
    both = await asyncio.gather(store.append(write(3, b"1", key="j"), 5.0), store.append(write(3, b"2", key="j"), 5.0))
    assert sorted(r.effect for r in both if r.effect is not None) == [Effect.APPLIED, Effect.KEY_REUSED]
    assert sorted(await bodies(store)) == [b"1", b"1"]


async def test_new_replayed_and_reused_keys_in_one_batch_keep_the_chain_whole(store: PostgresStore) -> None:
    await open_term(store, 3)
    for n in range(3):
        await store.append(write(3, b"0", key=f"old-{n}"), 5.0)
    batch = [write(3, b"0", key=f"old-{n}") for n in range(3)]
    batch += [write(3, b"1", key=f"new-{n % 4}") for n in range(8)] + [write(3, b"2") for _ in range(4)]
    batch += [write(3, b"9", key="old-0")]
    results = await asyncio.gather(*(store.append(w, 5.0) for w in batch))
    effects = [r.effect for r in results]
    assert effects.count(Effect.APPLIED) == 8
    assert effects.count(Effect.REPLAYED) == 7
    assert effects.count(Effect.KEY_REUSED) == 1
    entries = await whole_ledger(store)
    assert [entry.seq for entry in entries] == list(range(1, 12))
    assert verify_chain(ROLE, entries) is None
    by_seq = {entry.seq: entry for entry in entries}
    for sent, result in zip(batch, results, strict=True):
        if result.entry is not None:
            landed = by_seq[result.entry.seq]
            assert (landed.key or "", landed.body, landed.hash) == (sent.key, sent.body, result.entry.hash)


async def test_roles_in_one_batch_have_a_sequence_each(store: PostgresStore) -> None:
    roles = [f"shard/{n}" for n in range(5)]
    await store.ensure_roles(dict.fromkeys(roles, "lease"))
    for role in roles[:4]:
        await open_term(store, 2, role=role)
    results = await asyncio.gather(*(store.append(write(2, role=role), 5.0) for role in roles * 6))
    assert [r.verdict for r in results].count(Verdict.NOT_LEADING) == 6
    for role in roles[:4]:
        entries = await whole_ledger(store, role)
        assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6]
        assert verify_chain(role, entries) is None
    assert await whole_ledger(store, roles[4]) == []


async def test_the_same_key_in_two_roles_is_two_keys(store: PostgresStore) -> None:
    await store.ensure_roles({"other": "lease"})
    await open_term(store, 1)
    await open_term(store, 1, role="other")
    one, two = await asyncio.gather(
        store.append(write(1, key="k"), 5.0), store.append(write(1, key="k", role="other"), 5.0)
    )
    assert (one.effect, two.effect) == (Effect.APPLIED, Effect.APPLIED)


async def test_a_body_that_the_database_cannot_take_fails_alone(store: PostgresStore) -> None:
    await open_term(store, 1)
    batch = [write(1, b'{"n": 1}') for _ in range(9)]
    batch[4] = write(1, b"{not json")
    results = await asyncio.gather(*(store.append(w, 5.0) for w in batch), return_exceptions=True)
    assert isinstance(results[4], Unavailable)
    assert "22P02" in str(results[4])
    assert [r.effect for i, r in enumerate(results) if i != 4 and not isinstance(r, BaseException)] == [0] * 8
    assert await bodies(store) == [b'{"n": 1}'] * 8


@pytest.mark.parametrize(
    "broken",
    [
        {"body": b"\xff"},
        {"body": b'"a\x1eb"'},
        {"key": "k", "key_digest": b"short", "payload_digest": bytes(16)},
        {"key": "k", "key_digest": b"", "payload_digest": bytes(16)},
        {"key": "a\x1eb", "key_digest": bytes(16), "payload_digest": bytes(16)},
        {"key": "k", "key_digest": bytes(16), "payload_digest": b""},
        {"token": 0},
        {"token": 2**63},
        {"issued": -1},
        {"caller": "a\x1eb"},
        {"caller": "Zürich"},
    ],
)
async def test_a_write_that_breaks_the_contract_never_meets_others(
    store: PostgresStore, broken: dict[str, Any]
) -> None:
    await open_term(store, 1)
    good = asyncio.create_task(store.append(write(1), 5.0))
    with pytest.raises(ValueError, match=r"\w"):
        await store.append(write(**{"token": 1, "body": b"{}", **broken}), 5.0)
    assert (await good).effect is Effect.APPLIED
    assert len(await whole_ledger(store)) == 1


async def test_a_refused_write_is_nowhere_and_its_key_stays_free(store: PostgresStore) -> None:
    refused = await store.append(write(1, key="k"), 5.0)
    assert (refused.verdict, refused.effect) == (Verdict.NOT_LEADING, None)
    await open_term(store, 2)
    assert (await store.append(write(1, key="k"), 5.0)).verdict is Verdict.STALE
    assert (await store.append(write(2, key="k"), 5.0)).effect is Effect.APPLIED


async def test_a_stored_result_is_given_back_even_when_the_term_is_over(store: PostgresStore) -> None:
    clock = await open_term(store, 1)
    first = await store.append(write(1, key="k"), 5.0)
    await open_term(store, 2)
    stale = await store.append(write(1, key="k"), 5.0)
    assert (stale.verdict, stale.effect) == (Verdict.STALE, Effect.REPLAYED)
    assert await store.seal(ROLE, 2, clock.incarnation)
    closed = await asyncio.gather(
        store.append(write(2, key="k"), 5.0),
        store.append(write(2, b"other", key="k"), 5.0),
        store.append(write(2, key="new"), 5.0),
    )
    assert [r.effect for r in closed] == [Effect.REPLAYED, Effect.KEY_REUSED, None]
    assert stale.entry is not None
    assert first.entry is not None
    assert closed[0].entry == stale.entry
    assert stale.entry.hash == first.entry.hash


async def test_observe_mode_writes_whatever_the_verdict_and_raises_nothing(store: PostgresStore) -> None:
    closed = await store.append(write(5, enforce=False), 5.0)
    assert (closed.verdict, closed.effect) == (Verdict.NOT_LEADING, Effect.APPLIED)
    await open_term(store, 7)
    stale, above = await asyncio.gather(
        store.append(write(6, enforce=False), 5.0), store.append(write(9, enforce=False), 5.0)
    )
    assert (stale.verdict, above.verdict) == (Verdict.STALE, Verdict.ABOVE)
    fence = await store.read(ROLE)
    assert fence is not None
    assert (fence.max_token_seen, fence.last_seq) == (7, 3)
    assert verify_chain(ROLE, await whole_ledger(store)) is None
    assert (await store.append(write(1, role="nowhere", enforce=False), 5.0)).verdict is Verdict.NO_FENCE


async def test_a_lost_read_of_a_replay_never_unsays_the_committed_neighbours(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_term(store, 1)
    await store.append(write(1, key="old"), 5.0)
    link = store._link("test")

    async def lost(*_: object) -> Any:
        raise Unavailable("gone")

    monkeypatch.setattr(link, "read", lost)
    results = await ledger.append(link, 5.0, [write(1, b"1", key="new"), write(1, key="old"), write(1, b"2")])
    assert isinstance(results[1], OutcomeUnknown)
    assert [getattr(r, "effect", None) for r in results] == [Effect.APPLIED, None, Effect.APPLIED]
    assert await bodies(store) == [b'{"n": 1}', b"1", b"2"]
    await link.close()


async def test_the_ledger_is_append_only(store: PostgresStore, beside: asyncpg.Connection) -> None:
    await open_term(store, 1)
    await store.append(write(1), 5.0)
    for statement in (
        "UPDATE fencegate.entry SET token = 9",
        "DELETE FROM fencegate.entry",
        "TRUNCATE fencegate.entry",
    ):
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            await beside.execute(statement)
    assert len(await whole_ledger(store)) == 1


async def test_entries_are_read_in_pages(store: PostgresStore) -> None:
    await open_term(store, 1)
    await asyncio.gather(*(store.append(write(1, b"%d" % n), 5.0) for n in range(25)))
    pages = [await store.entries(ROLE, after, 10) for after in (0, 10, 20, 25)]
    assert [[e.seq for e in page] for page in pages] == [
        list(range(1, 11)),
        list(range(11, 21)),
        list(range(21, 26)),
        [],
    ]


async def test_ten_thousand_writes_take_seconds_not_minutes(
    store: PostgresStore, make_store: Callable[..., Any]
) -> None:
    """Not a benchmark: group commit works at all, and nothing is quadratic."""
    await open_term(store, 1)
    other = await make_store(gateway="gw-2")
    loop = asyncio.get_running_loop()
    began = loop.time()
    results = await asyncio.gather(
        *((store, other)[n % 2].append(write(1, b"%d" % n, key=f"k-{n}"), 30.0) for n in range(10_000))
    )
    assert loop.time() - began < 20
    assert all(r.effect is Effect.APPLIED for r in results)
    entries = await whole_ledger(store)
    assert len(entries) == 10_000
    assert verify_chain(ROLE, entries) is None
