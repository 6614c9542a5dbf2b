"""Roles spread over several stores: one way in for the writes, each of which goes to the store that holds its role.

Nothing is shared between the stores, a failure least of all. What concerns one role (its elector, its seal) is given
that role's own store (:meth:`RegionStores.of`), since a clock or an incarnation means nothing to another server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from fencegate.access.database import Database
from fencegate.errors import Unavailable
from fencegate.fence import Admission, Entry, Forward, StillLeads, StoredAnswer, Verdict, Write, WritePath, WriteResult
from fencegate.observations import FenceSeen, Observation, Observer, StoreCameUp, StoreWentDown
from fencegate.store.postgres import PostgresStore
from fencegate.telling import Tell


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store is, and the roles that it holds."""

    place: str | Database
    roles: Collection[str]


class SeveralStores:
    """A :class:`fencegate.fence.WritePath` over those of several stores, by role.

    A role that no store holds is refused as by a store that does not answer: ``Unavailable``.
    """

    def __init__(self, by_role: Mapping[str, WritePath]) -> None:
        self._by_role = by_role
        self._paths = list({id(path): path for path in by_role.values()}.values())
        self._places = {id(path): place for place, path in enumerate(self._paths)}

    def _of(self, role: str) -> WritePath:
        try:
            return self._by_role[role]
        except KeyError:
            raise Unavailable(f"no store holds the role {role}") from None

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        return await self._of(write.role).append(write, time_limit)

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        self._of(write.role).send(write, time_limit, tell)

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        return await self._of(write.role).call(function, write, time_limit)

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        path = self._of(forward.role)
        return self._numbered(path, await path.admit(forward, time_limit))

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        path = self._of(forward.role)

        def numbered(found: Admission | Exception) -> None:
            tell(self._numbered(path, found) if isinstance(found, Admission) else found)

        path.ask(forward, time_limit, numbered)

    def _numbered(self, path: WritePath, admission: Admission) -> Admission:
        if admission.ticket:  # Each store numbers its own: the place in ours says whose it is.
            admission.ticket = admission.ticket * len(self._paths) + self._places[id(path)]
        return admission

    def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> Awaitable[None]:
        number, place = divmod(ticket, len(self._paths))
        return self._paths[place].settle(number, answer, sent=sent)

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        return await self._of(role).peek(role, token, time_limit)

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        self._of(role).knows(role, key_digest, time_limit, tell)

    async def entry(self, role: str, seq: int) -> Entry | None:
        return await self._of(role).entry(role, seq)

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        return await self._of(role).entries(role, after, limit)


class RegionStores:
    """The stores of a region by name, ``""`` for the only one: made by :meth:`open`, and ended by :meth:`close`."""

    def __init__(self, stores: Mapping[str, PostgresStore], roles: Mapping[str, Collection[str]]) -> None:
        self.by_name = dict(stores)
        self._roles = roles
        self._names = {role: name for name, held in roles.items() for role in held}
        first, *more = stores.values()
        self.write_path: WritePath = (
            SeveralStores({role: stores[name] for role, name in self._names.items()}) if more else first
        )

    @classmethod
    async def open(cls, addresses: Mapping[str, StoreAddress], *, gateway: str, observe: Observer) -> Self:
        """As :meth:`PostgresStore.open`, of all of them at once. ``gateway`` and ``observe`` as there."""
        several = len(addresses) > 1
        opened = await asyncio.gather(
            *(
                PostgresStore.open(
                    address.place,
                    gateway=gateway,
                    observe=_naming(name, frozenset(address.roles), observe) if several else observe,
                )
                for name, address in addresses.items()
            )
        )
        return cls(
            dict(zip(addresses, opened, strict=True)), {name: address.roles for name, address in addresses.items()}
        )

    def name_of(self, role: str) -> str:
        """The name of the store that holds ``role``."""
        return self._names[role]

    def of(self, role: str) -> PostgresStore:
        """The store that holds ``role``."""
        return self.by_name[self._names[role]]

    def validate(self, roles: Collection[str], still_leads: StillLeads) -> None:
        """As :meth:`PostgresStore.validate`, each store for those of ``roles`` that it holds."""
        for name, store in self.by_name.items():
            held = set(self._roles[name])
            store.validate([role for role in roles if role in held], still_leads)

    def others(self, name: str) -> list[tuple[str, PostgresStore]]:
        """Every store but the one of that name."""
        return [(other, store) for other, store in self.by_name.items() if other != name]

    async def close(self) -> None:
        """Close every store, as :meth:`PostgresStore.close`."""
        await asyncio.gather(*(store.close() for store in self.by_name.values()))


def _naming(name: str, roles: Collection[str], observe: Observer) -> Callable[[Observation], None]:
    """``observe``, told which store went down or came up; and nothing of rows that are another store's by now."""

    def told(fact: Observation) -> None:
        if isinstance(fact, FenceSeen) and fact.role not in roles:
            return
        observe(replace(fact, store=name) if isinstance(fact, StoreWentDown | StoreCameUp) else fact)

    return told
