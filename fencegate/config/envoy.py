"""The table ``[envoy]``: the external authorizer over gRPC."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fencegate.config.values import Address, Table


class EnvoySettings(Table):
    """``listen``: where Envoy asks, in the clear; nowhere by default. ``role``: for questions that name none."""

    listen: Address | None = None
    role: Annotated[str, Field(min_length=1, description="a role of a [[route]], such as ledger")] | None = None
