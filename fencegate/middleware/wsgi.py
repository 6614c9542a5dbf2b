"""The check before a WSGI application: Flask, Django, Pyramid and their like, threaded or not."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from fencegate.middleware.gatekeeper import EXPOSED_AS, MOST_BODY, Arrival, Examined, Gatekeeper, asking
from fencegate.middleware.refusals import Refused, answer

Told = TypeVar("Told")
Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


class Fenced:
    """A WSGI application that is reached by what ``gatekeeper`` takes, and by nothing else.

    The application finds what was verified of a write in ``environ["fencegate"]``, a
    :class:`fencegate.middleware.Fencing`. The gatekeeper's fence and its memory of used proofs have to answer at once,
    without being awaited.
    """

    def __init__(self, app: Application, gatekeeper: Gatekeeper) -> None:
        self._app = app
        self._gatekeeper = gatekeeper

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            examined = self._gatekeeper.examine(_arrival(environ))
            if examined is not None:
                environ = self._settled(examined, environ)
        except Refused as error:
            said = answer(error.refusal)
            start_response(f"{said.status} {HTTPStatus(said.status).phrase}", list(said.headers))
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [said.body]
        return self._app(environ, start_response)

    def _settled(self, examined: Examined, environ: Environ) -> Environ:
        """Every check that is left; the application's environment. Raises :class:`Refused`."""
        gatekeeper, fencing = self._gatekeeper, examined.fencing
        changed: Environ = {EXPOSED_AS: fencing}
        body = b""
        if examined.covers_body:
            body = _body(environ)
            changed["wsgi.input"] = io.BytesIO(body)
            changed["CONTENT_LENGTH"] = str(len(body))
        gatekeeper.compare(examined, body)
        with asking("The memory of used proofs", fencing):
            first = _at_once(gatekeeper.ask_memory(examined), "memory of used proofs")
        gatekeeper.judge_use(fencing, first)
        with asking("The fence", fencing):
            highest = _at_once(gatekeeper.ask_fence(fencing), "fence")
        gatekeeper.judge(fencing, highest)
        environ.update(changed)
        return environ


def _at_once(told: Told | Awaitable[Told], whose: str) -> Told:
    if isinstance(told, Awaitable):
        if isinstance(told, Coroutine):
            told.close()  # It was never begun.
        raise TypeError(f"a WSGI application's {whose} answers at once; one that is awaited is for ASGI")
    return told


def _arrival(environ: Environ) -> Arrival:
    def values(name: str) -> list[bytes]:
        value = environ.get(f"HTTP_{name.upper().replace('-', '_')}")
        return [] if value is None else [value.encode("latin-1")]

    routed = environ.get("PATH_INFO", "").encode("latin-1")
    path = environ.get("SCRIPT_NAME", "").encode("latin-1") + routed
    query = environ.get("QUERY_STRING", "").encode("latin-1")
    return Arrival(environ["REQUEST_METHOD"], path, routed, query, values)


def _body(environ: Environ) -> bytes:
    """The body, as far as a proof may cover one. Without a length there is one only where the server ends it."""
    stream = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isascii() and length.isdigit():
        left = min(int(length), MOST_BODY + 1)
    elif environ.get("wsgi.input_terminated"):
        left = MOST_BODY + 1
    else:
        return b""
    parts: list[bytes] = []
    while left:
        part = stream.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
