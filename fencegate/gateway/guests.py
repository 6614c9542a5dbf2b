"""The connections of one edge: how many there are in all, and of each peer, and when all have come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from fencegate.gateway.limits import Limits


class Guest(Protocol):
    """A connection, by what is counted of it. ``peer`` is the other end's address and stays the same.

    ``busy``: a request or a reply is under way.
    """

    @property
    def peer(self) -> str: ...

    @property
    def busy(self) -> bool: ...


G = TypeVar("G", bound=Guest)


class Guests(Generic[G]):
    """Who is there. Both counts are kept whatever the limits are, since a reload may change them."""

    def __init__(self) -> None:
        self._all: set[G] = set()
        self._of_each: Counter[str] = Counter()
        self._fewer = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[G]:
        """A copy: who is told to go may do so at once."""
        return iter(list(self._all))

    def admit(self, guest: G, limits: Limits) -> bool:
        """Whether one more fits, in all and of its peer; then it is there until it has :meth:`left`."""
        who = peer_of(guest.peer)
        most = limits.connections_per_peer
        if len(self._all) >= limits.connections or (most and self._of_each[who] >= most):
            return False
        self._all.add(guest)
        self._of_each[who] += 1
        return True

    def left(self, guest: G) -> None:
        """It is gone; one that was never admitted changes nothing."""
        self.look_again()
        if guest not in self._all:
            return
        self._all.remove(guest)
        who = peer_of(guest.peer)
        self._of_each[who] -= 1
        if not self._of_each[who]:
            del self._of_each[who]

    # -- the end ------------------------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """How many have a request or a reply under way."""
        return sum(1 for guest in self._all if guest.busy)

    def look_again(self) -> None:
        """One of them may be busy no more."""
        self._fewer.set()

    async def none_busy(self, time_limit: float) -> bool:
        """Wait until none is busy; whether that was within ``time_limit`` s."""
        return await self._ended(lambda: self.busy, time_limit)

    async def none_left(self, time_limit: float) -> bool:
        """Wait until all are gone; whether that was within ``time_limit`` s."""
        return await self._ended(lambda: self._all, time_limit)

    async def _ended(self, what: Callable[[], object], time_limit: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_limit):
                while what():
                    self._fewer.clear()
                    await self._fewer.wait()
        return not what()


def peer_of(address: str) -> str:
    """Whom an address counts as: of IPv6 the network of 64 bits, which is the least that one customer is given."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped) if found.ipv4_mapped else str(ipaddress.IPv6Address(int(found) >> 64 << 64))
