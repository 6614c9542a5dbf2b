"""The rule of the fence, by its cases and by what must hold for every row, token and moment."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Fence, Verdict, decide

OPEN = Fence("ledger", "lease", max_token_seen=42, sealed=0, valid_until=100.0, incarnation="1/1", holder="eu/gw-1")
SHARED = replace(OPEN, mode="token", valid_until=math.inf)


def verdict(fence: Fence | None, token: int, *, issued: int = 0, now: float = 50.0, on: str = "1/1") -> Verdict:
    return decide(fence, token, issued=issued, now=now, incarnation=on)


def test_an_equal_token_passes_and_an_older_one_is_stale() -> None:
    assert verdict(OPEN, 42) is Verdict.ADMIT
    assert verdict(OPEN, 41) is Verdict.STALE


def test_a_missing_row_is_closed_and_never_the_first_writer() -> None:
    assert verdict(None, 1) is Verdict.NO_FENCE


def test_the_lease_ends_on_the_stores_clock_to_the_instant() -> None:
    assert verdict(OPEN, 42, now=99.999) is Verdict.ADMIT
    assert verdict(OPEN, 42, now=100.0) is Verdict.NOT_LEADING


def test_a_seal_closes_the_term_it_names_and_all_before() -> None:
    assert verdict(replace(OPEN, sealed=41), 42) is Verdict.ADMIT
    assert verdict(replace(OPEN, sealed=42), 42) is not Verdict.ADMIT
    assert verdict(replace(OPEN, sealed=43), 42) is not Verdict.ADMIT


def test_another_server_than_that_of_the_claim_is_closed() -> None:
    assert verdict(OPEN, 42, on="1/2") is Verdict.OTHER_INCARNATION


def test_a_draining_term_takes_no_new_write() -> None:
    assert verdict(replace(OPEN, draining=True), 42) is Verdict.DRAINING


@pytest.mark.parametrize("issued", [0, 42, 43, 2**63 - 1])
def test_in_lease_mode_no_write_raises_whatever_was_issued(issued: int) -> None:
    assert verdict(OPEN, 43, issued=issued) is Verdict.ABOVE


def test_in_token_mode_only_an_issued_token_raises() -> None:
    assert verdict(SHARED, 43) is Verdict.ABOVE
    assert verdict(SHARED, 43, issued=43) is Verdict.ADMIT
    assert verdict(SHARED, 44, issued=43) is Verdict.ABOVE
    assert verdict(SHARED, 2**63 - 1, issued=43) is Verdict.ABOVE


small = st.integers(min_value=0, max_value=5)
fences = st.builds(
    Fence,
    role=st.just("ledger"),
    mode=st.sampled_from(["lease", "token"]),
    max_token_seen=small,
    sealed=small,
    valid_until=st.sampled_from([-math.inf, 0.0, 1.0, 2.0, math.inf]),
    incarnation=st.sampled_from(["1/1", "1/2", ""]),
    holder=st.just("eu/gw-1"),
    draining=st.booleans(),
)


@given(st.none() | fences, small, small, st.sampled_from([0.0, 1.0, 2.0]))
def test_whatever_is_admitted_keeps_every_rule(fence: Fence | None, token: int, issued: int, now: float) -> None:
    if verdict(fence, token, issued=issued, now=now) is not Verdict.ADMIT:
        return
    assert fence is not None
    assert token >= fence.max_token_seen > fence.sealed
    assert now < fence.valid_until
    assert fence.incarnation == "1/1"
    assert not fence.draining
    assert token == fence.max_token_seen or (fence.mode == "token" and token <= issued)


@given(fences, small, small, st.sampled_from([0.0, 1.0, 2.0]))
def test_a_higher_max_never_turns_a_refusal_into_an_admission(
    fence: Fence, token: int, issued: int, now: float
) -> None:
    """A refusal from memory is always safe: a token refused as stale stays refused when the fence is raised."""
    if verdict(fence, token, issued=issued, now=now) is Verdict.STALE:
        for more in range(1, 4):
            raised = replace(fence, max_token_seen=fence.max_token_seen + more)
            assert verdict(raised, token, issued=issued, now=now) is not Verdict.ADMIT
