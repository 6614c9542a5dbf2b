"""Grants: bound to role, token and caller, ended in time, and made by nobody without the key."""

from __future__ import annotations

import string
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fencegate.grant import LIFETIME, LONGEST_LIFETIME, SKEW, Grant, GrantRefused, canonical, grant_for, sign, verify
from fencegate.key_ring import SharedKey, framed
from fencegate.tokens import MAX_TOKEN

NOW = 1_796_000_000.0
KEY = SharedKey("2026-11", b"a" * 32)
OTHER = SharedKey("2026.12", b"b" * 32)
GRANT = grant_for("ledger", 42, "CN=billing,O=Example", NOW)

roles = st.text(string.ascii_letters + string.digits + "._~/-", min_size=1, max_size=40)
subjects = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)
grants = st.builds(
    lambda role, token, subject, issued, lifetime: Grant(role, token, subject, issued, issued + lifetime),
    roles,
    st.integers(1, MAX_TOKEN),
    subjects,
    st.integers(1, 10**15),
    st.integers(1, int(LONGEST_LIFETIME * 1000)),
)
keys = st.builds(
    SharedKey, st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=32), st.just(b"s" * 32)
)


def refused(text: bytes, grant: Grant = GRANT, now: float = NOW, known: tuple[SharedKey, ...] = (KEY,)) -> str:
    """The code under which ``text`` is refused, presented with what ``grant`` says."""
    with pytest.raises(GrantRefused) as error:
        verify(known, text, grant.role, grant.token, grant.subject, now)
    assert not text or text.decode("latin-1") not in str(error.value)
    return error.value.code


@given(grants, keys)
def test_a_grant_holds_for_what_it_was_made_for_and_says_so(grant: Grant, key: SharedKey) -> None:
    text = sign(key, grant).encode()
    assert verify([OTHER, key], text, grant.role, grant.token, grant.subject, grant.issued / 1000) == grant


@given(grants, grants, keys, keys)
def test_no_two_grants_share_a_text(one: Grant, other: Grant, key: SharedKey, another: SharedKey) -> None:
    same = one == other and key.id == another.id
    assert (canonical(key.id, one) == canonical(another.id, other)) == same
    assert (sign(key, one).rpartition(".")[0] == sign(another, other).rpartition(".")[0]) == same


@given(grants, st.data())
def test_a_grant_holds_for_no_other_role_token_or_caller(grant: Grant, data: st.DataObject) -> None:
    text = sign(KEY, grant).encode()
    field = data.draw(st.sampled_from(["role", "token", "subject"]))
    other = data.draw({"role": roles, "token": st.integers(1, MAX_TOKEN), "subject": subjects | st.just("")}[field])
    assume(other != getattr(grant, field))
    assert refused(text, replace(grant, **{field: other}), grant.issued / 1000) == "grant_invalid"


@given(st.data())
def test_a_single_bit_that_is_changed_ends_it(data: st.DataObject) -> None:
    text = bytearray(sign(KEY, GRANT).encode())
    place = data.draw(st.integers(0, len(text) * 8 - 1))
    text[place // 8] ^= 1 << place % 8
    code = refused(bytes(text))
    # A changed name of the key (or a dot that makes the name longer) is a key that is not known.
    assert code == "grant_invalid" or (code == "grant_expired" and bytes(text).rsplit(b".", 2)[0] != b"fg1.2026-11")


def test_every_other_last_character_is_another_grant() -> None:
    """Of a MAC's last character two bits say nothing: decoded, four spellings would be one."""
    text = sign(KEY, GRANT)
    others = [text[:-1] + last for last in string.ascii_letters + string.digits + "-_" if last != text[-1]]
    assert {refused(other.encode()) for other in others} == {"grant_invalid"}


@given(st.floats(-400, 700))
def test_it_holds_from_its_beginning_to_its_end_and_the_skew_around_them(later: float) -> None:
    text = sign(KEY, GRANT).encode()
    assume(min(abs(later + SKEW), abs(later - LIFETIME - SKEW)) > 0.01)
    if -SKEW < later < LIFETIME + SKEW:
        assert verify([KEY], text, GRANT.role, GRANT.token, GRANT.subject, NOW + later) == GRANT
    else:
        assert refused(text, now=NOW + later) == "grant_expired"


def test_a_grant_of_a_key_that_was_taken_away_is_one_to_replace_and_of_the_wrong_secret_none() -> None:
    text = sign(KEY, GRANT).encode()
    assert refused(text, known=(OTHER,)) == "grant_expired"
    assert refused(text, known=(OTHER, SharedKey(KEY.id, b"c" * 32))) == "grant_invalid"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"fg1",
        b"fg1...",
        b"42",
        b"fg2" + sign(KEY, GRANT).encode()[3:],
        sign(KEY, GRANT).encode() + b" ",
        sign(KEY, GRANT).encode() + b"\n",
        sign(KEY, GRANT).encode() + b"=",
        sign(KEY, GRANT).upper().encode(),
        f"{sign(KEY, GRANT)},{sign(KEY, GRANT)}".encode(),
    ],
)
def test_what_is_no_grant_is_refused(text: bytes) -> None:
    assert refused(text) == "grant_invalid"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'["ledger",42,"CN=billing,O=Example",1796000000000]',
        b'["ledger",42,"CN=billing,O=Example",1796000000000,1796900000000]',
        b'["ledger",true,"CN=billing,O=Example",1796000000000,1796000001000]',
        b'["ledger",42.0,"CN=billing,O=Example",1796000000000,1796000001000]',
        b'["ledger",0,"CN=billing,O=Example",1796000000000,1796000001000]',
        b'["ledger",42,"",1796000000000,1796000001000]',
        b'["ledger",42,"CN=billing,O=Example",1796000001000,1796000000000]',
        b'["ledger",42,["CN=billing,O=Example"],1796000000000,1796000001000]',
        b"[" * 900,
    ],
)
def test_nonsense_under_the_right_key_is_no_grant(payload: bytes) -> None:
    written = urlsafe_b64encode(payload).rstrip(b"=")
    mac = urlsafe_b64encode(KEY.mac(framed((b"fencegate grant 1", KEY.id.encode(), written)))).rstrip(b"=")
    assert refused(b"fg1.%b.%b.%b" % (KEY.id.encode(), written, mac)) == "grant_invalid"


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": ""},
        {"role": "a b"},
        {"token": 0},
        {"token": MAX_TOKEN + 1},
        {"subject": ""},
        {"subject": "é"},
        {"subject": "a\nb"},
        {"subject": "a" * 513},
        {"issued": 0},
        {"expires": GRANT.issued},
        {"expires": GRANT.issued + int(LONGEST_LIFETIME * 1000) + 1},
    ],
)
def test_what_no_reader_would_take_is_not_signed(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no grant"):
        sign(KEY, replace(GRANT, **wrong))  # type: ignore[arg-type]


def test_the_longest_role_and_caller_still_fit() -> None:
    grant = grant_for("r" * 512, MAX_TOKEN, '"' * 512, NOW)
    assert verify([KEY], sign(KEY, grant).encode(), grant.role, grant.token, grant.subject, NOW) == grant
