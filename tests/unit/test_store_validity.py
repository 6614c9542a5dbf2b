"""What a caller may hand to the store, and what it is told where it may not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fencegate.fence import Forward, Write
from fencegate.store.validity import check_call, check_forward, check_write

GOOD: dict[str, Any] = {"role": "r", "token": 1, "body": b"{}"}
KEYED: dict[str, Any] = {**GOOD, "key": "k", "key_digest": bytes(16), "payload_digest": bytes(16)}


def test_good_ones_pass() -> None:
    check_write(Write(**GOOD))
    check_write(Write(**KEYED, issued=2**63 - 1))
    check_forward(Forward("r", 2**63 - 1, 0.0, key_digest=bytes(16)))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"role": ""}, "role"),
        ({"token": 0}, "token"),
        ({"token": 2**63}, "token"),
        ({"issued": -1}, "issued"),
        ({"key_digest": bytes(15)}, "key_digest"),
        ({"payload_digest": bytes(17)}, "payload_digest"),
        ({"key": ""}, "neither"),
        ({"payload_digest": b""}, "payload_digest"),
        ({"key": "a\x1fb"}, "visible"),
        ({"key": "schlüssel"}, "visible"),
        ({"body": b"\xff"}, "UTF-8"),
        ({"body": b'"\x1e"'}, "control"),
        ({"body": b"\x00"}, "control"),
    ],
)
def test_a_bad_write_is_told_which_part_is_wrong(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check_write(Write(**{**KEYED, **change}))


@pytest.mark.parametrize("context", [{"query": "\udcff"}, {"n": 2**64}, {"x": object()}])
def test_a_call_needs_a_context_that_is_json(context: dict[str, object]) -> None:
    check_call(Write(**GOOD, context={"query": "a=\xff", "n": 1}))
    with pytest.raises(ValueError, match="context"):
        check_call(Write(**GOOD, context=context))


def test_only_observe_mode_takes_a_write_that_presented_no_token() -> None:
    check_write(Write(**{**GOOD, "token": 0}, enforce=False))
    check_forward(Forward("r", 0, 1.0, enforce=False))
    with pytest.raises(ValueError, match="token"):
        check_forward(Forward("r", 0, 1.0))
    with pytest.raises(ValueError, match="token"):
        check_write(Write(**{**GOOD, "token": -1}, enforce=False))


@pytest.mark.parametrize("limit", [math.inf, math.nan, -1.0])
def test_a_forward_needs_a_finite_limit(limit: float) -> None:
    with pytest.raises(ValueError, match="upstream_limit"):
        check_forward(Forward("r", 1, limit))
