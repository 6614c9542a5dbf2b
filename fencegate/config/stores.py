"""Which store holds a role, where a gateway has several: patterns of roles, and the one rule by which they are matched.

A pattern is a role's own name (``ledger``), or a beginning with ``*`` after it (``shards/*``, ``shards/eu-*``, ``*``):
every role that begins so. Of all patterns that match a role the most specific one places it: its own name before any
beginning, a longer beginning before a shorter. Two that match the same role are always one longer than the other, so
only the very same pattern in two stores leaves a role without an answer; that is refused, as is a role without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencegate.config.routes import SEGMENT

ANY: Final = "*"
EXPECTED: Final = 'a list of roles such as ["ledger", "shards/*"]'


def check_patterns(patterns: list[str]) -> list[str]:
    """``patterns`` if each is one, and there once. Raises ``ValueError`` whose message says what was expected."""
    for pattern in patterns:
        beginning = pattern.removesuffix(ANY)
        segments = beginning.split("/")
        if beginning != pattern:
            segments = [*segments[:-1], *filter(None, segments[-1:])]
        elif not beginning:
            raise ValueError(f"expected {EXPECTED}; one of them is empty")
        if len(pattern) > 200 or any(SEGMENT.fullmatch(each) is None or each in (".", "..") for each in segments):
            raise ValueError(
                f"expected {EXPECTED}: segments of letters, digits, '.', '_', '~', '-', and * only at the very end; "
                f"{pattern!r} is none"
            )
    if len(set(patterns)) != len(patterns):
        raise ValueError("expected each pattern once")
    return patterns


class Placement:
    """``stores``: the patterns of each store. The same pattern in two of them is the first one's (and a fault)."""

    def __init__(self, stores: Sequence[Sequence[str]]) -> None:
        self._exact: dict[str, int] = {}
        self._beginnings: dict[str, int] = {}
        self.twice: list[tuple[str, int, int]] = []
        """Patterns that two stores have, with both places."""
        for place, patterns in enumerate(stores):
            for pattern in patterns:
                known = self._beginnings if pattern.endswith(ANY) else self._exact
                first = known.setdefault(pattern.removesuffix(ANY), place)
                if first != place:
                    self.twice.append((pattern, first, place))
        self._longest_first = sorted(self._beginnings, key=len, reverse=True)

    def pattern_of(self, role: str) -> str | None:
        """The pattern that places ``role``; ``None`` where none matches."""
        if role in self._exact:
            return role
        found = next((each for each in self._longest_first if role.startswith(each)), None)
        return None if found is None else found + ANY

    def of(self, role: str) -> int | None:
        """Which of the stores holds ``role``, from 0; ``None`` for none of them."""
        pattern = self.pattern_of(role)
        if pattern is None:
            return None
        return self._beginnings[pattern.removesuffix(ANY)] if pattern.endswith(ANY) else self._exact[pattern]
