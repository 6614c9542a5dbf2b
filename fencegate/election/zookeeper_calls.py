"""Calls to ZooKeeper for the election: transactions, repeated attempts, parent nodes; each within its limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from fencegate.election.bases import Bases
from fencegate.election.zookeeper_link import LinkLost, ZookeeperLink, exceptions
from fencegate.election.zookeeper_records import Names
from fencegate.lease import ElectionUnavailable

_LOOKS: Final = 4
_RETRY_PAUSE: Final = 0.02
_SHARE: Final = 0.9
"""What an attempt takes of the time that there is: a link that answers nothing is hung up on before nobody waits."""

T = TypeVar("T")


class Changed(Exception):
    """A transaction was not carried out, since what it compared had changed: look again."""


class ZookeeperCalls:
    """Over one link; ``prefix`` is what every node lies under."""

    def __init__(self, link: ZookeeperLink, prefix: str) -> None:
        self.link = link
        self.prefix = prefix
        self._made: set[str] = set()

    async def prepare(self, left: float, *paths: str) -> None:
        for path in paths:
            if path not in self._made:
                await self.call(left, lambda client, path=path: client.ensure_path_async(path))
                self._made.add(path)

    async def bases(self, names: Names, left: float) -> tuple[Bases, int]:
        """A role's bases, and the version of their node: -1 without one."""
        try:
            value, stat = await self.call(left, lambda client: client.get_async(names.base))
            return Bases.of(names.base, value, stat.mzxid), stat.version
        except exceptions.NoNodeError:
            return Bases(), -1
        except ValueError as error:
            raise ElectionUnavailable(f"ZooKeeper: {error}", "refused") from None

    async def commit(self, left: float, fill: Callable[[Any], Any]) -> Sequence[Any]:
        """The results of a transaction that was carried out. Raises :class:`Changed` where it was not."""

        def begin(client: Any) -> Any:
            transaction = client.transaction()
            fill(transaction)
            return transaction.commit_async()

        results: list[Any] = await self.call(left, begin)
        failed = [result for result in results if isinstance(result, Exception)]
        for error in failed:
            if isinstance(error, exceptions.NoAuthError):
                raise error
        if failed:
            if any(isinstance(error, exceptions.NoNodeError) for error in failed):
                self._made.clear()  # it may be a parent that somebody removed: make it again
            raise Changed
        return results

    async def prove(self, names: Names, left: float) -> None:
        """An empty transaction through the quorum: what this session reads after it is no older than it.

        ``sync`` would not do: the leader answers it by itself, and so does one that has been deposed unawares.
        """
        await self.prepare(left, names.terms)
        await self.commit(left, lambda transaction: transaction.check(names.terms, -1))

    async def remove(self, path: str, left: float) -> None:
        """Remove a node, if it is there."""
        try:
            await self.call(left, lambda client: client.delete_async(path))
        except exceptions.NoNodeError:
            return

    async def call(self, left: float, request: Callable[..., Any]) -> Any:
        return await self.link.call(request, left)

    async def repeat(self, deadline: float, attempt: Callable[[float], Awaitable[T]]) -> T:
        """Attempts until one ends, for ``deadline`` seconds. Each begins by looking, so that it may be repeated."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline
        reason, changed = "", 0
        try:
            async with asyncio.timeout(max(0.0, deadline)):
                while True:
                    try:
                        return await attempt(_SHARE * min(ends - loop.time(), deadline / len(self.link.hosts)))
                    except LinkLost as error:
                        reason = str(error)
                    except exceptions.NoNodeError:
                        self._made.clear()  # somebody removed a parent node: make it again
                    except Changed:
                        changed += 1
                        if changed >= _LOOKS:
                            raise ElectionUnavailable("ZooKeeper: the record keeps changing", "refused") from None
                    await asyncio.sleep(_RETRY_PAUSE)
        except TimeoutError:
            reason = reason or self.link.explained(f"no answer within {deadline:.3g} s")
            raise ElectionUnavailable(f"ZooKeeper: {reason}", "timeout") from None
        except exceptions.NoAuthError:
            raise ElectionUnavailable(f"ZooKeeper: no permission under {self.prefix}", "refused") from None
        except exceptions.KazooException as error:
            raise ElectionUnavailable(f"ZooKeeper: {type(error).__name__} {error}", "refused") from error
