"""What a batch that was rolled back answers, and the names of what is pending."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencegate.errors import FencegateError, Unavailable
from fencegate.fence import Effect, Verdict, Write, WriteResult
from fencegate.store.pending import Unproved, role_prefix, token_of, void
from fencegate.tokens import MAX_TOKEN

A_RESULT = st.tuples(st.sampled_from([None, *Effect]), st.sampled_from([b"", b"a" * 16, b"b" * 16]))
WHY: list[Unproved] = [Verdict.NOT_LEADING, Unavailable("no quorum")]


@given(st.lists(A_RESULT, max_size=8), st.sampled_from(WHY))
def test_nothing_that_was_rolled_back_is_answered_as_done(
    batch: list[tuple[Effect | None, bytes]], why: Unproved
) -> None:
    writes = [Write("ledger", 4, b"1", key_digest=key) for _, key in batch]
    results = [WriteResult(Verdict.ADMIT if effect == 0 else Verdict.STALE, effect, 4) for effect, _ in batch]
    undone = {key for effect, key in batch if effect is Effect.APPLIED and key}
    for (effect, key), before, after in zip(batch, results, void(writes, results, why), strict=True):
        if effect is Effect.APPLIED or key in undone:
            if isinstance(why, FencegateError):
                assert after is why
            else:
                assert after == WriteResult(Verdict.NOT_LEADING, None, None)
        else:
            assert after is before


@given(st.text(min_size=1, max_size=200), st.integers(1, MAX_TOKEN), st.text("abc#-.0123", min_size=1, max_size=72))
def test_a_name_is_short_enough_safe_in_quotes_and_tells_its_role_and_token(
    role: str, token: int, gateway: str
) -> None:
    name = f"{role_prefix(role)}{token}:{gateway}:{2**63}"
    assert len(name.encode()) < 200  # Postgres' limit
    assert "'" not in name
    assert token_of(name) == token
    assert name.startswith(role_prefix(role))


def test_a_name_of_somebody_else_has_no_token() -> None:
    for name in ("fencegate", "fencegate:role", "fencegate:role:x:gw:1", "fencegate:role:٣:gw:1"):
        assert token_of(name) == 0
