"""Follows whoever leads in ZooKeeper: a term of fencegate's own, or an election by the usual recipe.

The recipe is that of kazoo's ``Election`` and of Curator: each contender makes one ephemeral sequential node
under one path, and the lowest sequence leads. That path is ``{prefix}/{role}``. The token is the leader's czxid, as in
our own election, and after a rebase the role's base with it: it was assigned when the contender joined the line, and
whoever follows it in the line has a higher one. What the recipe lacks, a lease that outlives the session, is its users'
risk and not the fence's: a paused ex-leader has the lower number.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from fencegate.election.zookeeper import ZookeeperElection
from fencegate.election.zookeeper_link import LinkLost, exceptions
from fencegate.election.zookeeper_records import Names
from fencegate.lease import ElectionUnavailable, Term

_CONTENDER: Final = re.compile(r".*(?:__lock__|-lock-|-latch-)(\d{10})", re.ASCII)
_SHOWN_LIMIT: Final = 120


class ZookeeperFollowed(ZookeeperElection):
    """As :class:`ZookeeperElection`, for reading. Our own record comes first where there is a live one."""

    async def read(self, role: str, deadline: float) -> Term | None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline
        own = await super().read(role, deadline)
        if own is not None:
            return own
        return await self._zk.repeat(ends - loop.time(), lambda left: self._leader_by_recipe(role, left))

    async def changes(self, role: str) -> AsyncIterator[None]:
        """Of the recipe's line and of our record, which every term of ours changes."""
        names = Names(self._zk.prefix, role)
        try:
            await self._zk.prepare(self._lease, names.recipe, names.terms)
        except (LinkLost, ElectionUnavailable, exceptions.KazooException):
            return
        async for _ in self.link.hints(names.recipe, names.term, self._lease):
            yield

    async def _leader_by_recipe(self, role: str, left: float) -> Term | None:
        names = Names(self._zk.prefix, role)
        path = names.recipe
        await self._zk.prove(names, left)
        try:
            children = await self._zk.call(left, lambda client: client.get_children_async(path))
        except exceptions.NoNodeError:
            return None
        line = sorted((found[1], child) for child in children if (found := _CONTENDER.fullmatch(child)))
        if not line:
            return None
        # One that is gone by now makes this a look at a line that is no more: it is repeated.
        node = line[0][1]
        value, stat = await self._zk.call(left, lambda client: client.get_async(f"{path}/{node}"))
        token = (await self._zk.bases(names, left))[0].token(stat.czxid)
        name = "".join(c for c in value.decode("utf-8", "replace") if c.isprintable())[:_SHOWN_LIMIT]
        return Term(role, token, name or "unknown", "", "", True, self._lease, identity=f"zookeeper/{node}")
