"""The built-in ledger read page by page through a gateway. The stage on real gateways: tests/system."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gameday.target_stage import read_page

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    st.none()
    | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
    | st.just('"body":{')
)
SPACED = st.sampled_from(["", " ", "\n\t"])


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1))
def test_a_caller_is_read_whatever_its_name(caller: str) -> None:
    entry = {"role": "r", "seq": 1, "token": 3, "recorded_at": "t", "hash": "h", "caller": caller, "body": {"n": 1}}
    [found], _ = read_page(orjson.dumps({"role": "r", "entries": [entry], "next_after": None}).decode(), "r")
    assert (found.caller, found.body) == (caller, b'{"n":1}')


@given(st.lists(st.tuples(JSON, KEYS, SPACED), max_size=4), st.none() | st.integers(1, 2**62))
def test_every_body_is_kept_as_it_is_written_since_the_chain_is_made_of_it(
    rows: list[tuple[object, str | None, str]], after: int | None
) -> None:
    bodies = [b"%b%b%b" % (space.encode(), orjson.dumps(body), space.encode()) for body, _, space in rows]
    entries = [
        {"role": "r", "seq": n, "token": 3, "recorded_at": "t", "hash": "h"}
        | ({} if key is None else {"idempotency_key": key})
        | {"body": orjson.Fragment(body)}
        for n, (body, (_, key, _)) in enumerate(zip(bodies, rows, strict=True), start=1)
    ]
    text = orjson.dumps({"role": "r", "entries": entries, "next_after": after}).decode()
    found, following = read_page(text, "r")
    assert [entry.body for entry in found] == bodies
    assert [entry.key for entry in found] == [key for _, key, _ in rows]
    assert [entry.seq for entry in found] == list(range(1, len(rows) + 1))
    assert following == after
