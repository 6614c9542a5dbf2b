"""The console's pages on the admin listener, and the picture behind them: this node's word and its peers'.

Everything is asked at most once a second, however many people look on, and not at all while nobody does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp import web

from fencegate.console import forms
from fencegate.console.memory import Memory
from fencegate.console.picture import Picture, Seen, pictures_of
from fencegate.console.rehearsal import SHORTEST, Rehearsals
from fencegate.console.rehearsal_page import rehearsal_page
from fencegate.console.render import Shown, Wanted, page, shown_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Json = dict[str, Any]
Act = Callable[[str, str, Mapping[str, object]], Awaitable[tuple[int, Mapping[str, Any]]]]
"""Carries out an action, by name, on a role, with what was asked: the status, and the document."""

PERIOD: Final = 1.0
_PEER_LIMIT: Final = 2.0
_MOST_VIEWERS: Final = 32
_LARGEST_WORD: Final = 16 * 1024 * 1024
_MOST_LISTED: Final = 40
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_REPORTS_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
"""A report brings its style along and needs nothing else."""
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at a time of day: every word, and a picture of each role."""

    seen: Sequence[Seen]
    pictures: Sequence[Picture]
    at: str


class Console:
    """``own`` gives this node's document of ``/-/roles``; ``peers`` are the URLs of the other nodes' admin listeners.

    ``peer_token`` is the bearer token for reading there, ``None`` for none. ``may_act`` tells whether a typed token is
    the one for actions, and ``act`` carries them out. ``here`` is the URL of this node's own admin listener, as a
    program on this machine comes to it. :meth:`close` ends every viewer, and a game day that was started here.
    """

    def __init__(
        self,
        own: Callable[[], Awaitable[Json]],
        memory: Memory,
        *,
        may_act: Callable[[str], bool],
        act: Act,
        here: Callable[[], str],
        peers: Sequence[str] = (),
        peer_token: str | None = None,
        rehearsals: Rehearsals | None = None,
    ) -> None:
        self._own = own
        self._memory = memory
        self._may_act = may_act
        self._act = act
        self._here = here
        self._rehearsals = rehearsals or Rehearsals()
        self._peers = [peer.rstrip("/") for peer in peers]
        self._peer_token = peer_token
        self._known: dict[str, tuple[str, float]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._look = _Look((), (), "")
        self._viewers = 0
        self._ending = asyncio.Event()

    @property
    def pages(self) -> list[tuple[str, Handler]]:
        """Paths and their handlers; each is to be guarded like any page that tells of the roles."""
        return [
            ("/-/console", self._page),
            (forms.PATH, self._actions),
            (forms.GAMEDAY, self._gameday),
            (forms.REPORT, self._report),
            ("/-/console/live", self._live),
            ("/-/console/state", self._state),
            ("/-/console/console.js", _static("console.js", "text/javascript")),
            ("/-/console/console.css", _static("console.css", "text/css")),
        ]

    @property
    def forms(self) -> list[tuple[str, Handler]]:
        """The same for what is posted; each looks for the token for actions itself."""
        return [(forms.PATH, self._asked_to_act)]

    async def close(self) -> None:
        self._ending.set()
        await self._rehearsals.close()
        if self._session is not None:
            await self._session.close()

    # -- pages --------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        wanted = _wanted(request)
        return _html(page(await self._shown(wanted), wanted))

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
        wanted = _wanted(request)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
            await response.prepare(request)
            while not self._ending.is_set():
                shown = await self._shown(wanted)
                told = orjson.dumps({"parts": shown.parts, "title": shown.title, "spoken": shown.spoken})
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

    # -- actions ------------------------------------------------------------------------------------

    async def _actions(self, request: web.Request) -> web.StreamResponse:
        look = await self._looked()
        role = request.query.get("role", "")
        picture = next((one for one in look.pictures if one.role == role), None)
        if picture is None:
            return _html(forms.result_page(role, "action", 404, {"detail": "No role of this name is seen here."}), 404)
        here = f"{request.scheme}://{request.host}"
        return _html(forms.page(picture, look.at, here, rehearsing=self._rehearses(role)))

    async def _asked_to_act(self, request: web.Request) -> web.StreamResponse:
        """A form that was sent. Its token is typed for this one action: no cookie acts, and no other site's page."""
        given = {name: str(value) for name, value in (await request.post()).items()}
        role, action = given.get("role", ""), given.get("action", "action")
        status, found = await self._acted(request, role, action, given)
        if action == "gameday" and status == 202:
            raise web.HTTPSeeOther(forms.GAMEDAY, headers=_HEADERS)
        return _html(forms.result_page(role, action, status, found), status)

    async def _acted(
        self, request: web.Request, role: str, action: str, given: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        if not _comes_from_here(request):
            return 403, {"detail": "This form was not sent by a page of this console: nothing was done."}
        if not self._may_act(given.get("secret", "")):
            return 403, {"detail": "That is not the token for actions (admin.token_file): nothing was done."}
        expected = forms.confirmation(action, role, given.get("term", ""))
        if given.get("typed", "").strip() != expected:
            return 400, {"detail": f"To confirm, {expected} has to be typed: nothing was done."}
        try:
            asked = _asked(action, given)
        except ValueError:
            return 400, {"detail": "A number was expected for the time limit and the term: nothing was done."}
        if action == "gameday":
            return await self._rehearse(role, given, float(str(asked.get("limit", forms.LONGEST))))
        if action == "break-off":
            return self._break_off(role)
        return await self._act(action, role, asked)

    # -- game days ----------------------------------------------------------------------------------

    async def _gameday(self, request: web.Request) -> web.StreamResponse:
        return _html(rehearsal_page(self._rehearsals.latest, time.monotonic()))

    async def _report(self, request: web.Request) -> web.StreamResponse:
        latest = self._rehearsals.latest
        if latest is None or not latest.report:
            raise web.HTTPNotFound(text="No game day has left a report here.")
        headers = {**_HEADERS, "Content-Security-Policy": _REPORTS_POLICY}
        return web.Response(text=latest.report, content_type="text/html", headers=headers)

    def _rehearses(self, role: str) -> bool:
        latest = self._rehearsals.latest
        return latest is not None and latest.role == role and latest.ended is None

    async def _rehearse(self, role: str, given: Mapping[str, str], limit: float) -> tuple[int, Mapping[str, Any]]:
        """Only what the page offers: a role that may be rehearsed on, at the term that was shown, and in time."""
        picture = next((one for one in (await self._looked()).pictures if one.role == role), None)
        if picture is None or not picture.rehearsal:
            return 409, {"detail": "Its route does not say rehearsal = true: nothing was done."}
        if str(picture.own.term) != given.get("term"):
            return 409, {"detail": "Its term is another one than was shown: nothing was done."}
        if not SHORTEST <= limit <= forms.LONGEST:
            return 400, {"detail": f"A limit of {SHORTEST} to {forms.LONGEST} seconds was expected: nothing was done."}
        try:
            begun = await self._rehearsals.begin(role, [self._here(), *self._peers], given["secret"], limit)
        except OSError as error:
            return 503, {"detail": f"No process can be started: {error.strerror}. Nothing was done."}
        if not begun:
            return 409, {"detail": "A game day is under way already, and goes on: nothing was done."}
        return 202, {"outcome": "under way"}

    def _break_off(self, role: str) -> tuple[int, Mapping[str, Any]]:
        if not self._rehearses(role) or not self._rehearsals.break_off():
            return 409, {"detail": "No game day that was started here is under way on it: nothing was done."}
        return 202, {"outcome": "breaking off", "detail": "The role is handed back as it was found."}

    # -- looking ------------------------------------------------------------------------------------

    async def _word(self) -> Json:
        """This node's document, with what it remembers."""
        document = await self._own()
        for role in document["roles"]:
            role["memory"] = self._memory.of_role(role["role"])
        return {**document, "events": self._memory.events()}

    async def _shown(self, wanted: Wanted) -> Shown:
        look = await self._looked()
        events = _of_all(look.seen, "events", "age")
        senders = _of_all(look.seen, "stale_senders", "last_age_s")
        if wanted.role:
            senders = [one for one in senders if one["role"] == wanted.role]
        node = look.seen[0].place
        return shown_of(look.pictures, node, look.at, events, senders, wanted)

    async def _looked(self) -> _Look:
        """What is seen now, looked at once a period however many look on."""
        async with self._lock:
            if time.monotonic() - self._looked_at >= PERIOD * 0.9:
                asked = time.monotonic()
                own, others = await asyncio.gather(self._word(), self._ask_all())
                # As old as they are now: a peer that does not answer has held the others' words up too.
                age = time.monotonic() - asked
                seen = [Seen(own["node"], age, own), *(replace(one, age=age * bool(one.document)) for one in others)]
                # In a thread: with hundreds of roles it takes longer than a write may wait.
                pictures = await asyncio.to_thread(pictures_of, seen)
                self._look = _Look(seen, pictures, datetime.now(UTC).strftime("%H:%M:%S UTC"))
                self._looked_at = time.monotonic()
            return self._look

    async def _ask_all(self) -> list[Seen]:
        return await asyncio.gather(*(self._ask(peer) for peer in self._peers))

    async def _ask(self, peer: str) -> Seen:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PEER_LIMIT))
        headers = {"Authorization": f"Bearer {self._peer_token}"} if self._peer_token else {}
        try:
            async with self._session.get(f"{peer}/-/console/state", headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    return self._not_seen(peer, f"answers {response.status}")
                raw = await _whole(response)
        except TimeoutError:
            return self._not_seen(peer, f"no answer within {_PEER_LIMIT:.0f} s")
        except (aiohttp.ClientError, OSError) as error:
            return self._not_seen(peer, f"no answer: {getattr(error, 'strerror', None) or type(error).__name__}")
        try:
            word = await asyncio.to_thread(lambda: checked(orjson.loads(raw)))
        except ValueError as error:
            return self._not_seen(peer, f"no word that can be read: {error}")
        self._known[peer] = f"{word['node']} in {word['region']}", time.monotonic()
        return Seen(peer, 0.0, word, url=peer)

    def _not_seen(self, peer: str, problem: str) -> Seen:
        """Where it has been seen before it is called by its name and region, and for how long it has not been."""
        name, at = self._known.get(peer, ("", 0.0))
        if not name:
            return Seen(peer, 0.0, None, problem, peer)
        return Seen(f"{name} ({peer})", 0.0, None, f"{problem}; last seen {time.monotonic() - at:.0f} s ago", peer)


def checked(document: Any) -> Json:
    """``document`` where a picture can be made of it, alone and among others. Raises ``ValueError``."""
    try:
        word: Json = {**document}
        names = (word["node"], word["region"], *(role["role"] for role in word["roles"]))
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name is text")
        # Each role alone, and once with itself: then it can be drawn among others too.
        one = Seen("", 0.0, word)
        for picture in (*pictures_of([one]), *pictures_of([one, one])):
            shown_of([picture], "", "", ())
        shown_of((), "", "", _of_all([one], "events", "age"), _of_all([one], "stale_senders", "last_age_s"))
    except Exception as error:  # whatever its form makes of the code that draws
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return word


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body, which may come in many pieces. Raises ``ClientError`` for one that is too large."""
    raw = bytearray()
    async for piece in response.content.iter_any():
        raw += piece
        if len(raw) > _LARGEST_WORD:
            raise aiohttp.ClientPayloadError("too large")
    return bytes(raw)


def _of_all(seen: Sequence[Seen], what: str, age: str) -> list[Json]:
    """The latest of what every node tells of, with its node."""
    found = [{**one, "node": word.document["node"]} for word in seen if word.document for one in word.document[what]]
    return sorted(found, key=lambda one: float(one[age]))[:_MOST_LISTED]


def _wanted(request: web.Request) -> Wanted:
    query = request.query
    return Wanted(query.get("role", ""), query.get("filter", ""), bool(query.get("still")))


def _comes_from_here(request: web.Request) -> bool:
    """Whether a browser that says where a form comes from says that it is ours. The typed token is the real guard."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or urlsplit(origin).netloc == request.host


def _asked(action: str, given: Mapping[str, str]) -> dict[str, object]:
    """What the form asks, as the action takes it. Raises ``ValueError``."""
    asked: dict[str, object] = {"token": int(given["term"])} if given.get("term") and action != "resume" else {}
    if "limit" in given:
        asked["limit"] = float(given["limit"])
    if "to" in given:
        asked["to"] = given["to"]
    return asked


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _static(name: str, content_type: str) -> Handler:
    body = files("fencegate.console").joinpath("static", name).read_bytes()

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return serve
