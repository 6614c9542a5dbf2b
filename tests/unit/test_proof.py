"""The gate's proof: it holds for the request that it was made for, and for no other."""

from __future__ import annotations

import string
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fencegate.key_ring import SharedKey
from fencegate.proof import (
    LIFETIME,
    Passage,
    ProofRefused,
    Stamp,
    canonical,
    digest_of,
    sign,
    verify,
)

NOW = 1_796_000_000.0
KEY = SharedKey("2026-11", b"a" * 32)
OTHER = SharedKey("2026-12", b"b" * 32)
PASSAGE = Passage("POST", b"/v1/entries", b"a=1", b"42", b"42", b"30000", b"pay-1", b"CN=billing")
STAMP = Stamp(
    int(NOW * 1000), int((NOW + LIFETIME) * 1000), "0123456789abcdef", "ledger/eu-1", "enforce", digest_of(b"{}")
)

values = st.none() | st.binary(max_size=12)
passages = st.builds(
    Passage,
    method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE", "X-1"]),
    path=st.binary(max_size=12),
    query=st.binary(max_size=12),
    token=values,
    max_seen=values,
    timeout_ms=values,
    idempotency_key=values,
    caller=values,
)
stamps = st.builds(
    Stamp,
    issued=st.integers(1, 10**15),
    expires=st.integers(1, 10**15),
    nonce=st.text("0123456789abcdef", min_size=16, max_size=16),
    role=st.text(string.ascii_letters + string.digits + "._~-/", min_size=1, max_size=12),
    mode=st.sampled_from(["enforce", "observe"]),
    body=st.none() | st.binary(max_size=3).map(digest_of),
)


def test_a_proof_holds_for_its_own_request_and_says_what_was_stamped() -> None:
    assert verify([OTHER, KEY], sign(KEY, STAMP, PASSAGE), PASSAGE, NOW, 0.0) == STAMP


@given(passages, stamps)
def test_whatever_was_signed_is_read_back_the_same(passage: Passage, stamp: Stamp) -> None:
    middle = (stamp.issued + stamp.expires) / 2000
    assert verify([KEY], sign(KEY, stamp, passage), passage, middle, 10**12) == stamp


@given(passages, passages)
def test_a_proof_holds_for_no_other_request(one: Passage, other: Passage) -> None:
    assume(one != other)
    with pytest.raises(ProofRefused) as refused:
        verify([KEY], sign(KEY, STAMP, one), other, NOW, 0.0)
    assert refused.value.code == "proof_invalid"


@given(passages, stamps, passages, stamps)
def test_no_two_requests_have_one_canonical_text(one: Passage, stamp: Stamp, other: Passage, another: Stamp) -> None:
    assume((one, stamp) != (other, another))
    assert canonical("k", stamp, one) != canonical("k", another, other)


@given(st.text("PUT/a=-0", max_size=16), st.data())
def test_no_byte_can_move_from_one_field_into_the_next(text: str, data: st.DataObject) -> None:
    """The same bytes after one another, cut into the fields in two ways."""
    cuts = st.lists(st.integers(0, len(text)), min_size=6, max_size=6).map(sorted)
    one, other = data.draw(cuts), data.draw(cuts)
    assume(one != other)

    def cut(places: list[int]) -> bytes:
        parts = [text[begin:end].encode() for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
        method, path, query, *optional = parts
        return canonical("k", STAMP, Passage(method.decode(), path, query, *optional))

    assert cut(one) != cut(other)


def test_no_byte_of_a_field_reads_as_the_end_of_it() -> None:
    for byte in range(256):
        mark = bytes([byte])
        one = canonical("k", STAMP, Passage("POST", b"a" + mark + b"b", b"c"))
        assert one != canonical("k", STAMP, Passage("POST", b"a", b"b" + mark + b"c")), mark


@pytest.mark.parametrize("name", [field.name for field in fields(Passage)])
@given(value=st.binary(max_size=12) | st.none())
def test_each_field_of_the_request_is_covered(name: str, value: Any) -> None:
    if name == "method":
        value = (value or b"GET").decode("latin-1")
    if name in ("path", "query"):
        value = value or b""
    assume(value != getattr(PASSAGE, name))
    with pytest.raises(ProofRefused):
        verify([KEY], sign(KEY, STAMP, PASSAGE), replace(PASSAGE, **{name: value}), NOW, 0.0)


def test_what_is_not_there_is_not_the_same_as_what_is_empty() -> None:
    absent, empty = replace(PASSAGE, idempotency_key=None), replace(PASSAGE, idempotency_key=b"")
    with pytest.raises(ProofRefused):
        verify([KEY], sign(KEY, STAMP, absent), empty, NOW, 0.0)


@given(st.data())
def test_no_byte_of_the_proof_can_be_changed(data: st.DataObject) -> None:
    proof = sign(KEY, STAMP, PASSAGE)
    place = data.draw(st.integers(0, len(proof) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != proof[place]))
    with pytest.raises(ProofRefused) as refused:
        verify([KEY, OTHER], proof[:place] + bytes([byte]) + proof[place + 1 :], PASSAGE, NOW, 0.0)
    assert refused.value.code == "proof_invalid"


@given(st.binary(max_size=300))
def test_no_other_bytes_are_a_proof(proof: bytes) -> None:
    with pytest.raises(ProofRefused):
        verify([KEY], proof, PASSAGE, NOW, 0.0)


@pytest.mark.parametrize("ending", [b"\n", b" ", b";", b", v=1"])
def test_nothing_may_follow_a_proof(ending: bytes) -> None:
    with pytest.raises(ProofRefused):
        verify([KEY], sign(KEY, STAMP, PASSAGE) + ending, PASSAGE, NOW, 0.0)


def test_another_secret_under_the_same_id_makes_no_proof() -> None:
    with pytest.raises(ProofRefused):
        verify([replace(OTHER, id=KEY.id)], sign(KEY, STAMP, PASSAGE), PASSAGE, NOW, 0.0)
    with pytest.raises(ProofRefused, match="not known here"):
        verify([OTHER], sign(KEY, STAMP, PASSAGE), PASSAGE, NOW, 0.0)


@pytest.mark.parametrize(
    ("later", "skew", "fresh"),
    [
        (0.0, 0.0, True),
        (LIFETIME, 0.0, True),
        (LIFETIME + 0.01, 0.0, False),
        (LIFETIME + 4.9, 5.0, True),
        (LIFETIME + 5.1, 5.0, False),
        (-0.01, 0.0, False),
        (-4.9, 5.0, True),
        (-5.1, 5.0, False),
        (10**9, 5.0, False),
    ],
)
def test_a_proof_is_fresh_within_its_lifetime_and_the_clocks_skew(later: float, skew: float, fresh: bool) -> None:
    proof = sign(KEY, STAMP, PASSAGE)
    if fresh:
        assert verify([KEY], proof, PASSAGE, NOW + later, skew) == STAMP
        return
    with pytest.raises(ProofRefused) as refused:
        verify([KEY], proof, PASSAGE, NOW + later, skew)
    assert refused.value.code == "proof_expired"


def test_a_role_that_no_reader_takes_is_not_signed() -> None:
    with pytest.raises(ValueError, match="no proof"):
        sign(KEY, replace(STAMP, role="a;b"), PASSAGE)
