"""What a broken rule is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Broken:
    """One broken rule. ``others`` are further keys that it looked at; ``missing``: the key is not set at all."""

    key: str
    sentence: str = ""
    others: tuple[str, ...] = ()
    missing: bool = False
