"""A lane: one session, one flush at a time, and what to do when a batch fails as a whole.

A failure of one write never fails its neighbours: a batch that the server refused was not applied,
so it is sent again in parts until the culprit stands alone; within a time, since all others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

import asyncpg

from fencegate.errors import FencegateError, OutcomeUnknown, Unavailable
from fencegate.fence import Forward, Write
from fencegate.observations import FenceChecked, Observer
from fencegate.store.batch import GroupCommit, alone, ignore
from fencegate.store.link import UNSAFE_SESSION, Link, describe

Item = TypeVar("Item")
Result = TypeVar("Result")

LEASE_ENDED: Final = "ZF001"
_CONFLICTS: Final = frozenset({"40001", "40P01", "55P03"})
_TIMED_OUT: Final = "57014"
_NO_FUNCTION: Final = "ZF404"
_READ_ONLY: Final = "25006"
_ONE_A_TRANSACTION: Final = "ZF504"
_TRIES: Final = 3
_PAUSE: Final = 0.02


class CommittedTooLate(OutcomeUnknown):
    """The commit's answer came after the lease had ended: it may have been durable only then."""


@dataclass(slots=True)  # Not frozen: one a write where there are many roles.
class Group(Generic[Item]):
    """Writes of one role under one token: they share one verdict. ``at`` are their places in the batch."""

    role: str
    token: int
    issued: int
    enforce: bool
    items: tuple[Item, ...]
    at: tuple[int, ...]


def group(batch: Sequence[Write | Forward]) -> list[Group[Write | Forward]]:
    """The batch by (role, token), ascending: roles are locked in one order everywhere, and where old and
    new tokens travel together the older go first, as if they had come first.

    ``issued`` is the highest of the group: a token that was once issued stays issued.
    """

    if not batch:
        return []
    first = batch[0]
    role, token, enforce, issued = first.role, first.token, first.enforce, first.issued
    for item in batch:  # the usual case: a loop, since this is done for each batch
        if item.role != role or item.token != token or item.enforce is not enforce:
            break
        if item.issued > issued:
            issued = item.issued
    else:
        return [Group(role, token, issued, enforce, tuple(batch), tuple(range(len(batch))))]

    places: dict[tuple[str, int, bool], list[int]] = {}
    for i, item in enumerate(batch):
        places.setdefault((item.role, item.token, item.enforce), []).append(i)
    groups = []
    for (role, token, enforce), at in sorted(places.items()):
        items = tuple([batch[i] for i in at])
        groups.append(Group(role, token, max([item.issued for item in items]), enforce, items, tuple(at)))
    return groups


def in_order(groups: Sequence[Group[Item]], results: Sequence[Sequence[Result]]) -> list[Result]:
    """The groups' results, put back into the order of the batch."""
    if len(groups) == 1:
        return list(results[0])
    pairs = [pair for g, r in zip(groups, results, strict=True) for pair in zip(g.at, r, strict=True)]
    return [result for _, result in sorted(pairs, key=lambda pair: pair[0])]


def check_commit_time(seconds_left: float, elapsed: float) -> None:
    """``seconds_left`` of the lease when the server began the statement; ``elapsed`` s since it was sent.

    COMMIT comes after the transaction's own look at the clock. An answer that took longer than what was
    left may stand for a commit after the lease's end, when another region may have opened: its outcome is
    not vouched for.
    """
    if elapsed >= seconds_left:
        raise CommittedTooLate("the commit was answered after the lease had ended", "timeout")


def checks_told_to(observe: Observer) -> Callable[[set[str], float], None]:
    """A lane's ``took`` that tells ``observe`` how long the fence's check took."""
    return lambda roles, duration: observe(FenceChecked(tuple(roles), duration))


Send = Callable[[Link, list[Item]], Awaitable[Sequence[Result | FencegateError]]]


class Lane(Generic[Item, Result]):
    """Group commit over one session. ``send`` runs one batch as one transaction.

    ``partition``: only items of one part travel in one transaction; ``None``: all may. ``role``: items of one role
    share a lock. ``alone``: a batch that ran into the server's time limit is sent again one by one, since one of
    them may be slow by itself; otherwise it was a lock, which its role's writes all wait for. ``patience``: after so
    many seconds of sending again the rest is refused. ``took`` hears of which roles a batch was, and how long it took.
    ``turns``, ``shared``, ``late``: see :class:`GroupCommit`.
    """

    def __init__(
        self,
        link: Link,
        send: Send[Item, Result],
        partition: Callable[[Item], Hashable] | None = None,
        *,
        role: Callable[[Item], str],
        max_items: int,
        max_bytes: int = 4 * 1024 * 1024,
        alone: bool = False,
        patience: float = 10.0,
        took: Callable[[set[str], float], None] | None = None,
        turns: int = 0,
        shared: Callable[[], bool] = alone,
        late: Callable[[Item, Result | FencegateError], None] = ignore,
    ) -> None:
        self._link = link
        self._took = took
        self._send = send
        self._partition = partition
        self._role = role
        self._alone = alone
        self._patience = patience
        self.exclusive = asyncio.Lock()
        self._batch: GroupCommit[Item, Result] = GroupCommit(
            self._flush, max_items=max_items, max_bytes=max_bytes, turns=turns, shared=shared, late=late
        )
        self.submit = self._batch.submit
        self.put = self._batch.put
        self.joined = self._batch.joined

    async def close(self) -> None:
        await self._batch.close()
        await self._link.close()

    async def _flush(self, items: list[Item]) -> Sequence[Result | FencegateError]:
        async with self.exclusive:
            began = monotonic()
            try:
                if self._partition is None:
                    return await self._one(items, began + self._patience)
                return await self._parts(_by(self._partition, items), items, began + self._patience)
            finally:
                if self._took is not None:
                    self._took(set(map(self._role, items)), monotonic() - began)

    async def _parts(
        self, parts: Sequence[Sequence[int]], items: Sequence[Item], ends: float, refusal: Unavailable | None = None
    ) -> Sequence[Result | FencegateError]:
        """``refusal``: why they are sent again, all together having been refused; what is left at ``ends`` gets it."""
        if len(parts) == 1 and len(parts[0]) == len(items):
            return await self._one(list(items), ends)
        results: dict[int, Result | FencegateError] = {}
        for places in parts:
            if refusal is not None and monotonic() >= ends:
                results.update(dict.fromkeys(places, refusal))
            else:
                results.update(zip(places, await self._one([items[i] for i in places], ends), strict=True))
        return [results[i] for i in range(len(items))]

    async def _one(self, items: list[Item], ends: float, tries: int = _TRIES) -> Sequence[Result | FencegateError]:
        try:
            return await self._send(self._link, items)
        except FencegateError as error:
            return [error] * len(items)
        except asyncpg.PostgresError as error:
            # The server's word: nothing of this batch was applied.
            refusal = Unavailable(f"the store refused the write: {describe(error)} (SQLSTATE {error.sqlstate})")
            if monotonic() < ends:
                if error.sqlstate == LEASE_ENDED and tries > 1:
                    return await self._one(items, ends, tries - 1)  # now the end is seen, and refused by name
                if error.sqlstate in _CONFLICTS and tries > 1:
                    await asyncio.sleep(_PAUSE)
                    return await self._one(items, ends, tries - 1)
                if len(parts := self._smaller(items, error.sqlstate)) > 1:
                    return await self._parts(parts, items, ends, refusal)
            return [refusal] * len(items)

    def _smaller(self, items: list[Item], sqlstate: str | None) -> Sequence[Sequence[int]]:
        """The places of the parts in which a refused batch is sent again; at most one: not at all."""
        if sqlstate in (UNSAFE_SESSION, _NO_FUNCTION, _READ_ONLY) or (sqlstate or "").startswith(("42", "53")):
            return []  # the fault of the store, and the same for every one of them
        if sqlstate == _ONE_A_TRANSACTION:
            return [[i] for i in range(len(items))]
        if sqlstate == _TIMED_OUT:
            return [[i] for i in range(len(items))] if self._alone else _by(self._role, items)
        half = len(items) // 2
        return [range(half), range(half, len(items))] if half else []


def _by(key: Callable[[Item], Hashable], items: Sequence[Item]) -> list[list[int]]:
    """The places of the items, by their key."""
    parts: dict[Hashable, list[int]] = {}
    for i, item in enumerate(items):
        parts.setdefault(key(item), []).append(i)
    return list(parts.values())
