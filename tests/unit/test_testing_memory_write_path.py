"""The write path in memory keeps the promises of the real one: the tests that lean on it prove nothing otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Forward, StoredAnswer, Verdict, Write
from fencegate.telling import heard
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.memory_write_path import FunctionError, MemoryWritePath

KEY, PAYLOAD, OTHER = b"k" * 16, b"p" * 16, b"o" * 16
ANSWER = StoredAnswer(201, (("X", "1"),), b"made", PAYLOAD)


def opened(token: int = 5, **options: Any) -> MemoryWritePath:
    path = MemoryWritePath(HandClock())
    path.open("r", token, **options)
    return path


def write(token: int = 5, *, keyed: bool = False, payload: bytes = PAYLOAD, **more: Any) -> Write:
    key = {"key": "k", "key_digest": KEY, "payload_digest": payload} if keyed else {}
    return Write("r", token, b"{}", **{**key, **more})


async def test_only_the_terms_token_lands() -> None:
    path = opened()
    assert (await path.append(write(4), 1.0)).verdict is Verdict.STALE
    assert (await path.append(write(6), 1.0)).verdict is Verdict.ABOVE
    assert (await path.append(write(), 1.0)).effect is Effect.APPLIED
    path.seal("r")
    assert (await path.append(write(), 1.0)).verdict is Verdict.NOT_LEADING
    assert (await path.append(Write("nowhere", 5, b"{}"), 1.0)).verdict is Verdict.NO_FENCE
    assert [entry.seq for entry in path.ledger["r"]] == [1]


async def test_a_lease_that_ran_out_is_over_on_the_paths_own_clock() -> None:
    path = opened(valid_for=10.0)
    assert isinstance(path.clock, HandClock)
    path.clock.now += 10.0
    assert (await path.append(write(), 1.0)).verdict is Verdict.NOT_LEADING


async def test_a_key_is_replayed_with_any_verdict_and_never_for_another_payload() -> None:
    path = opened()
    first = await path.append(write(keyed=True), 1.0)
    path.seal("r")
    again = await path.append(write(keyed=True), 1.0)
    assert (again.verdict, again.effect, again.entry) == (Verdict.NOT_LEADING, Effect.REPLAYED, first.entry)
    assert (await path.append(write(keyed=True, payload=OTHER), 1.0)).effect is Effect.KEY_REUSED
    assert await heard(partial(path.knows, "r", KEY, 1.0))
    assert not await heard(partial(path.knows, "r", OTHER, 1.0))
    assert len(path.ledger["r"]) == 1


async def test_a_functions_exception_keeps_no_key() -> None:
    path = opened()

    def reject(body: Any, context: dict[str, object]) -> Any:
        raise FunctionError("no")

    path.functions = {"f": reject}
    assert (await path.call("f", write(keyed=True), 1.0)).effect is Effect.REJECTED
    assert not await heard(partial(path.knows, "r", KEY, 1.0))


async def test_a_forwards_key_runs_is_answered_is_taken_back_or_stays_unknown() -> None:
    path = opened()
    forward = Forward("r", 5, 10.0, key_digest=KEY)
    admitted = await path.admit(forward, 1.0)
    assert admitted.effect is Effect.APPLIED
    assert (await path.admit(forward, 1.0)).effect is Effect.IN_PROGRESS
    await path.settle(admitted.ticket, None, sent=False)
    assert path.marks("r") == 0
    again = await path.admit(forward, 1.0)
    assert again.effect is Effect.APPLIED
    await path.settle(again.ticket, ANSWER)
    assert (await path.admit(forward, 1.0)).stored == ANSWER
    lost = await path.admit(Forward("r", 5, 10.0, key_digest=OTHER), 1.0)
    await path.settle(lost.ticket, None)
    assert (await path.admit(Forward("r", 5, 10.0, key_digest=OTHER), 1.0)).effect is Effect.UNKNOWN
    assert path.marks("r") == 1


async def test_a_newer_term_waits_for_an_older_mark_until_its_limit_has_passed() -> None:
    path = opened(mode="token")
    old = await path.admit(Forward("r", 5, 10.0), 1.0)
    newer = Forward("r", 6, 10.0, issued=6)
    assert (await path.admit(newer, 0.0)).verdict is Verdict.UNDRAINED
    assert isinstance(path.clock, HandClock)
    path.clock.now += 10.0
    assert (await path.admit(newer, 0.0)).effect is Effect.APPLIED
    await path.settle(old.ticket, None)


async def test_failures_can_be_staged_before_and_after_the_write() -> None:
    path = opened()
    path.failure = Unavailable("away")
    with pytest.raises(Unavailable):
        await path.append(write(), 1.0)
    assert not path.ledger
    path.failure, path.applies_before_failure = OutcomeUnknown("lost", "connection"), True
    with pytest.raises(OutcomeUnknown):
        await path.append(write(), 1.0)
    assert len(path.ledger["r"]) == 1


async def test_observe_mode_writes_whatever_the_verdict_and_never_raises_the_fence() -> None:
    path = opened()
    seen = await path.append(write(9, enforce=False), 1.0)
    assert (seen.verdict, seen.effect, path.fences["r"].max_token_seen) == (Verdict.ABOVE, Effect.APPLIED, 5)
