"""Refusals from memory: only ever of what the store would refuse, and only for as long as its word is fresh."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Fence, Verdict, decide
from fencegate.gateway.admission import Places, Presented, refusal_for
from fencegate.gateway.header_lines import header_block
from fencegate.gateway.replies import refusal_reply
from fencegate.gateway.request import Reply
from fencegate.gateway.stale import FRESH, FRESH_HINT, OF_AN_OPEN_TERM, HighestSeen, StaleReplies
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.scripted_view import ScriptedView

PLACES = Places("eu", {})
WORDS = st.lists(st.tuples(st.sampled_from(list(Verdict)), st.integers(1, 9), st.floats(0, 2)), max_size=12)


@given(WORDS, st.integers(1, 9))
def test_a_token_is_only_refused_below_a_fence_that_the_store_has_told(
    words: list[tuple[Verdict, int, float]], token: int
) -> None:
    clock = HandClock()
    seen = HighestSeen(clock)
    fence, told_at, open_term = 0, float("-inf"), False
    for verdict, step, pause in words:
        clock.now += pause
        fence += step  # It only rises.
        seen.note("ledger", verdict, fence)
        told_at, open_term = clock.now, verdict in OF_AN_OPEN_TERM
    above = seen.above("ledger", token)
    if above is not None:
        assert open_term
        assert token < above == fence
        assert clock.now - told_at < FRESH


def test_memory_ends_with_its_time_and_with_the_term() -> None:
    clock = HandClock()
    seen = HighestSeen(clock)
    assert seen.above("ledger", 1) is None
    seen.note("ledger", Verdict.ADMIT, 42)
    assert seen.above("ledger", 41) == 42
    assert seen.above("ledger", 42) is None
    assert seen.above("other", 41) is None
    clock.now += FRESH
    assert seen.above("ledger", 41) is None
    seen.note("ledger", Verdict.STALE, 42)
    assert seen.above("ledger", 41) == 42
    seen.note("ledger", Verdict.NOT_LEADING, 42)
    assert seen.above("ledger", 41) is None


def test_a_token_is_new_where_the_store_has_told_of_a_lower_one() -> None:
    seen = HighestSeen(HandClock())
    assert not seen.below("ledger", 42)
    seen.note("ledger", Verdict.ADMIT, 42)
    assert [token for token in (41, 42, 43) if seen.below("ledger", token)] == [43]
    seen.note("ledger", Verdict.NOT_LEADING, 42)
    assert not seen.below("ledger", 43)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_verdict_keeps_the_memory_only_where_the_rule_would_call_an_older_token_stale(verdict: Verdict) -> None:
    rows = [
        Fence("ledger", mode, 5, sealed, until, "here", "h", draining=draining)
        for mode in ("lease", "token")
        for sealed in (0, 5)
        for until in (0.0, 100.0)
        for draining in (False, True)
    ]
    for row in rows:
        for token in (4, 5, 6):
            if decide(row, token, issued=6, now=50.0, incarnation="here") is verdict and verdict in OF_AN_OPEN_TERM:
                assert decide(row, 4, issued=6, now=50.0, incarnation="here") is Verdict.STALE


def test_an_answer_that_comes_late_does_not_lower_the_memory() -> None:
    seen = HighestSeen(HandClock())
    seen.note("ledger", Verdict.ADMIT, 43)
    seen.note("ledger", Verdict.ADMIT, 42)
    assert seen.above("ledger", 42) == 43


@pytest.fixture
def view() -> ScriptedView:
    found = ScriptedView()
    found.lead("ledger", 42, "us", "https://ledger.us.example")
    return found


def _document(reply: Reply) -> dict[str, Any]:
    assert isinstance(reply.body, bytes)
    document: dict[str, Any] = orjson.loads(reply.body)
    return document


def test_a_repeated_reply_is_the_usual_one_with_an_instance_of_its_own(view: ScriptedView) -> None:
    replies = StaleReplies(view, PLACES, HandClock())
    first, second = replies.reply("ledger", 41, 42), replies.reply("ledger", 41, 42)
    usual = refusal_reply(
        refusal_for(Verdict.STALE, Presented("ledger", 41), 42, view.observed("ledger"), PLACES), "eu"
    )
    instances = {_document(reply).pop("instance") for reply in (first, second, usual)}
    assert len(instances) == 3
    for reply in (first, second):
        assert reply.status == usual.status
        assert reply.block == header_block(usual.headers)
        assert {**_document(reply), "instance": ""} == {**_document(usual), "instance": ""}


def test_a_reply_follows_the_fence_at_once_and_the_leader_soon(view: ScriptedView) -> None:
    clock = HandClock()
    replies = StaleReplies(view, PLACES, clock)
    assert _document(replies.reply("ledger", 41, 42))["leader"]["token"] == 42
    assert _document(replies.reply("ledger", 41, 43))["max_token_seen"] == 43
    view.lead("ledger", 43, "eu", "https://ledger.eu.example")
    clock.now += FRESH_HINT
    assert _document(replies.reply("ledger", 41, 43))["leader"]["token"] == 43


def test_a_role_with_quotes_in_its_name_is_no_way_out_of_the_document(view: ScriptedView) -> None:
    role = 'x"urn:uuid:00000000-0000-4000-8000-000000000000"'
    document = _document(StaleReplies(view, PLACES, HandClock()).reply(role, 41, 42))
    assert document["role"] == role
    assert document["instance"] != "urn:uuid:00000000-0000-4000-8000-000000000000"


def test_tokens_of_every_size_do_not_fill_the_memory(view: ScriptedView) -> None:
    replies = StaleReplies(view, PLACES, HandClock())
    for token in range(1, 2000):
        replies.reply("ledger", token, 5000)
    assert len(replies._made) <= 256
