"""The check before an ASGI application: FastAPI, Starlette, Django, Quart and their like."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fencegate.middleware.gatekeeper import EXPOSED_AS, MOST_BODY, Arrival, Examined, Gatekeeper, asking
from fencegate.middleware.refusals import Refused, answer, refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY: Final = 1008


class Fenced:
    """An ASGI application that is reached by what ``gatekeeper`` takes, and by nothing else.

    The application finds what was verified of a write in ``scope["fencegate"]``, a
    :class:`fencegate.middleware.Fencing`. WebSockets are refused but on open paths: no gateway forwards one, and
    writes can travel in it.
    """

    def __init__(self, app: Application, gatekeeper: Gatekeeper) -> None:
        self._app = app
        self._gatekeeper = gatekeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._gatekeeper.is_open(_routed(scope)):
            await receive()
            await send({"type": "websocket.close", "code": _POLICY, "reason": "upgrade_refused"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            examined = self._gatekeeper.examine(_arrival(scope))
            if examined is not None:
                receive = await self._settled(examined, receive)
                scope = {**scope, EXPOSED_AS: examined.fencing}
        except Refused as error:
            await _refuse(scope, send, error)
            return
        await self._app(scope, receive, send)

    async def _settled(self, examined: Examined, receive: Receive) -> Receive:
        """Every check that is left; the application's ``receive`` from here on. Raises :class:`Refused`."""
        gatekeeper, fencing = self._gatekeeper, examined.fencing
        body = b""
        if examined.covers_body:
            body = await _body(receive)
        gatekeeper.compare(examined, body)
        with asking("The memory of used proofs", fencing):
            first = gatekeeper.ask_memory(examined)
            first = first if isinstance(first, bool) else await first
        gatekeeper.judge_use(fencing, first)
        with asking("The fence", fencing):
            highest = gatekeeper.ask_fence(fencing)
            highest = await highest if inspect.isawaitable(highest) else highest
        gatekeeper.judge(fencing, highest)
        return _again(body, receive) if examined.covers_body else receive


def _path(scope: Scope) -> bytes:
    return str(scope["path"]).encode("utf-8", "surrogateescape")


def _routed(scope: Scope) -> bytes:
    root, path = str(scope.get("root_path", "")).encode("utf-8", "surrogateescape"), _path(scope)
    return path[len(root) :] if root and path.startswith(root + b"/") else path


def _arrival(scope: Scope) -> Arrival:
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])

    def values(name: str) -> list[bytes]:
        wanted = name.lower().encode()
        return [value for each, value in headers if each.lower() == wanted]

    return Arrival(scope["method"], _path(scope), _routed(scope), scope.get("query_string") or b"", values)


async def _body(receive: Receive) -> bytes:
    """The body, as far as a proof may cover one. Raises :class:`Refused` where it breaks off."""
    parts: list[bytes] = []
    size = 0
    while size <= MOST_BODY:
        message = await receive()
        if message["type"] != "http.request":
            raise refused("request_malformed", "The body broke off.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False):
            break
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives out the body that was read, and then what comes."""
    given = False

    async def next_message() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


async def _refuse(scope: Scope, send: Send, error: Refused) -> None:
    said = answer(error.refusal)
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in said.headers]
    await send({"type": "http.response.start", "status": said.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else said.body})
