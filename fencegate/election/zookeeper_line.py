"""The line of a role in ZooKeeper: a node for each candidate, in the order of their czxids; and our own places."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field

from fencegate.election.zookeeper_calls import ZookeeperCalls
from fencegate.election.zookeeper_link import exceptions
from fencegate.election.zookeeper_records import Names, candidate_of, candidate_value
from fencegate.lease import Candidate

Nodes = dict[str, int]
"""The path of each candidate's node, with its czxid."""


@dataclass(slots=True)
class Place:
    """Our place in the line of one role; ``path`` is empty until it is known that the node was made."""

    candidacy: str = field(default_factory=lambda: uuid.uuid4().hex)
    path: str = ""
    joined: int = 0
    token: int = 0
    won: bool = False
    version: int = -1


class Line:
    """The lines of all roles. Raises as :class:`ZookeeperCalls`: within its attempts, to be repeated."""

    def __init__(self, zk: ZookeeperCalls) -> None:
        self._zk = zk
        self._places: dict[str, Place] = {}
        self._joined: Nodes = {}
        self._left: dict[str, set[str]] = {}
        """By role: candidacies of ours that are over, whose nodes are not known to be gone."""

    def place(self, role: str) -> Place | None:
        """Where we stand, if we do."""
        return self._places.get(role)

    def forget(self, role: str) -> None:
        """Our place there is over; its node is somebody else's to remove, or gone."""
        self._places.pop(role, None)

    def clear(self) -> None:
        self._places.clear()

    async def stand(self, names: Names, candidate: Candidate, left: float) -> tuple[Place, Nodes]:
        """Our place, taken anew where we have none or lost it, and the line that it is in."""
        await self.sweep(names, left)
        nodes = await self.look(names, left)
        place = self._places.setdefault(names.role, Place())
        await self._know_own_node(names, place, nodes, left)
        if place.path and place.path not in nodes:
            # Our node went with its session, or was removed by who took over. Whatever we were is over.
            place = self._places[names.role] = Place()
        if not place.path:
            await self._join(names, place, candidate, left)
            nodes = await self.look(names, left)
        return place, nodes

    def leave(self, role: str) -> None:
        """Our candidacy there is over, if it has not won: see :meth:`sweep`."""
        place = self._places.pop(role, None)
        if place is not None and not place.won:
            self._left.setdefault(role, set()).add(place.candidacy)

    async def sweep(self, names: Names, left: float) -> None:
        """Remove every node of candidacies that are over, those too whose making we never heard of."""
        over = set(self._left.get(names.role, ()))
        if not over:
            return
        for path in await self.look(names, left):
            if _candidacy(path) in over:
                await self._zk.remove(path, left)
        self._left[names.role] -= over

    async def give_up(self, names: Names, place: Place, left: float) -> None:
        """Under this node's number nobody may lead any more."""
        # Forgotten only once it is gone: a node of this session that nobody knows would stand before our next one.
        await self._zk.remove(place.path, left)
        self.forget(names.role)

    async def candidates(self, names: Names, left: float, *, without: str) -> list[Candidate]:
        """Who stands in line, in its order; ``without`` is the holder's node."""
        nodes = await self.look(names, left)
        nodes.pop(without, None)
        found = []
        for path in sorted(nodes, key=nodes.__getitem__):
            with suppress(exceptions.NoNodeError):
                value, _ = await self._zk.call(left, lambda client, path=path: client.get_async(path))
                found.append(candidate_of(value))
        return [candidate for candidate in found if candidate is not None]

    async def look(self, names: Names, left: float) -> Nodes:
        await self._zk.prepare(left, names.line, names.terms)
        children = await self._zk.call(left, lambda client: client.get_children_async(names.line))
        found = {}
        for path in (f"{names.line}/{child}" for child in children):
            if path not in self._joined:
                stat = await self._zk.call(left, lambda client, path=path: client.exists_async(path))
                if stat is None:
                    continue
                self._joined[path] = stat.czxid
            found[path] = self._joined[path]
        for gone in [path for path in self._joined if path.startswith(names.line + "/") and path not in found]:
            del self._joined[gone]
        return found

    async def _know_own_node(self, names: Names, place: Place, nodes: Nodes, left: float) -> None:
        """A node of ours whose making we never heard of is adopted, if it is this session's; any further is removed."""
        for path in [path for path in nodes if _candidacy(path) == place.candidacy and path != place.path]:
            stat = await self._zk.call(left, lambda client, path=path: client.exists_async(path))
            if stat is not None and not place.path and stat.ephemeralOwner == self._zk.link.session_id:
                await self._number(names, place, path, stat.czxid, left)
            else:
                await self._zk.remove(path, left)
                del nodes[path]

    async def _join(self, names: Names, place: Place, candidate: Candidate, left: float) -> None:
        made = await self._zk.call(
            left,
            lambda client: client.create_async(
                f"{names.line}/{place.candidacy}-",
                candidate_value(candidate),
                ephemeral=True,
                sequence=True,
                include_data=True,
            ),
        )
        await self._number(names, place, made[0], made[1].czxid, left)

    async def _number(self, names: Names, place: Place, path: str, czxid: int, left: float) -> None:
        """Our node is known now. A session reads nothing older than its own write: no base that counts is missed."""
        token = (await self._zk.bases(names, left))[0].token(czxid)
        place.path, place.joined, place.token = path, czxid, token


def _candidacy(path: str) -> str:
    return path.rpartition("/")[2].partition("-")[0]
