"""The admin listener: health, metrics, the state of every role, and the few things an operator may do.

It shows what is believed here and what the store says; it admits nothing. Actions need the act token;
reads need the read token where one is configured, and the act token always reads too.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from aiohttp import BasicAuth, web

from fencegate.errors import Unavailable
from fencegate.fence import Fence, FenceStore
from fencegate.gateway.actions import NAMES, Acted, Action, Actions
from fencegate.gateway.admin_connection import ADMIN_LIMITS, BODY_LIMIT, MOST_BODY_BYTES, AdminConnections
from fencegate.gateway.admission import leader_of
from fencegate.gateway.listener import Listener
from fencegate.gateway.replies import leader_document
from fencegate.lease import LeadershipView, LeaseTimings

DEFAULT_TIMINGS: Final = LeaseTimings()
_STORE_LIMIT: Final = 2.0
"""Seconds to wait for the store before saying that it does not answer."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin pages show and do.

    ``roles`` are all single roles by configuration. ``metrics`` gives content type and body.
    ``actions`` are those that this gateway can carry out, by name. ``rejections`` looks at all
    refusals, and then gives each role's by reason.
    ``stores`` by name, ``""`` for the only one; ``store_of`` names the one that holds a role.
    ``advertise`` is where clients of this region write. ``stopping`` is true once the process is going down;
    ``waiting_for`` says what it still lacks to begin, ``""`` for nothing, and ``store_waits_for`` what the roles of
    the store of that name lack. Tokens of ``None`` are not configured.
    """

    node: str
    region: str
    roles: Sequence[str]
    stores: Mapping[str, FenceStore]
    view: LeadershipView
    metrics: Callable[[], tuple[str, bytes]]
    actions: Mapping[str, Action]
    rejections: Callable[[], Callable[[str], Mapping[str, int]]] | None = None
    stale_senders: Callable[[], list[dict[str, Any]]] = list
    timings: LeaseTimings = DEFAULT_TIMINGS
    observed: Collection[str] = ()
    """Roles with a route in observe mode."""
    rehearsal: Mapping[str, str] = field(default_factory=dict)
    """The roles that a game day may take, each with its ledger's path."""
    advertise: str = ""
    store_of: Callable[[str], str] = lambda role: ""
    stopping: Callable[[], bool] = lambda: False
    waiting_for: Callable[[], str] = lambda: ""
    store_waits_for: Callable[[str], str] = lambda name: ""
    act_token: str | None = None
    read_token: str | None = None
    pages: Sequence[tuple[str, Handler]] = ()
    """Further pages by path, read as the others are: the console's."""
    forms: Sequence[tuple[str, Handler]] = ()
    """The same by POST. Each has to see for itself that whoever sends it may act (:meth:`AdminServer.may_act`)."""


class AdminServer:
    """The admin listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, parts: AdminParts, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._parts = parts
        self._ssl = ssl_context
        self._listener: Listener | None = None
        self._runner: web.AppRunner | None = None
        self._actions = Actions(parts.roles, parts.actions, parts.rehearsal)

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        assert self._runner.server is not None
        self._listener = Listener(AdminConnections(self._runner.server), self._ssl)
        await self._listener.start(host, port, ADMIN_LIMITS.header_timeout)

    async def use_tls(self, context: ssl.SSLContext) -> None:
        """As :meth:`Listener.use`, where there was TLS from the start. Raises ``OSError``."""
        assert self._listener is not None
        await self._listener.use(context, ADMIN_LIMITS.header_timeout)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._listener is not None
        return self._listener.port

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def use_tokens(self, act_token: str | None, read_token: str | None) -> None:
        """From now on these tokens are asked for."""
        self._parts = replace(self._parts, act_token=act_token, read_token=read_token)

    def use_observed(self, roles: Collection[str]) -> None:
        """From now on these roles have a route in observe mode."""
        self._parts = replace(self._parts, observed=roles)

    def application(self) -> web.Application:
        """The routes of the admin listener."""
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_body_in_time])
        app.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/metrics", self._reads(self._metrics)),
                web.get("/-/roles", self._reads(self._roles)),
                *(web.get(path, self._reads(handler)) for path, handler in self._parts.pages),
                *(web.post(path, self._reads(handler)) for path, handler in self._parts.forms),
                *(web.post(f"/-/roles/{{role:.+}}/{name}", self._action(name)) for name in NAMES),
            ]
        )
        return app

    # -- who may ----------------------------------------------------------------------------------

    def _reads(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            parts = self._parts
            tokens = (parts.read_token, parts.act_token)
            if parts.read_token is not None and not (_carries(request, *tokens) or _typed(request, *tokens)):
                return _unauthorized("Reading here needs the bearer token of admin.read_token_file.", typed=True)
            return await handler(request)

        return guarded

    def _acts(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            token = self._parts.act_token
            if token is None:
                return _error(403, "Actions are off: no admin.token_file is configured on this gateway.")
            if not _carries(request, token):
                return _unauthorized("Actions need the bearer token of admin.token_file.")
            return await handler(request)

        return guarded

    # -- pages ------------------------------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.StreamResponse:
        return _json(200, {"live": True})

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        if self._parts.stopping():
            return _json(503, {"ready": False, "reason": "the gateway is stopping"})
        if waiting_for := self._parts.waiting_for():
            return _json(503, {"ready": False, "reason": waiting_for})
        stores = self._parts.stores
        reasons = dict(zip(stores, await asyncio.gather(*map(self._closed, stores)), strict=True))
        closed = {name: reason for name, reason in reasons.items() if reason}
        if len(closed) < len(stores):
            # One store's outage closes its roles alone; a gateway that were sent nothing would close the others too.
            return _json(200, {"ready": True, "closed": closed} if closed else {"ready": True})
        reason = "; ".join(f"{name}: {reason}" if name else reason for name, reason in closed.items())
        return _json(503, {"ready": False, "reason": reason})

    async def _closed(self, store: str) -> str:
        """Why the roles of that store cannot be written to; ``""`` where they can, if somebody leads."""
        if waiting_for := self._parts.store_waits_for(store):
            return waiting_for
        try:
            async with asyncio.timeout(_STORE_LIMIT):
                await self._parts.stores[store].clock()
        except (Unavailable, TimeoutError) as error:
            return f"the store does not answer: {error or 'time-out'}"
        return ""

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        content_type, body = self._parts.metrics()
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    async def _roles(self, request: web.Request) -> web.StreamResponse:
        return _json(200, await self.document())

    async def document(self) -> dict[str, Any]:
        """What ``/-/roles`` answers: this node's belief, and its store's word."""
        parts = self._parts
        words = dict(zip(parts.stores, await asyncio.gather(*map(_word_of, parts.stores.values())), strict=True))
        refused = parts.rejections() if parts.rejections is not None else None
        roles = [self._role(role, words[parts.store_of(role)], refused) for role in parts.roles]
        down = [f"{name}: {word.reason}" if name else word.reason for name, word in words.items() if word.reason]
        own: dict[str, Any] = {
            "node": parts.node,
            "region": parts.region,
            "advertise": parts.advertise,
            "store": {"up": not down, "reason": "; ".join(down) or None},
        }
        if len(words) > 1:
            own["stores"] = {
                name: {"up": not word.reason, "reason": word.reason or None} for name, word in words.items()
            }
        timings = {
            "lease_duration": parts.timings.lease_duration,
            "renew_deadline": parts.timings.renew_deadline,
            "retry_period": parts.timings.retry_period,
        }
        return {**own, "timings": timings, "roles": roles, "stale_senders": parts.stale_senders()}

    def _role(
        self, role: str, word: _StoreWord, refused: Callable[[str], Mapping[str, int]] | None
    ) -> dict[str, object]:
        parts = self._parts
        fence = word.fences.get(role)
        observed = parts.view.observed(role)
        leader = leader_of(observed)
        return {
            "role": role,
            "fence": None if fence is None else _fence_document(fence, word.now),
            **({"store": parts.store_of(role)} if len(parts.stores) > 1 else {}),
            "leader": None if leader is None else leader_document(leader),
            "leadership_known": observed.known,
            "candidacy": observed.candidacy,
            "rejections": dict(refused(role)) if refused is not None else None,
            "observed": role in parts.observed,
            "rehearsal": role in parts.rehearsal,
            "path": parts.rehearsal.get(role),
        }

    # -- actions ----------------------------------------------------------------------------------

    def may_act(self, token: str) -> bool:
        """Whether ``token``, typed into a form, is the one for actions. False where none is configured."""
        return _is_one_of(token, (self._parts.act_token,))

    async def act(self, name: str, role: str, asked: Mapping[str, object]) -> Acted:
        """Carry out one of :data:`fencegate.gateway.actions.NAMES` for somebody who may (:meth:`may_act`)."""
        return await self._actions.act(name, role, orjson.dumps(asked))

    def _action(self, name: str) -> Handler:
        async def act(request: web.Request) -> web.StreamResponse:
            acted = await self._actions.act(name, request.match_info["role"], await request.read())
            return _json(acted.status, acted.document)

        return self._acts(act)


@dataclass(frozen=True, slots=True)
class _StoreWord:
    """What a store says: its clock and its rows by role; or the ``reason`` why it says nothing."""

    now: float = 0.0
    fences: Mapping[str, Fence] = field(default_factory=dict)
    reason: str = ""


async def _word_of(store: FenceStore) -> _StoreWord:
    try:
        async with asyncio.timeout(_STORE_LIMIT):
            now = (await store.clock()).now
            return _StoreWord(now, {fence.role: fence for fence in await store.read_all()})
    except (Unavailable, TimeoutError) as error:
        return _StoreWord(reason=str(error) or "time-out")


@web.middleware
async def _body_in_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The body is here before anything else is looked at; aiohttp keeps it for whoever reads it again."""
    if request.can_read_body:
        try:
            async with asyncio.timeout(BODY_LIMIT):
                await request.read()
        except TimeoutError:
            return _error(408, "The body did not come in time.")
    return await handler(request)


def _fence_document(fence: Fence, now: float) -> dict[str, object]:
    left = fence.valid_until - now
    return {
        "mode": fence.mode,
        "max_token_seen": fence.max_token_seen,
        "sealed": fence.sealed,
        "open": fence.sealed < fence.max_token_seen and left > 0,
        "valid_for_s": round(max(0.0, left), 3) if math.isfinite(left) or left < 0 else None,
        "holder": fence.holder,
        "draining": fence.draining,
        "incarnation": fence.incarnation,
        "last_seq": fence.last_seq,
    }


def _carries(request: web.Request, *tokens: str | None) -> bool:
    """Whether the request carries one of these bearer tokens."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and _is_one_of(given.strip(), tokens)


def _typed(request: web.Request, *tokens: str | None) -> bool:
    """Whether a browser's user typed one of the tokens as a password. For reading only: a browser sends it unasked."""
    try:
        password = BasicAuth.decode(request.headers.get("Authorization", "")).password
    except ValueError:
        return False
    return _is_one_of(password, tokens)


def _is_one_of(given: str, tokens: Sequence[str | None]) -> bool:
    """Every comparison is made, and takes the same time."""
    presented = given.encode("utf-8", "surrogateescape")
    matches = [hmac.compare_digest(presented, token.encode()) for token in tokens if token]
    return any(matches)


def _json(status: int, document: object) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json", headers=headers)


def _error(status: int, sentence: str) -> web.Response:
    return _json(status, {"error": sentence})


def _unauthorized(sentence: str, *, typed: bool = False) -> web.Response:
    response = _error(401, sentence)
    response.headers["WWW-Authenticate"] = 'Bearer realm="fencegate"'
    if typed:
        response.headers.add("WWW-Authenticate", 'Basic realm="fencegate", charset="UTF-8"')
    return response
