"""The rule is stated twice, in Python and in SQL: the two agree on every generated row."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencegate.fence import Fence, decide

DECIDE = """
    SELECT fencegate.decide(
               CASE WHEN r.role IS NOT NULL THEN
                   ROW(r.role, 1, r.mode, r.max, r.sealed, r.until, r.incarnation, '', r.draining, 0, ''::bytea)
                       ::fencegate.fence END,
               r.token, r.issued, r.now, r.here)
      FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::boolean[],
                  $8::bigint[], $9::bigint[], $10::text[], $11::text[]) WITH ORDINALITY
           AS u(role, mode, max, sealed, until_text, incarnation, draining, token, issued, now_text, here, place)
     CROSS JOIN LATERAL (SELECT u.*, u.until_text::timestamptz AS until, u.now_text::timestamptz AS now) r
     ORDER BY r.place"""

small = st.integers(0, 4)
tokens = st.one_of(small, st.sampled_from([2**63 - 2, 2**63 - 1]))
instants = st.one_of(st.integers(1_700_000_000, 1_700_000_003), st.sampled_from([math.inf, -math.inf]))
incarnations = st.sampled_from(["1/00000001", "1/00000002", ""])
fences = st.none() | st.builds(
    Fence,
    role=st.just("r"),
    mode=st.sampled_from(["lease", "token"]),
    max_token_seen=tokens,
    sealed=tokens,
    valid_until=instants,
    incarnation=incarnations,
    holder=st.just(""),
    draining=st.booleans(),
)
cases = st.tuples(fences, tokens, tokens, st.integers(1_700_000_000, 1_700_000_003), incarnations)


def _text(instant: float) -> str:
    if math.isinf(instant):
        return "infinity" if instant > 0 else "-infinity"
    return f"2023-11-14 22:13:{20 + int(instant) - 1_700_000_000}+00"


@pytest.fixture
def session(migrated_dsn: str) -> Iterator[tuple[asyncio.Runner, asyncpg.Connection]]:
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(migrated_dsn))
        yield runner, connection
        runner.run(connection.close())


def test_the_instants_of_this_test_are_what_they_seem() -> None:
    from datetime import datetime

    assert datetime.fromisoformat(_text(1_700_000_001)).timestamp() == 1_700_000_001


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(batch=st.lists(cases, min_size=30, max_size=60))
def test_sql_and_python_give_one_verdict(
    session: tuple[asyncio.Runner, asyncpg.Connection], batch: list[tuple[Fence | None, int, int, int, str]]
) -> None:
    runner, connection = session
    empty = Fence("", "lease", 0, 0, 0, "", "")
    rows: list[Any] = [(fence or empty, fence, *rest) for fence, *rest in batch]
    answers = runner.run(
        connection.fetch(
            DECIDE,
            [f.role if given else None for f, given, *_ in rows],
            [f.mode for f, *_ in rows],
            [f.max_token_seen for f, *_ in rows],
            [f.sealed for f, *_ in rows],
            [_text(f.valid_until) if given else "infinity" for f, given, *_ in rows],
            [f.incarnation for f, *_ in rows],
            [f.draining for f, *_ in rows],
            [token for _, _, token, *_ in rows],
            [issued for _, _, _, issued, *_ in rows],
            [_text(now) for _, _, _, _, now, _ in rows],
            [here for *_, here in rows],
        )
    )
    for (fence, token, issued, now, here), answer in zip(batch, answers, strict=True):
        expected = decide(fence, token, issued=issued, now=float(now), incarnation=here)
        assert answer[0] == expected, (fence, token, issued, now, here)
