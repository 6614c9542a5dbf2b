"""The console's pages on the admin listener, and the picture behind them: this node's word and its peers'.

Everything is asked at most once a second, however many people look on, and not at all while nobody does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, Final

import aiohttp
import orjson
from aiohttp import web

from fencegate.console.memory import Memory
from fencegate.console.picture import Picture, Seen, picture_of, roles_of
from fencegate.console.render import SENDER, Sections, page, sections_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Json = dict[str, Any]

PERIOD: Final = 1.0
_PEER_LIMIT: Final = 2.0
_MOST_VIEWERS: Final = 32
_LARGEST_WORD: Final = 4 * 1024 * 1024
_MOST_ROLES: Final = 50
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Console:
    """``own`` gives this node's document of ``/-/roles``; ``peers`` are the URLs of the other nodes' admin listeners.

    ``peer_token`` is the bearer token for reading there, ``None`` for none. :meth:`close` ends every viewer.
    """

    def __init__(
        self,
        own: Callable[[], Awaitable[Json]],
        memory: Memory,
        *,
        peers: Sequence[str] = (),
        peer_token: str | None = None,
    ) -> None:
        self._own = own
        self._memory = memory
        self._peers = [peer.rstrip("/") for peer in peers]
        self._peer_token = peer_token
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._shown: tuple[Sections, str] = ({}, "")
        self._viewers = 0
        self._ending = asyncio.Event()

    @property
    def pages(self) -> list[tuple[str, Handler]]:
        """Paths and their handlers; each is to be guarded like any page that tells of the roles."""
        return [
            ("/-/console", self._page),
            ("/-/console/live", self._live),
            ("/-/console/state", self._state),
            ("/-/console/console.js", _static("console.js", "text/javascript")),
            ("/-/console/console.css", _static("console.css", "text/css")),
        ]

    async def close(self) -> None:
        self._ending.set()
        if self._session is not None:
            await self._session.close()

    # -- pages --------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        sections, title = await self._look()
        return web.Response(text=page(sections, list(sections), title), content_type="text/html", headers=_HEADERS)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=orjson.dumps(await self._word()),
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= _MOST_VIEWERS:
            raise web.HTTPServiceUnavailable(text="Too many look on already.")
        self._viewers += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(request)
            while not self._ending.is_set():
                sections, title = await self._look()
                told = orjson.dumps({"sections": sections, "order": list(sections), "title": title})
                await response.write(b"data: " + told + b"\n\n")
                try:
                    async with asyncio.timeout(PERIOD):
                        await self._ending.wait()
                except TimeoutError:
                    continue
        except ConnectionError:
            pass
        finally:
            self._viewers -= 1
        return response

    # -- looking ------------------------------------------------------------------------------------

    async def _word(self) -> Json:
        """This node's document, with what it remembers."""
        document = await self._own()
        for role in document["roles"]:
            role["memory"] = self._memory.of_role(role["role"])
        return {**document, "events": self._memory.events()}

    async def _look(self) -> tuple[Sections, str]:
        """The page's sections and its title, made once a period however many look on."""
        async with self._lock:
            if time.monotonic() - self._looked_at >= PERIOD * 0.9:
                asked = time.monotonic()
                own, others = await asyncio.gather(self._word(), self._ask_all())
                self._shown = _rendered([Seen(own["node"], time.monotonic() - asked, own), *others])
                self._looked_at = time.monotonic()
            return self._shown

    async def _ask_all(self) -> list[Seen]:
        return await asyncio.gather(*(self._ask(peer) for peer in self._peers))

    async def _ask(self, peer: str) -> Seen:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PEER_LIMIT))
        headers = {"Authorization": f"Bearer {self._peer_token}"} if self._peer_token else {}
        asked = time.monotonic()
        try:
            async with self._session.get(f"{peer}/-/console/state", headers=headers, allow_redirects=False) as answer:
                raw = await answer.content.read(_LARGEST_WORD)
                if answer.status != 200:
                    return Seen(peer, 0.0, None, f"answers {answer.status}")
        except TimeoutError:
            return Seen(peer, 0.0, None, f"no answer within {_PEER_LIMIT:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Seen(peer, 0.0, None, f"no answer: {getattr(error, 'strerror', None) or type(error).__name__}")
        try:
            return Seen(peer, time.monotonic() - asked, checked(orjson.loads(raw)))
        except (ValueError, KeyError, TypeError) as error:
            return Seen(peer, 0.0, None, f"no word that can be read: {error}")


def checked(document: Any) -> Json:
    """``document`` where it has what a picture is made of. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    word: Json = {**document}
    one = Seen("", 0.0, word)
    for role in roles_of([one]):
        picture_of(role, [one])
    for sender in word["stale_senders"]:
        _ = (float(sender["last_age_s"]), *(sender[name] for name in SENDER))
    for event in word["events"]:
        _ = (float(event["age"]), event["alarming"], event["text"])
    _ = (word["node"], word["region"], word["store"]["up"], word["store"]["reason"])
    return word


def _rendered(seen: Sequence[Seen]) -> tuple[Sections, str]:
    pictures = [picture_of(role, seen) for role in roles_of(seen)[:_MOST_ROLES]]
    events = [
        {**event, "node": one.document["node"]} for one in seen if one.document for event in one.document["events"]
    ]
    events.sort(key=lambda event: float(event["age"]))
    senders = [
        {**one, "node": word.document["node"]}
        for word in seen
        if word.document
        for one in word.document["stale_senders"]
    ]
    senders.sort(key=lambda one: float(one["last_age_s"]))
    return sections_of(pictures, seen[0].place, events[:40], senders[:40]), _title(pictures)


def _title(pictures: Sequence[Picture]) -> str:
    return pictures[0].verdict.split(",")[0] if len(pictures) == 1 else f"fencegate: {len(pictures)} roles"


def _static(name: str, content_type: str) -> Handler:
    body = files("fencegate.console").joinpath("static", name).read_bytes()

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return serve
