"""States of two regions as their nodes tell of them, for the console to show in a browser.

Real gateways cannot be brought into most of them (that is what they are for), and never for long enough to look at:
so a real console shows what is scripted here. ``test_console.py`` has the real regions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from fencegate.console.routes import Console

Json = dict[str, Any]
ACT = "act-token-of-the-operators"
HOSTILE = '"><script>document.title="owned"</script><img src=x onerror=alert(1)>'


def role(name: str = "ledger", *, leads: bool = False, **more: Any) -> Json:
    """A role as the node of the leading region tells of it, or as the other one does."""
    fence = {"open": leads, "valid_for_s": 11.8 if leads else 0.0, "max_token_seen": 42 if leads else 41,
             "sealed": 41, "draining": False}  # fmt: skip
    return {
        "role": name,
        "fence": fence | more.pop("fence", {}),
        "leader": {"url": "https://eu.example", "region": "eu", "token": 42},
        "leadership_known": True,
        "candidacy": "leading" if leads else "campaigning",
        "rejections": {"stale_token": 3, "not_leader": 112} if not leads else {},
        "observed": False,
        "rehearsal": False,
        "memory": memory(leads=leads),
    } | more


def memory(*, leads: bool = False, turns: list[list[float]] | None = None, slow: bool = False) -> Json:
    """What a node remembers of a role: leading for seven minutes, renewals of some milliseconds."""
    renewals = [[30.0 * n, 0.004 + 0.0011 * (n * 7 % 5)] for n in reversed(range(14))]
    if slow:
        renewals[-4:] = [[90.0, 0.3], [60.0, 2.6], [30.0, 8.0], [0.0, 11.2]]
    checks = [[30.0 * n, 0.0006 + 0.0003 * (n * 5 % 7)] for n in reversed(range(30))]
    empty: Json = {"last_age": None, "last": None, "p50": None, "p99": None, "series": []}
    return {
        "leading": turns if turns is not None else [[420.0, 1]] if leads else [[700.0, 1], [440.0, 0]],
        "renewals": {"last_age": 1.2, "last": 0.0052, "p50": 0.005, "p99": 0.009, "series": renewals}
        if leads
        else empty,
        "checks": {"last_age": 0.1, "last": 0.0007, "p50": 0.0008, "p99": 0.0024, "series": checks},
    }


def node(region: str, *roles: Json, up: bool = True, **more: Any) -> Json:
    """The document of a region's node."""
    return {
        "node": f"gw-{region}",
        "region": region,
        "store": {"up": up, "reason": None if up else "no connection to db-eu.example:5432"},
        "timings": {"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0},
        "roles": list(roles),
        "stale_senders": [],
        "events": [],
    } | more


EVENTS = [
    {"age": 420.0, "alarming": False, "text": "leads ledger under token 42"},
    {"age": 3.0, "alarming": True, "text": "a renewal of ledger failed (timeout): no answer within 5 s"},
]
SENDERS = [
    {
        "role": "ledger",
        "client": "10.4.0.17",
        "forwarded_for": "203.0.113.9",
        "agent": "fencegate-python/0.1.0",
        "refused": 112,
        "let_through": 0,
        "reason": "not_leader",
        "token": 41,
        "first_age_s": 1210.0,
        "last_age_s": 0.4,
    }
]
LED = (node("eu", role(leads=True), events=EVENTS[:1]), node("dr", role(), stale_senders=SENDERS))
_LOST = {"leader": None, "candidacy": "campaigning", "fence": {"open": False, "valid_for_s": 0.0}}
_GONE = {"leader": None, "candidacy": "campaigning", "memory": memory(turns=[[600.0, 1], [300.0, 0]])}
MANY = [role(f"shard/{n}", leads=n != 7, **(_GONE if n == 7 else {})) for n in range(100)]

MANY_ELSEWHERE = [role(f"shard/{n}", **({**_GONE, "memory": memory(turns=[])} if n == 7 else {})) for n in range(100)]

SCENES: Mapping[str, tuple[Json, Json | None]] = {
    "led": LED,
    "no-leader": (
        node("eu", role(leads=True, memory=memory(leads=True, turns=[[420.0, 1], [7.2, 0]], slow=True), **_LOST),
             events=EVENTS),
        node("dr", role(leader=None)),
    ),
    "two-leaders": (
        node("eu", role(leads=True)),
        node("dr", role(leads=True, fence={"max_token_seen": 43}, leader=None, memory=memory(turns=[[12.0, 1]]))),
    ),
    "unseen": (node("eu", role(leads=True)), None),
    "store-down": (node("eu", role(leads=True, fence={"open": False, "valid_for_s": 0.0}), up=False, events=EVENTS),
                   node("dr", role())),
    "observe": (
        node("eu", role(leads=True, observed=True),
             stale_senders=[{**SENDERS[0], "refused": 0, "let_through": 58}]),
        node("dr", role()),
    ),
    "draining": (
        node("eu", role(leads=True, fence={"draining": True}, rejections={"draining": 9})),
        node("dr", role()),
    ),
    "many": (node("eu", *MANY), node("dr", *MANY_ELSEWHERE)),
    "hostile": (
        node(HOSTILE, role(HOSTILE, leads=True, rejections={HOSTILE: 1}), node=HOSTILE,
             stale_senders=[{**SENDERS[0], "agent": HOSTILE, "client": HOSTILE, "forwarded_for": HOSTILE}],
             events=[{"age": 1.0, "alarming": True, "text": HOSTILE}]),
        node("dr", role(HOSTILE, leader={"url": HOSTILE, "region": HOSTILE, "token": 42})),
    ),
    "rehearsal": (node("eu", role(leads=True, rehearsal=True, fence={"draining": True})), node("dr", role())),
}  # fmt: skip


@dataclass
class Stage:
    """A console at ``url`` that shows ``scene``; ``acted`` are the actions that were asked for.

    ``frozen``: it says nothing any more.
    """

    scene: tuple[Json, Json | None] = LED
    acted: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""
    frozen: bool = False
    console: Any = None

    def show(self, scene: tuple[Json, Json | None]) -> None:
        """From now on this, and nothing that the console has seen before."""
        self.scene = scene
        self.console._looked_at = float("-inf")

    # -- what a console asks of its node, and of its node's memory --------------------------------

    async def own(self) -> Json:
        while self.frozen:  # noqa: ASYNC110 - the test's thread lets go
            await asyncio.sleep(0.05)
        found: Json = orjson.loads(orjson.dumps(self.scene[0]))
        return found

    def of_role(self, name: str) -> Json:
        found: Json = next(one["memory"] for one in self.scene[0]["roles"] if one["role"] == name)
        return found

    def events(self) -> list[Json]:
        found: list[Json] = self.scene[0]["events"]
        return found

    async def act(self, name: str, of_role: str, asked: Mapping[str, object]) -> tuple[int, Json]:
        self.acted.append((name, of_role, dict(asked)))
        return 200, {"outcome": "sealed", "detail": "The term was sealed.", "token": 42}

    async def other(self, _: web.Request) -> web.Response:
        if self.scene[1] is None:
            return web.Response(status=503)
        return web.Response(body=orjson.dumps(self.scene[1]), content_type="application/json")


@contextmanager
def on_stage() -> Iterator[Stage]:
    """A console on loopback, in a thread of its own."""
    stage, ready, end = Stage(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(stage, ready, end)))
    thread.start()
    try:
        assert ready.wait(10)
        yield stage
    finally:
        stage.frozen = False
        end.set()
        thread.join(10)


async def _serve(stage: Stage, ready: threading.Event, end: threading.Event) -> None:
    peer, peer_url = await _listen([web.get("/-/console/state", stage.other)])
    console = stage.console = Console(
        stage.own,
        stage,  # type: ignore[arg-type]
        may_act=lambda token: token == ACT,
        act=stage.act,
        here=lambda: stage.url,
        peers=[peer_url],
    )
    pages = [web.get(path, handler) for path, handler in console.pages]
    shower, stage.url = await _listen([*pages, *(web.post(path, handler) for path, handler in console.forms)])
    ready.set()
    while not end.is_set():  # noqa: ASYNC110 - the test's thread sets it
        await asyncio.sleep(0.05)
    await console.close()
    for runner in (shower, peer):
        await runner.cleanup()


async def _listen(routes: Sequence[web.RouteDef]) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"
