"""The clients of a drill: applications with the SDK, programs that only know a cached DNS record, and zombies.

All write one decision after the other, each under an idempotency key of its own, and give none up: a decision that
was not acknowledged is sent again with the same key until it is, or until the drill ends. A zombie's never is, once
another region leads: it keeps the address and the token that it learnt first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fencegate.client import FencedClient, FencedError, OutcomeUnknown
from fencegate.gameday import plain_client, plain_http
from fencegate.gameday.history import Answered, Attempt, History

SDK: Final = "sdk"
STALE: Final = "dns"
ZOMBIE: Final = "zombie"
FRESH: Final = "app"
"""How the names of the kinds of clients begin; the fresh ones ask DNS each time, where the SDK cannot be used."""
LEFT_BEHIND: Final = (STALE, ZOMBIE)

_UNREACHABLE: Final = "unreachable"
_ABANDONED: Final = "abandoned"
"""The drill ended before the answer came: the write may have been made."""
_LEADER_MAX_AGE: Final = 2.0
"""Seconds: the SDK's minute, shortened as the twenty minutes of stale DNS are."""

Clock = Callable[[], float]


@dataclass(slots=True)
class Names:
    """A simulated DNS: one authoritative record, and a cached copy of it at every client.

    ``point`` changes the record; each cached copy lives on for its own share of ``slack`` seconds, as copies with
    lifetimes of up to twenty minutes would. A zombie's copy lives for ever, a fresh client keeps none.
    """

    clock: Clock
    region: str
    _cached: dict[str, tuple[str, float]] = field(default_factory=dict)

    def point(self, region: str, slack: float) -> None:
        self.region = region
        now = self.clock()
        self._cached = {client: copy for client, copy in self._cached.items() if not client.startswith(FRESH)}
        clients = sorted(client for client in self._cached if not client.startswith(ZOMBIE))
        for place, client in enumerate(clients, start=1):
            self._cached[client] = (self._cached[client][0], now + slack * place / len(clients))

    def resolve(self, client: str) -> str:
        """The region that ``client`` believes in now."""
        region, expires = self._cached.get(client, ("", 0.0))
        if self.clock() >= expires:
            region = self.region
            self._cached[client] = (region, float("inf"))
        return region

    def forget(self, client: str) -> None:
        """Nothing answers there: the client drops its copy and asks anew."""
        self._cached.pop(client, None)

    def stale(self) -> int:
        """How many cached copies still name another region than the record does; those of zombies are not counted."""
        now = self.clock()
        mortal = [copy for client, copy in self._cached.items() if not client.startswith(ZOMBIE)]
        return sum(1 for region, expires in mortal if region != self.region and now < expires)


@dataclass(frozen=True, slots=True)
class World:
    """What every client needs: the regions' origins, the way to write, and the book in which answers are written.

    ``apart``: nothing is known to copy between the regions' stores, so a decision goes to each under a key of its own.
    ``run`` begins every key, where the ledger is an old one. ``seed`` decides what is decided, and when.
    """

    origins: Mapping[str, str]
    path: str
    role: str
    names: Names
    history: History
    clock: Clock
    apart: bool = False
    run: str = ""
    seed: int = 0

    def region_of(self, origin: str) -> str:
        return next((name for name, url in self.origins.items() if url == origin), "")


class Population:
    """All clients. They write until :meth:`stop`; then each finishes the decision that it is at."""

    def __init__(self, world: World, *, sdk: int, stale: int, zombies: int = 0, pace: float = 0.3) -> None:
        self._world = world
        self._pace = pace
        self._counts = (sdk, stale, zombies)
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        fresh, stale, zombies = self._counts
        first = (FRESH, self._plain) if self._world.apart else (SDK, self._sdk)
        kinds: list[tuple[str, Callable[[str], _Client]]] = [(f"{first[0]}-{n}", first[1]) for n in range(1, fresh + 1)]
        kinds += [(f"{STALE}-{n}", self._plain) for n in range(1, stale + 1)]
        kinds += [(f"{ZOMBIE}-{n}", self._plain) for n in range(1, zombies + 1)]
        self._tasks = [asyncio.create_task(self._write_on(name, client), name=name) for name, client in kinds]

    def check(self) -> None:
        """Raises what ended a client, if anything did: a client that is gone would make the drill easier."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def stop(self, limit: float) -> int:
        """Asks all to finish; how many decisions were still unanswered after ``limit`` seconds and were dropped."""
        self._stopping.set()
        if not self._tasks:
            return 0
        done, unfinished = await asyncio.wait(self._tasks, timeout=limit)
        await self.abandon()
        for task in done:
            task.result()
        return len(unfinished)

    async def abandon(self) -> None:
        """Ends all clients where they are. Idempotent; never raises."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write_on(self, name: str, kind: Callable[[str], _Client]) -> None:
        dice = random.Random(f"{self._world.seed} {name}")
        async with kind(name) as client:
            number, key, body, answered = 0, "", {}, True
            while not (self._stopping.is_set() and (answered or name.startswith(ZOMBIE))):
                if answered:
                    number += 1
                    key = f"{self._world.run}{name}-{number}"
                    body = {"decision": dice.choice(("approve", "decline", "refer")), "case": key}
                answered = await client.write(key, body)
                await asyncio.sleep(dice.uniform(0.5, 1.5) * self._pace)

    def _sdk(self, name: str) -> _Client:
        return _SdkClient(name, self._world)

    def _plain(self, name: str) -> _Client:
        return _PlainClient(name, self._world)


class _Client:
    """One client. ``write`` is True once the decision is acknowledged; each answer goes into the history."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world

    async def __aenter__(self) -> _Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def write(self, key: str, body: object) -> bool:
        raise NotImplementedError

    def record(
        self,
        key: str,
        region: str,
        token: int,
        began: float,
        answered: Answered,
        reason: str = "",
        entry: Mapping[str, object] | None = None,
        replayed: bool = False,
        tries: int = 1,
    ) -> None:
        entry = entry or {}
        seq, digest = entry.get("seq", 0), entry.get("hash", "")
        assert isinstance(seq, int)
        ended = self.world.clock()
        self.world.history.record(
            Attempt(self.name, key, region, token, began, ended, answered, reason, seq, str(digest), replayed, tries)
        )


class _SdkClient(_Client):
    """An application with the SDK: it discovers the leader, follows hints, and retries by the wire contract."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._client = FencedClient(
            list(world.origins.values()),
            world.role,
            deadline=20.0,
            try_timeout=3.0,
            backoff_cap=0.5,
            retry_burst=50.0,
            leader_max_age=_LEADER_MAX_AGE,
        )

    async def __aenter__(self) -> _Client:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def write(self, key: str, body: object) -> bool:
        began = self.world.clock()
        try:
            answer = await self._client.post(self.world.path, json=body, idempotency_key=key)
        except asyncio.CancelledError:
            self.record(key, "", 0, began, "unknown", _ABANDONED)
            raise
        except FencedError as error:
            answered: Answered = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            self.record(key, self.world.region_of(error.leader or ""), 0, began, answered, error.code)
            return False
        region, token = self.world.region_of(answer.origin), answer.token or 0
        self.record(
            key, region, token, began, "accepted", entry=answer.json(), replayed=answer.replayed, tries=answer.tries
        )
        return True


class _PlainClient(_Client):
    """A program with an HTTP client and a cached DNS record.

    It goes where its record points until that runs out, and presents the token that it has last discovered there. A
    refusal is a failed attempt to it: it asks the same address for a newer token, takes none that belongs to another
    address, and tries again where it is. Where nobody takes a connection it drops its record. A zombie does neither.
    """

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._region = ""
        self._token = 0
        self._learns = not name.startswith(ZOMBIE)

    async def write(self, key: str, body: object) -> bool:
        region = self.world.names.resolve(self.name)
        key = f"{key}-in-{region}" if self.world.apart else key
        if region != self._region:
            self._region, self._token = region, 0
        began = self.world.clock()
        try:
            if not self._token:
                self._token = await self._discover()
            if self._token and await self._send(key, body, began):
                return True
            if self._learns:
                self._token = await self._discover() or self._token
        except plain_http.NotSent:
            self.record(key, region, self._token, began, "refused", _UNREACHABLE)
            if self._learns:
                self.world.names.forget(self.name)
                self._region = ""
        except plain_http.NoAnswer:
            self.record(key, region, self._token, began, "unknown", "outcome_unknown")
        except asyncio.CancelledError:
            self.record(key, region, self._token, began, "unknown", _ABANDONED)
            raise
        return False

    async def _discover(self) -> int:
        """The token that leads according to this address; 0 where it names nobody, or another region, or is silent.

        Raises :class:`~fencegate.gameday.plain_http.NotSent`: a question without an answer says nothing of a write.
        """
        origin = self.world.origins[self._region]
        try:
            found = await plain_client.discover(origin, self.world.role)
        except plain_http.NoAnswer:
            return 0
        return found.token if found is not None and found.leader == origin else 0

    async def _send(self, key: str, body: object, began: float) -> bool:
        url = self.world.origins[self._region] + self.world.path
        said = await plain_client.write(url, self._token, key, body)
        self.record(key, self._region, self._token, began, said.answered, said.reason, said.entry, said.replayed)
        return said.answered == "accepted"
