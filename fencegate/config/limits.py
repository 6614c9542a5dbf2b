"""The tables that can be changed while a gateway runs and touch no other: what it takes, keeps and tells."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fencegate.config.values import Count, Seconds, Table


class LimitSettings(Table):
    """What one gateway takes from its clients before it says no. Times in seconds, sizes in bytes.

    ``connections`` and ``in_flight`` are the whole gateway's: each of several workers takes an equal share of them.
    ``connections_per_peer`` is for one address (of IPv6: its /64); behind a balancer or proxy, which is one peer for
    all, it stays 0. Each of several workers counts those that came to it.
    """

    header_bytes: Annotated[int, Field(ge=1024, le=1_048_576, description="bytes, 1024 to 1048576")] = 16384
    connections: Count = 10_000
    connections_per_peer: Annotated[
        int, Field(ge=0, le=1_000_000, description="a whole number of 0 to 1000000; 0: no limit of its own")
    ] = 0
    in_flight: Count = 1_000
    header_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    idle_timeout: Seconds = 75.0


class IdempotencySettings(Table):
    """``keep``: seconds for which the answer to an idempotency key is kept."""

    keep: Annotated[
        float, Field(ge=60, le=31_536_000, allow_inf_nan=False, description="seconds, 60 to 31536000 (a year)")
    ] = 86400.0


class LogSettings(Table):
    format: Annotated[Literal["auto", "json", "text"], Field(description="auto, json or text")] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="debug, info, warning or error")
    ] = "info"
