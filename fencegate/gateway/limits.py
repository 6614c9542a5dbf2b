"""The limits of one gateway, which a reload may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """What one gateway takes before it says no. Times in seconds, sizes in bytes.

    A body may take ``body_timeout`` plus its size divided by ``min_body_rate`` (bytes per second). A connection
    is closed after ``idle_timeout`` without a request; ``header_timeout`` bounds a request's head.
    """

    header_bytes: int = 16_384
    connections: int = 10_000
    connections_per_peer: int = 0
    """0: as many as there are in all."""
    in_flight: int = 1_000
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    idle_timeout: float = 75.0
    min_body_rate: int = 1024


DEFAULT_LIMITS: Final = Limits()
