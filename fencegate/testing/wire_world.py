"""What the wire contract's tests stand on: a started gateway with an upstream, and a stage behind it.

A *stage* is a store that can be put into any state. The same table of cases runs over every stage and
every HTTP edge.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from fencegate.errors import FencegateError
from fencegate.fence import (
    Admission,
    Effect,
    Entry,
    Forward,
    Mode,
    StillLeads,
    StoredAnswer,
    Verdict,
    Write,
    WritePath,
    WriteResult,
)
from fencegate.gateway.app import Gateway
from fencegate.gateway.caller import Callers
from fencegate.gateway.limits import Limits
from fencegate.gateway.routes import Route
from fencegate.key_ring import SharedKey
from fencegate.observations import Observation
from fencegate.telling import Tell, heard, tell_of
from fencegate.testing.memory_write_path import FunctionError, MemoryWritePath
from fencegate.testing.raw_http import PATIENCE, TOKEN, Answer, Line, request
from fencegate.testing.recording_upstream import RecordingUpstream
from fencegate.testing.scripted_view import ScriptedView

HOME, ELSEWHERE = "https://ledger.eu.example", "https://ledger.us.example"

# -- the store, in any state --------------------------------------------------------------------------


class Stage(Protocol):
    """A region's store that a test can put into any state. Functions: app.echo, app.reject, app.busy."""

    path: WritePath

    async def start(self, roles: list[str]) -> None: ...
    async def stop(self) -> None: ...
    async def open(self, role: str, token: int, mode: Mode = "lease") -> None: ...
    async def seal(self, role: str) -> None: ...
    async def set_draining(self, role: str, draining: bool) -> None: ...
    async def lose_row(self, role: str) -> None: ...
    async def move_incarnation(self, role: str) -> None:
        """The server is another one now than the one on which the term was claimed."""

    def validate(self, roles: list[str], still_leads: StillLeads) -> None:
        """Writes of ``roles`` need a proof of their term from now on."""

    async def landed(self, role: str) -> int:
        """Writes of this role that the store holds: ledger entries and effects of ``app.echo``."""
        ...


class MemoryStage:
    def __init__(self) -> None:
        self.memory = MemoryWritePath()
        self.path: WritePath = self.memory

    async def start(self, roles: list[str]) -> None:
        def reject(body: Any, context: dict[str, object]) -> Any:
            raise FunctionError("the books are closed", "P0001", hint="open them")

        def busy(body: Any, context: dict[str, object]) -> Any:
            raise FunctionError("deadlock detected", "40P01")

        self.memory.functions = {
            "app.echo": lambda body, context: {"got": body},
            "app.reject": reject,
            "app.busy": busy,
        }

    async def stop(self) -> None:
        return None

    async def open(self, role: str, token: int, mode: Mode = "lease") -> None:
        self.memory.open(role, token, mode=mode)

    async def seal(self, role: str) -> None:
        self.memory.seal(role)

    async def set_draining(self, role: str, draining: bool) -> None:
        self.memory.set_draining(role, draining)

    async def lose_row(self, role: str) -> None:
        del self.memory.fences[role]

    async def move_incarnation(self, role: str) -> None:
        self.memory.incarnation = "memory/2"

    def validate(self, roles: list[str], still_leads: StillLeads) -> None:
        self.memory.validate(roles, still_leads)

    async def landed(self, role: str) -> int:
        echoed = [write for name, write in self.memory.called if name == "app.echo" and write.role == role]
        return len(self.memory.ledger.get(role, [])) + len(echoed)


class Interposed:
    """A write path whose answers a test can replace: the faults that no store shows on demand."""

    def __init__(self, inner: WritePath) -> None:
        self._inner = inner
        self.failure: FencegateError | None = None
        self.applies_first = False
        self.effect: Effect | None = None
        self.hold: asyncio.Event | None = None
        self.waiting = 0
        self.questions = 0
        """Writes that were put to the store, each as often as it was."""

    async def _before(self) -> None:
        if self.hold is not None:
            self.waiting += 1
            await self.hold.wait()
        if self.failure is not None and not self.applies_first:
            raise self.failure

    def _after(self, result: WriteResult) -> WriteResult:
        if self.failure is not None:
            raise self.failure
        return result

    def send(self, write: Write, time_limit: float, tell: Tell[WriteResult]) -> None:
        tell_of(self.append(write, time_limit), tell)

    async def append(self, write: Write, time_limit: float) -> WriteResult:
        self.questions += 1
        await self._before()
        if self.effect is not None:
            return WriteResult(Verdict.ADMIT, self.effect, write.token)
        return self._after(await self._inner.append(write, time_limit))

    async def call(self, function: str, write: Write, time_limit: float) -> WriteResult:
        self.questions += 1
        await self._before()
        if self.effect is not None:
            return WriteResult(Verdict.ADMIT, self.effect, write.token)
        return self._after(await self._inner.call(function, write, time_limit))

    async def admit(self, forward: Forward, time_limit: float) -> Admission:
        self.questions += 1
        await self._before()
        return await self._inner.admit(forward, time_limit)

    def ask(self, forward: Forward, time_limit: float, tell: Tell[Admission]) -> None:
        tell_of(self.admit(forward, time_limit), tell)

    def settle(self, ticket: int, answer: StoredAnswer | None, *, sent: bool = True) -> Awaitable[None]:
        return self._inner.settle(ticket, answer, sent=sent)

    async def peek(self, role: str, token: int, time_limit: float) -> tuple[Verdict, int | None]:
        await self._before()
        return await self._inner.peek(role, token, time_limit)

    def knows(self, role: str, key_digest: bytes, time_limit: float, tell: Tell[bool]) -> None:
        tell_of(self._knows(role, key_digest, time_limit), tell)

    async def _knows(self, role: str, key_digest: bytes, time_limit: float) -> bool:
        await self._before()
        return await heard(partial(self._inner.knows, role, key_digest, time_limit))

    async def entry(self, role: str, seq: int) -> Entry | None:
        await self._before()
        return await self._inner.entry(role, seq)

    async def entries(self, role: str, after: int, limit: int) -> list[Entry]:
        await self._before()
        return await self._inner.entries(role, after, limit)


# -- the gateway, started -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """One of the three targets, as a place to send a write to."""

    name: str
    path: str
    role: str
    strict_path: str
    strict_role: str

    def __str__(self) -> str:
        return self.name


LEDGER = Target("ledger", "/v1/entries", "ledger", "/strict", "strict")
FUNCTION = Target("function", "/fn/echo", "fn", "/fn/strict", "strict-fn")
HTTP = Target("http", "/web/thing", "web", "/web-strict/thing", "strict-web")
TARGETS = [LEDGER, FUNCTION, HTTP]

HELD_LEDGER = Target("ledger", "/held", "held", "/held", "held")
HELD_FUNCTION = Target("function", "/held-fn", "held-fn", "/held-fn", "held-fn")
HELD_HTTP = Target("http", "/held-web/thing", "held-web", "/held-web/thing", "held-web")
HELD_TARGETS = [HELD_LEDGER, HELD_FUNCTION, HELD_HTTP]
"""The same targets, on routes that hold writes for up to :data:`HOLD` seconds."""
HOLD, BRIEF_HOLD = 8.0, 2.0
IDLE = 4

ROLES = ["ledger", "strict", "fn", "strict-fn", "web", "strict-web", "watched", "watched-web", "shard/eu-1", "big"]
ROLES += ["held", "held-fn", "held-web", "brief", "watched-held", "watched-authz", "watched-fn", "method"]
SHARED_ROLES = ["open", "open-fn", "open-web", "open-held"]
"""Token mode."""

PROOF_KEY = SharedKey("key-1", b"the-secret-of-gate-and-upstream!")


def routes(upstream: str) -> list[Route]:
    return [
        Route("/v1/entries", "ledger", "ledger"),
        Route("/strict", "strict", "ledger", idempotency="required", max_body_bytes=1000),
        Route("/fn/echo", "fn", "function", "app.echo"),
        Route("/fn/reject", "fn", "function", "app.reject"),
        Route("/fn/busy", "fn", "function", "app.busy"),
        Route("/fn/strict", "strict-fn", "function", "app.echo", idempotency="required", max_body_bytes=1000),
        Route("/web/*", "web", "http", upstream, timeout=4.0),
        Route("/web-strict/*", "strict-web", "http", upstream, idempotency="required", max_body_bytes=1000),
        Route("/big/*", "big", "http", upstream, max_body_bytes=2**30),
        Route("/shards/{shard}/*", "shard/{shard}", "http", upstream, members=frozenset({"eu-1"})),
        Route("/proved/*", "web", "http", f"{upstream}/base", proof_key=PROOF_KEY),
        Route("/watched-proved/*", "watched-web", "http", upstream, mode="observe", proof_key=PROOF_KEY),
        Route("/watched", "watched", "ledger", mode="observe"),
        Route("/watched-fn", "watched-fn", "function", "app.echo", mode="observe"),
        Route("/watched-web/*", "watched-web", "http", upstream, mode="observe"),
        Route("/held", "held", "ledger", hold=HOLD),
        Route("/held-fn", "held-fn", "function", "app.echo", hold=HOLD),
        Route("/held-web/*", "held-web", "http", upstream, hold=HOLD),
        Route("/brief", "brief", "ledger", hold=BRIEF_HOLD),
        Route("/watched-held", "watched-held", "ledger", hold=HOLD, mode="observe"),
        Route("/-/authz/watched-authz", "watched-authz", "authz", mode="observe"),
        Route("/-/authz/method", "method", "authz", method_from="X-Original-Method"),
        Route("/open-held", "open-held", "ledger", hold=HOLD),
        Route("/open", "open", "ledger"),
        Route("/open-fn", "open-fn", "function", "app.echo"),
        Route("/open-web/*", "open-web", "http", upstream),
    ]


@dataclass
class World:
    """A started gateway of region ``eu``, which leads every role under token 42, and all that stands around it."""

    stage: Stage
    store: Interposed
    view: ScriptedView
    upstream: RecordingUpstream
    gateway: Gateway
    edge: Any
    seen: list[Observation] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.edge.port)

    async def effects(self, target: Target, role: str = "") -> int:
        """Writes that reached the place where this target's writes land."""
        if target.name == "http":
            return sum(1 for request in self.upstream.requests if request.method not in ("GET", "HEAD", "OPTIONS"))
        return await self.stage.landed(role or target.role)

    async def ask(self, request: bytes, *, limit: float = PATIENCE) -> Answer:
        """One request on a connection of its own, one answer."""
        async with Line.to(self.port) as line:
            return await line.ask(request, limit=limit)


@asynccontextmanager
async def world_of(
    stage: Stage,
    edge: Callable[[Gateway], Any],
    *,
    limits: Limits | None = None,
    callers: Callers | None = None,
    make: Callable[..., Gateway] = Gateway,
    idle: bool = False,
) -> AsyncIterator[World]:
    """A world. ``make``: what the gateway is made by. ``idle``: it has connections to the upstream to be used."""
    await stage.start([*ROLES, *SHARED_ROLES])
    view = ScriptedView()
    for role in ROLES:
        await stage.open(role, TOKEN)
        view.lead(role, TOKEN, "eu", HOME)
    for role in SHARED_ROLES:
        await stage.open(role, TOKEN, "token")
        view.lead(role, TOKEN, "eu", HOME)
    async with RecordingUpstream() as upstream:
        store = Interposed(stage.path)
        seen: list[Observation] = []
        gateway = make(
            routes(upstream.url),
            store,
            view,
            region="eu",
            observe=seen.append,
            limits=limits or Limits(),
            origins={"eu": HOME, "us": ELSEWHERE},
            callers=callers,
        )
        server = edge(gateway)
        await server.start("127.0.0.1", 0)
        world = World(stage, store, view, upstream, gateway, server, seen)
        try:
            if idle:
                await asyncio.gather(*(world.ask(request("GET", HTTP.path)) for _ in range(IDLE)))
                upstream.requests.clear()
            yield world
        finally:
            if store.hold is not None:
                store.hold.set()
            await server.stop(1.0)
            await gateway.close(1.0)
            await stage.stop()


WorldFactory = Callable[..., AbstractAsyncContextManager[World]]
