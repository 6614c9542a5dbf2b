"""A small HTTP server on loopback whose faults a test chooses: slow, hanging, refusing, and answers that get lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_READS: Final = ("GET", "HEAD")


class FaultyServer:
    """Subclasses add routes in :meth:`routes`. Start it in the test's own loop, and :meth:`close` it."""

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds before each request is looked at."""
        self.hanging = False
        """Take requests, never answer. Writes are not applied."""
        self.losing = 0
        """Of the next so many writes, apply each and cut the connection instead of answering."""
        self.muffled = 0
        """Of the next so many writes, apply each and never answer."""
        self.refusals: deque[web.Response] = deque()
        """Given instead of the next answers, one each."""
        self.requests: list[tuple[str, str]] = []
        """Method and path with query of every request, in order."""
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._closing = asyncio.Event()

    def routes(self, router: web.UrlDispatcher) -> None:
        raise NotImplementedError

    async def start(self) -> str:
        """Listen on a free port of loopback; returns the origin."""
        application = web.Application(middlewares=[self._faults])
        self.routes(application.router)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self.url

    async def close(self) -> None:
        self._closing.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def pause(self, seconds: float) -> bool:
        """Wait, unless the server closes meanwhile: then True."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    @web.middleware
    async def _faults(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, str(request.rel_url)))
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.hanging:
            await self._closing.wait()
        if self.refusals:
            return self.refusals.popleft()
        answer = await handler(request)
        if self.muffled and request.method not in _READS:
            self.muffled -= 1
            await self._closing.wait()
        if self.losing and request.method not in _READS:
            self.losing -= 1
            if request.transport is not None:
                request.transport.abort()
        return answer
