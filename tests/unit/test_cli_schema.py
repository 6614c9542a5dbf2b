"""A role is not opened in a store that lacks what another one has of it. The start itself is tested in tests/system."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fencegate.cli.schema import check_not_moved
from fencegate.errors import ConfigurationError, Unavailable
from fencegate.fence import Fence


class Rows:
    """Stands in for a store: the highest token of each role that has a row; ``None`` where it does not answer."""

    def __init__(self, tokens: dict[str, int] | None) -> None:
        self._tokens = tokens

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        if self._tokens is None:
            raise Unavailable("down")
        return [Fence(r, "lease", t, 0, 0.0, "", "") for r, t in self._tokens.items() if r in roles]


async def check(own: dict[str, int], **others: dict[str, int] | None) -> None:
    """Of the roles a and b, placed in the store south."""
    stores = [(name, Rows(tokens)) for name, tokens in others.items()]
    await check_not_moved(["a", "b"], "south", Rows(own), stores)  # type: ignore[arg-type]


async def test_a_role_that_no_other_store_has_a_newer_term_of_is_opened() -> None:
    await check({}, north={}, east={"c": 9})
    await check({"a": 41, "b": 0}, north={"a": 40, "b": 0})
    await check({"a": 41}, north={"a": 41})  # copied, and not written to since
    await check({})


@pytest.mark.parametrize("own", [{}, {"a": 0, "b": 0}, {"a": 40, "b": 40}])
async def test_a_role_that_another_store_has_a_newer_term_of_is_a_fault_that_names_both(own: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await check(own, east={}, north={"a": 41})
    (fault,) = refused.value.faults
    assert f"[[store]] south roles: a is placed there, where token {own.get('a', 0)} was seen" in fault
    assert "[[store]] north has taken token 41 of it" in fault


async def test_a_role_without_a_row_waits_for_every_other_store_to_say_so() -> None:
    with pytest.raises(Unavailable, match="b is new here, and whether store north has held it is not known: down"):
        await check({"a": 41}, east={}, north=None)


async def test_roles_that_have_their_rows_wait_for_no_other_store() -> None:
    await check({"a": 41, "b": 0}, north=None)
    with pytest.raises(ConfigurationError):
        await check({"a": 41, "b": 0}, north=None, east={"b": 1})
