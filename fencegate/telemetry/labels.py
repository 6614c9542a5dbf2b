"""Which label a role gets: the configured name, its family's name, or one fixed word for everything else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

UNROUTED: Final = "-"
"""The label of a refusal that came before any role was known (no such route, no such member)."""

_MOST_KNOWN: Final = 16_384
"""Roles whose label is remembered; for others it is found anew."""
_PARAMETER: Final = re.compile(r"\{[^{}]*\}")


class RoleLabels:
    """The closed set of role labels. Whatever a client sends, no other label than these comes out."""

    def __init__(self, families: Sequence[str]) -> None:
        self.names: tuple[str, ...] = tuple(families)
        self._known = {family: family for family in families}
        self._patterns = [
            (re.compile("[^/]+".join(re.escape(part) for part in _PARAMETER.split(family))), family)
            for family in families
            if _PARAMETER.search(family)
        ]

    def of(self, role: str) -> str:
        """The label for ``role``: itself where configured, else its family, else :data:`UNROUTED`."""
        label = self._known.get(role)
        if label is None:
            label = next((family for pattern, family in self._patterns if pattern.fullmatch(role)), UNROUTED)
            if label != UNROUTED and len(self._known) < _MOST_KNOWN:
                self._known[role] = label
        return label
