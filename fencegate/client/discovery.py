"""Who leads, asked at the gateways: cached till refused, one question at a time however many wait for it.

All of the client's gateways are asked at once and the first good answer is taken: a frozen gateway
costs nothing, and one in a region that has been cut off is corrected by the fence itself (it can only
name an older token, which is refused).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from fencegate.client.answers import Answer, Lost, origin_of, token_in
from fencegate.client.exchange import Reply
from fencegate.client.machine import UNREACHABLE, Found, Nobody
from fencegate.errors import PROBLEMS, Retry

Ask = Callable[[str, str], Awaitable[tuple[Answer | Lost, Reply | None]]]
"""Sends one GET for a path at an origin."""

_GRANT = re.compile(r"[!-~]{1,4096}", re.ASCII)
_WELL_KNOWN: Final = "/.well-known/fencegate/leader/"


@dataclass(frozen=True, slots=True)
class Known:
    """The leader that writes go to, until it is refused or older than the client's limit."""

    origin: str
    token: int
    since: float
    grant: str | None = field(default=None, repr=False)


class Leaders:
    """The client's memory of who leads one role, and its discovery."""

    def __init__(self, role: str, origins: tuple[str, ...], ask: Ask, max_age: float) -> None:
        self._path = _WELL_KNOWN + quote(role, safe="/")
        self._origins = origins
        self._ask = ask
        self._max_age = max_age
        self._known: Known | None = None
        self._running: asyncio.Task[Found | Nobody] | None = None
        self._waiting = 0

    def known(self) -> Known | None:
        """The leader in memory, if it is not too old."""
        if self._known is not None and _now() - self._known.since > self._max_age:
            self._known = None
        return self._known

    def learn(self, origin: str, token: int, grant: str | None = None) -> None:
        """A write was accepted there under this token, with this grant."""
        held = self.known()
        if held is None or token > held.token or (token == held.token and origin != held.origin):
            self._known = Known(origin, token, _now(), grant)

    def forget(self, origin: str | None, token: int | None) -> None:
        """This leader refused, or could not be reached. A newer one that is known already is kept."""
        held = self._known
        if held is not None and held.origin == origin and held.token == token:
            self._known = None

    def forget_grant(self, origin: str | None, token: int | None, grant: str | None) -> None:
        """The grant was refused there. A newer one that has come meanwhile is kept."""
        if self._known is not None and self._known.grant == grant:
            self.forget(origin, token)

    async def find(self, floor: int, deadline: float) -> Found | Nobody:
        """Ask, or join the question under way; at the latest at ``deadline`` (loop time) the answer is nobody.

        ``floor`` is the lowest token that is worth having.
        """
        held = self.known()
        if held is not None and held.token >= floor:
            return Found(held.origin, held.origin, held.token, held.grant)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._question(floor))
        task = self._running
        self._waiting += 1
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - _now()))
        finally:
            self._waiting -= 1
            if self._waiting == 0 and not task.done():
                # Nobody wants to know any more. Whoever comes next starts a question of their own.
                task.cancel()
                self._running = None
        if not task.done() or task.cancelled():
            return Nobody("")
        return task.result()

    async def close(self) -> None:
        task, self._running = self._running, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def _question(self, floor: int) -> Found | Nobody:
        asked = [asyncio.create_task(self._one(origin)) for origin in self._origins]
        best: Found | None = None
        nobody: Nobody | None = None
        try:
            for answered in asyncio.as_completed(asked):
                said = await answered
                if isinstance(said, Nobody):
                    nobody = said if nobody is None else max(nobody, said, key=_weight)
                elif said.token >= floor:
                    return said
                elif best is None or said.token > best.token:
                    best = said
            return best or nobody or Nobody(UNREACHABLE)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _one(self, origin: str) -> Found | Nobody:
        answer, reply = await self._ask(origin, self._path)
        if isinstance(answer, Answer) and answer.outcome in PROBLEMS:
            return Nobody(answer.outcome, answer.retry_after, answer.retry is Retry.NEVER, answer.detail)
        if isinstance(answer, Lost):
            return Nobody(UNREACHABLE, detail=f"{origin}: {answer.detail}")
        found = None if reply is None or reply.status != 200 else read_discovery(origin, reply.body)
        return found or Nobody(UNREACHABLE, detail=f"{origin}: HTTP {answer.status}, and no discovery document in it")


def read_discovery(origin: str, body: bytes) -> Found | None:
    """The leader in a discovery document, given at ``origin``; ``None`` where it names no token.

    ``leader`` is an origin, or an object with ``url``. What could not stand in a header is no grant.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    token, leader = token_in(document.get("token")), document.get("leader")
    if isinstance(leader, dict):
        token = token if token is not None else token_in(leader.get("token"))
        leader = leader.get("url")
    if token is None:
        return None
    grant = document.get("grant")
    grant = grant if isinstance(grant, str) and _GRANT.fullmatch(grant) else None
    return Found(origin, origin_of(leader) if isinstance(leader, str) else None, token, grant)


def _weight(nobody: Nobody) -> int:
    """Which of several gateways' reasons counts: one that can pass before one that is final, either before silence."""
    if nobody.code == UNREACHABLE:
        return 0
    return 1 if nobody.final else 2 + (nobody.code == "no_leader")


def _now() -> float:
    return asyncio.get_running_loop().time()
