"""Clients that press the fence: each write goes out once, under a key of its own, to one region, and never again.

So its answer can be judged by itself: acknowledged is there once, refused is nowhere, unknown is there at most once.
Half of the clients are zombies: they go on with the first token and address that they learnt, long after both are old.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from fencegate.gameday import plain_client, plain_http
from fencegate.gameday.history import Attempt, History
from fencegate.gameday.population import Clock

_PATIENCE: Final = 4.0


class Hammer:
    """``clients`` that write to ``origins`` (region to URL) every ``pace`` seconds or so, until :meth:`stop`.

    ``name`` is what their names, and so the keys of their writes, begin with.
    """

    def __init__(
        self,
        origins: Mapping[str, str],
        path: str,
        role: str,
        history: History,
        clock: Clock,
        *,
        clients: int = 12,
        pace: float = 0.03,
        zombie_life: float = 15.0,
        name: str = "client",
    ) -> None:
        self._origins = origins
        self._path = path
        self._role = role
        self._history = history
        self._clock = clock
        self._clients = clients
        self._pace = pace
        self._zombie_life = zombie_life
        self._name = name
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._write_on(f"{self._name}-{n}", zombie=n % 2 == 1)) for n in range(self._clients)
        ]

    async def stop(self) -> None:
        """Waits until each has its last answer. Raises what ended a client, if anything did."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _write_on(self, name: str, *, zombie: bool) -> None:
        number, region, token, learnt_at = 0, "", 0, 0.0
        while not self._stopping.is_set():
            old = self._clock() - learnt_at > (self._zombie_life if zombie else 0.5)
            if not token or old:
                region = random.choice(list(self._origins))
                found, learnt_at = await self._discover(region), self._clock()
                if found:
                    region, token = found
            if token:
                number += 1
                # Sometimes to the other region, as after a DNS record that names the wrong one.
                to = region if random.random() < 0.8 else random.choice(list(self._origins))
                await self._send(name, f"{name}-{number}", to, token)
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._pace)

    async def _discover(self, region: str) -> tuple[str, int] | None:
        """Region and token of the leader by the word of ``region``'s gateway; ``None`` where it knows none."""
        origin = self._origins[region]
        try:
            found = await plain_client.discover(origin, self._role, limit=1.0)
        except (plain_http.NotSent, plain_http.NoAnswer):
            return None
        leader = next((name for name, url in self._origins.items() if found and url == found.leader), None)
        return (leader, found.token) if found and leader else None

    async def _send(self, name: str, key: str, region: str, token: int) -> None:
        began, url = self._clock(), self._origins[region] + self._path
        try:
            said = await plain_client.write(url, token, key, {"case": key}, limit=_PATIENCE)
        except plain_http.NotSent:
            said = plain_client.Said("refused", 0, "unreachable")
        except plain_http.NoAnswer:
            said = plain_client.Said("unknown", 0, "no answer")
        entry = said.entry or {"seq": 0, "hash": ""}
        reason = said.reason or ("" if said.answered == "accepted" else str(said.status))
        place = (entry["seq"], entry["hash"])
        ended = self._clock()
        self._history.record(
            Attempt(name, key, region, token, began, ended, said.answered, reason, *place, said.replayed)
        )
