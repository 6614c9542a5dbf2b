"""The base of a role's tokens: a later key has a higher token, and a term keeps its number while the base moves."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.bases import Bases, Step
from fencegate.lease import HIGHEST_BASE

NAME = "/fencegate-base/ledger"


def moved(bases: Bases, base: int, revision: int) -> Bases:
    """As every reader sees it once the step was written at ``revision``."""
    value = bases.moved(base, "ops@desk", "2026-11-29T14:17:17+00:00")
    return Bases.of(NAME, value, revision)


def test_without_a_record_the_token_is_the_create_revision() -> None:
    assert (Bases().token(42), Bases().latest, Bases().outdates(42)) == (42, 0, False)


def test_a_step_counts_for_keys_made_after_it_and_for_no_earlier_one() -> None:
    bases = moved(moved(Bases(), 1000, revision=50), 5000, revision=90)

    assert [bases.token(created) for created in (7, 50, 51, 90, 91)] == [7, 50, 1051, 1090, 5091]
    assert [bases.outdates(created) for created in (50, 90, 91)] == [True, True, False]
    assert bases.steps == (
        Step(50, 1000, "ops@desk", "2026-11-29T14:17:17+00:00"),
        Step(90, 5000, "ops@desk", "2026-11-29T14:17:17+00:00"),
    )


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 10**6)), max_size=40))
def test_tokens_grow_with_each_key_and_no_term_changes_its_number(acts: list[tuple[bool, int]]) -> None:
    """Keys are made and the base is moved in any order, each at the next revision or some later one."""
    bases, revision, issued = Bases(), 0, dict[int, int]()
    for is_step, by in acts:
        revision += by
        if is_step:
            bases = moved(bases, bases.latest + by, revision)
        else:
            issued[revision] = bases.token(revision)
        assert {created: bases.token(created) for created in issued} == issued

    tokens = list(issued.values())
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("base", [0, 1000, HIGHEST_BASE + 1])
def test_a_step_that_does_not_go_up_or_goes_too_far_is_refused(base: int) -> None:
    bases = moved(Bases(), 1000, revision=50)

    with pytest.raises(ValueError, match="moves up from 1000"):
        bases.moved(base, "", "")


STEP = {"after": 1, "base": 10, "by": "", "at": ""}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b"{}",
        b'{"steps": []}',
        b'{"steps": [{"base": "x"}]}',
        orjson.dumps({"steps": [{**STEP, "base": 0}]}),
        orjson.dumps({"steps": [STEP, STEP]}),
        orjson.dumps({"steps": [STEP, {**STEP, "base": 3}]}),
        orjson.dumps({"steps": [{**STEP, "base": HIGHEST_BASE + 1}]}),
    ],
)
def test_a_record_that_is_none_is_an_error_since_a_guessed_base_would_be_a_guessed_token(value: bytes) -> None:
    with pytest.raises(ValueError, match=NAME):
        Bases.of(NAME, value, 1)
