"""Clients that press the fence: each write goes out once, under a name of its own, to one region, and never again.

So its answer can be judged by itself: acknowledged is there once, refused is nowhere, unknown is there at most once.
Half of the clients are zombies: they go on with the first token and address that they learnt, long after both are old.
Writes go out in bursts on connections that are kept, as from a busy service.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from fencegate.client.discovery import read_discovery
from fencegate.gameday import plain_client
from fencegate.gameday.history import Attempt, History
from fencegate.gameday.plain_line import PlainLine, Raw
from fencegate.gameday.population import Clock

_PATIENCE: Final = 4.0
_AGAIN: Final = 0.15
"""Seconds before one asks again where nobody answered: these clients share a machine with what they wait for."""
_NOBODY: Final = "unreachable"
_RELEARN: Final = frozenset({"not_leader", "stale_token", "draining", "no_leader"})


class Hammer:
    """``clients`` that write to ``origins`` (region to URL) every ``pace`` seconds or so, until :meth:`stop`.

    A burst has up to ``burst`` writes; a zombie's is that long, the others' are mostly shorter. ``name`` is what their
    names, and so those of their writes, begin with. A write's name is the ``case`` in its body, and its idempotency key
    but for a share of ``unkeyed``, which have none.
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
        burst: int = 1,
        zombie_life: float = 15.0,
        name: str = "client",
        unkeyed: float = 0.0,
    ) -> None:
        self._origins = origins
        self._path = path
        self._role = role
        self._history = history
        self._clock = clock
        self._clients = clients
        self._pace = pace
        self._burst = burst
        self._zombie_life = zombie_life
        self._name = name
        self._unkeyed = unkeyed
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
        answered: set[str] = set()
        lines = {to: PlainLine(origin) for to, origin in self._origins.items()}
        while not self._stopping.is_set():
            old = self._clock() - learnt_at > (self._zombie_life if zombie else 0.5)
            if not token or old:
                region = random.choice(list(self._origins))
                if found := await self._discover(lines[region], region):
                    (region, token), learnt_at = found, self._clock()
                else:
                    await asyncio.sleep(_AGAIN)
            if token:
                count = self._burst if zombie else random.choice((1, 1, (self._burst + 1) // 2, self._burst))
                if _NOBODY in answered:
                    count = 1  # Many that nobody takes prove no more than one, and cost as much as those that are.
                keys = [f"{name}-{number + n + 1}" for n in range(count)]
                number += count
                # Sometimes to the other region, as after a DNS record that names the wrong one.
                to = region if random.random() < 0.8 else random.choice(list(self._origins))
                answered = await self._send(lines[to], name, keys, to, token)
                if not zombie and not answered.isdisjoint(_RELEARN):
                    learnt_at = 0.0
                if _NOBODY in answered:
                    await asyncio.sleep(_AGAIN)
            await asyncio.sleep(random.uniform(0.5, 1.5) * self._pace)
        for line in lines.values():
            line.close()

    async def _discover(self, line: PlainLine, region: str) -> tuple[str, int] | None:
        """Region and token of the leader by the word of ``region``'s gateway; ``None`` where it knows none."""
        question = line.request("GET", f"/.well-known/fencegate/leader/{self._role}")
        [(answer, _)] = await line.burst([question], 1.0)
        if not isinstance(answer, Raw) or not answer.head.startswith(b"HTTP/1.1 200 "):
            return None
        found = read_discovery(self._origins[region], answer.body)
        leader = next((name for name, url in self._origins.items() if found and url == found.leader), None)
        return (leader, found.token) if found and leader else None

    async def _send(self, line: PlainLine, name: str, keys: list[str], region: str, token: int) -> set[str]:
        """What the answers gave as their reasons."""
        head = line.head("POST", self._path, [("Content-Type", "application/json"), ("X-Fencing-Token", str(token))])
        requests = [_request(head, key.encode(), keyed=random.random() >= self._unkeyed) for key in keys]
        began = self._clock()
        reasons = set()
        for key, (answer, ended) in zip(keys, await line.burst(requests, _PATIENCE), strict=True):
            said, entry = plain_client.heard(answer)
            place = (entry.get("seq", 0), entry.get("hash", ""))
            self._history.record(
                Attempt(name, key, region, token, began, ended, said.answered, said.reason, *place, said.replayed)
            )
            reasons.add(said.reason)
        return reasons


def _request(head: bytes, key: bytes, *, keyed: bool) -> bytes:
    body = b'{"case":"%b"}' % key
    line = b"Idempotency-Key: %b\r\n" % key if keyed else b""
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, line, len(body), body)
