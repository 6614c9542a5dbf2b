"""The admin listener: health, metrics, the state of every role, and the few things an operator may do.

It shows what is believed here and what the store says; it admits nothing. Actions need the act token;
reads need the read token where one is configured, and the act token always reads too.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from aiohttp import BasicAuth, web

from fencegate.errors import Unavailable
from fencegate.fence import Fence, FenceStore
from fencegate.gateway.admission import leader_of
from fencegate.gateway.replies import leader_document
from fencegate.lease import LeadershipView, LeaseTimings

DEFAULT_TIMINGS: Final = LeaseTimings()
_STORE_LIMIT: Final = 2.0
"""Seconds to wait for the store before saying that it does not answer."""
DEFAULT_HANDOFF_LIMIT: Final = 10.0
LONGEST_HANDOFF: Final = 600.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Handover:
    """What became of a handoff that was asked for: the status to answer with, and the document."""

    status: int
    document: dict[str, object]


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin pages show and do.

    ``roles`` are all single roles by configuration. ``metrics`` gives content type and body.
    ``resign`` ends this node's leadership of a role: true if it led. ``hand_over`` takes a role, a region and seconds;
    ``None`` where nobody campaigns here. ``rejections`` counts a role's refusals by
    reason. ``advertise`` is where clients of this region write. ``stopping`` is true once the process is going down;
    ``waiting_for`` says what it still lacks to begin, ``""`` for nothing. Tokens of ``None`` are not configured.
    """

    node: str
    region: str
    roles: Sequence[str]
    store: FenceStore
    view: LeadershipView
    metrics: Callable[[], tuple[str, bytes]]
    resign: Callable[[str], Awaitable[bool]]
    hand_over: Callable[[str, str, float], Awaitable[Handover]] | None = None
    rejections: Callable[[str], Mapping[str, int]] | None = None
    timings: LeaseTimings = DEFAULT_TIMINGS
    rehearsal: Mapping[str, str] = field(default_factory=dict)
    """The roles that a game day may take, each with its ledger's path."""
    advertise: str = ""
    stale_senders: Callable[[], list[dict[str, Any]]] = list
    stopping: Callable[[], bool] = lambda: False
    waiting_for: Callable[[], str] = lambda: ""
    act_token: str | None = None
    read_token: str | None = None
    pages: Sequence[tuple[str, Handler]] = ()
    """Further pages by path, read as the others are: the console's."""


class AdminServer:
    """The admin listener. :meth:`start`, then :meth:`stop`; both once."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._runner: web.AppRunner | None = None
        self._under_way: set[asyncio.Future[Handover]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen on ``host:port``; port 0 takes a free one (see :attr:`port`). Raises ``OSError``."""
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def use_tokens(self, act_token: str | None, read_token: str | None) -> None:
        """From now on these tokens are asked for."""
        self._parts = replace(self._parts, act_token=act_token, read_token=read_token)

    def application(self) -> web.Application:
        """The routes of the admin listener."""
        app = web.Application(client_max_size=64 * 1024)
        app.add_routes(
            [
                web.get("/live", self._live),
                web.get("/ready", self._ready),
                web.get("/metrics", self._reads(self._metrics)),
                web.get("/-/roles", self._reads(self._roles)),
                *(web.get(path, self._reads(handler)) for path, handler in self._parts.pages),
                web.post("/-/roles/{role:.+}/resign", self._acts(self._resign)),
                web.post("/-/roles/{role:.+}/handoff", self._acts(self._handoff)),
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
        try:
            async with asyncio.timeout(_STORE_LIMIT):
                await self._parts.store.clock()
        except (Unavailable, TimeoutError) as error:
            return _json(503, {"ready": False, "reason": f"the store does not answer: {error or 'time-out'}"})
        return _json(200, {"ready": True})

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        content_type, body = self._parts.metrics()
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    async def _roles(self, request: web.Request) -> web.StreamResponse:
        return _json(200, await self.document())

    async def document(self) -> dict[str, Any]:
        """What ``/-/roles`` answers: this node's belief, and its store's word."""
        parts = self._parts
        fences: dict[str, Fence] = {}
        now, reason = 0.0, None
        try:
            async with asyncio.timeout(_STORE_LIMIT):
                now = (await parts.store.clock()).now
                fences = {fence.role: fence for fence in await parts.store.read_all()}
        except (Unavailable, TimeoutError) as error:
            reason = str(error) or "time-out"
        roles = [self._role(role, fences.get(role), now) for role in parts.roles]
        store = {"up": reason is None, "reason": reason}
        own = {
            "node": parts.node,
            "region": parts.region,
            "advertise": parts.advertise,
            "store": store,
        }
        timings = {
            "lease_duration": parts.timings.lease_duration,
            "renew_deadline": parts.timings.renew_deadline,
            "retry_period": parts.timings.retry_period,
        }
        return {**own, "timings": timings, "roles": roles, "stale_senders": parts.stale_senders()}

    def _role(self, role: str, fence: Fence | None, now: float) -> dict[str, object]:
        parts = self._parts
        observed = parts.view.observed(role)
        leader = leader_of(observed)
        return {
            "role": role,
            "fence": None if fence is None else _fence_document(fence, now),
            "leader": None if leader is None else leader_document(leader),
            "leadership_known": observed.known,
            "candidacy": observed.candidacy,
            "rejections": dict(parts.rejections(role)) if parts.rejections is not None else None,
            "rehearsal": role in parts.rehearsal,
            "path": parts.rehearsal.get(role),
        }

    async def _resign(self, request: web.Request) -> web.StreamResponse:
        role = request.match_info["role"]
        if role not in self._parts.roles:
            return _error(404, "No role of this name is configured here.")
        try:
            resigned = await self._parts.resign(role)
        except Unavailable as error:
            return _error(503, f"The leadership was not given up: {error}")
        if not resigned:
            return _error(409, "This node does not lead the role.")
        return _json(200, {"role": role, "resigned": True})

    async def _handoff(self, request: web.Request) -> web.StreamResponse:
        role = request.match_info["role"]
        if role not in self._parts.roles:
            return _error(404, "No role of this name is configured here.")
        if self._parts.hand_over is None:
            return _error(409, "This gateway follows the election; it has no leadership to hand over.")
        try:
            to, limit, rehearsal = _wanted(await request.read())
        except ValueError as error:
            return _error(400, str(error))
        if rehearsal and role not in self._parts.rehearsal:
            sentence = "This role is not for rehearsals: no route of it says rehearsal = true on this gateway."
            return _error(403, sentence)
        # Whoever asked may go away: a handoff that was begun is ended.
        work = asyncio.ensure_future(self._parts.hand_over(role, to, limit))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        try:
            done = await asyncio.shield(work)
        except Unavailable as error:
            return _error(503, f"Nothing was begun: {error}")
        return _json(done.status, {"role": role, "to": to, **done.document})


def _wanted(body: bytes) -> tuple[str, float, bool]:
    """The region, the limit and the purpose out of ``{"to": region, "limit": seconds, "rehearsal": bool}``.

    Raises ``ValueError`` with a sentence.
    """
    expected = 'Expected a JSON object such as {"to": "dr", "limit": 10}: '
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(expected + "the body is none.")
    to, limit = document.get("to"), document.get("limit", DEFAULT_HANDOFF_LIMIT)
    if not isinstance(to, str) or not to:
        raise ValueError(expected + "to must name a region.")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= LONGEST_HANDOFF:
        raise ValueError(expected + f"limit must be more than 0 and at most {LONGEST_HANDOFF:g} seconds.")
    rehearsal = document.get("rehearsal", False)
    if not isinstance(rehearsal, bool):
        raise ValueError(expected + "rehearsal must be true or false.")
    if unknown := set(document) - {"to", "limit", "rehearsal"}:
        raise ValueError(expected + f"there is no {sorted(unknown)[0]!r} in it.")
    return to, float(limit), rehearsal


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
