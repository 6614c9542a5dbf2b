"""A term without a store of its own: for leaders that only present their token elsewhere.

An application that leads (``lead(...)``, ``fencegate elect``) writes through gateways or to a guarded
database: the fence is there, and its row is not this process' to claim or seal. What "sealed" means here
is that the process' own work has ended, which only the caller can know: it says so by ending its work
*before* it resigns. Without that the token still fences whatever comes late.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencegate.fence import ClaimRefused, Fence, StoreClock

_NOWHERE = "none"


class StorelessTerm:
    """A :class:`fencegate.fence.FenceStore` that holds nothing and refuses nothing."""

    async def clock(self) -> StoreClock:
        return StoreClock(0.0, _NOWHERE)

    async def claim(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        return None

    async def extend(
        self, role: str, token: int, holder: str, clock: StoreClock, valid_for: float
    ) -> ClaimRefused | None:
        return None

    async def seal(self, role: str, token: int, incarnation: str) -> bool:
        return True

    async def set_draining(self, role: str, token: int, draining: bool) -> bool:
        return True

    async def in_flight(self, role: str, token: int) -> int:
        return 0

    async def read(self, role: str) -> Fence | None:
        return None

    async def read_some(self, roles: Sequence[str]) -> list[Fence]:
        return []

    async def read_all(self) -> list[Fence]:
        return []
