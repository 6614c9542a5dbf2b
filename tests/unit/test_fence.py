"""The rule of the fence, as stated in Python. That SQL says the same is tested against a real Postgres."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Fence, Verdict, decide

OPEN = Fence("ledger", "lease", max_token_seen=5, sealed=4, valid_until=100.0, incarnation="1/1", holder="eu/gw-1")
SHARED = replace(OPEN, mode="token", valid_until=math.inf)


def verdict(fence: Fence | None, token: int = 5, issued: int = 0, now: float = 99.0, here: str = "1/1") -> Verdict:
    return decide(fence, token, issued=issued, now=now, incarnation=here)


def test_the_terms_own_token_is_admitted_until_the_lease_ends() -> None:
    assert verdict(OPEN) is Verdict.ADMIT
    assert verdict(OPEN, now=100.0) is Verdict.NOT_LEADING


def test_a_missing_row_is_closed() -> None:
    assert verdict(None) is Verdict.NO_FENCE


@pytest.mark.parametrize("sealed", [5, 6])
def test_a_seal_at_or_above_the_fence_closes_it(sealed: int) -> None:
    assert verdict(replace(OPEN, sealed=sealed)) is Verdict.NOT_LEADING


def test_a_fence_that_was_never_claimed_is_closed() -> None:
    assert verdict(Fence("ledger", "lease", 0, 0, -math.inf, "", "")) is Verdict.NOT_LEADING
    assert verdict(Fence("ledger", "token", 0, 0, math.inf, "1/1", "")) is Verdict.NOT_LEADING


def test_an_older_token_is_stale_and_a_newer_one_is_above() -> None:
    assert verdict(OPEN, token=4) is Verdict.STALE
    assert verdict(OPEN, token=6) is Verdict.ABOVE


def test_in_lease_mode_no_proof_lets_a_newer_token_in() -> None:
    assert verdict(OPEN, token=6, issued=2**63 - 1) is Verdict.ABOVE


def test_in_token_mode_a_newer_token_needs_proof_that_it_was_issued() -> None:
    assert verdict(SHARED, token=7, issued=6) is Verdict.ABOVE
    assert verdict(SHARED, token=7, issued=7) is Verdict.ADMIT


def test_another_server_and_a_draining_term_are_closed_before_tokens_are_compared() -> None:
    assert verdict(OPEN, token=1, here="1/2") is Verdict.OTHER_INCARNATION
    assert verdict(replace(OPEN, draining=True), token=1) is Verdict.DRAINING
    assert verdict(replace(OPEN, draining=True), here="1/2") is Verdict.OTHER_INCARNATION
    assert verdict(replace(OPEN, draining=True), now=200.0, here="1/2") is Verdict.NOT_LEADING


@given(
    st.builds(
        Fence,
        role=st.just("r"),
        mode=st.sampled_from(["lease", "token"]),
        max_token_seen=st.integers(0, 5),
        sealed=st.integers(0, 5),
        valid_until=st.sampled_from([1.0, 2.0, math.inf, -math.inf]),
        incarnation=st.sampled_from(["a", "b"]),
        holder=st.just(""),
        draining=st.booleans(),
    ),
    st.integers(1, 6),
    st.integers(0, 6),
    st.sampled_from([0.0, 1.0, 2.0, 3.0]),
)
def test_nothing_is_ever_admitted_below_the_fence_or_into_a_closed_one(
    fence: Fence, token: int, issued: int, now: float
) -> None:
    if decide(fence, token, issued=issued, now=now, incarnation="a") is Verdict.ADMIT:
        assert token >= fence.max_token_seen > fence.sealed
        assert now < fence.valid_until
        assert fence.incarnation == "a"
        assert not fence.draining
        assert token == fence.max_token_seen or (fence.mode == "token" and token <= issued)
