"""A TCP proxy on loopback that misbehaves on command, for what stands between two parts of a deployment.

What real networks do and a killed process does not show: packets that vanish without a reset, answers that come late or
by half, connections cut in the middle of a commit. A change takes hold of living connections too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol, Self

_CHUNK: Final = 64 * 1024
_LATE: Final = 0.4
_BY_HALF: Final = 64
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Trouble(StrEnum):
    """What the proxy does to the bytes that pass."""

    NONE = "none"
    SILENCE = "silence"
    """Nothing passes either way, and nobody is told: new connections are taken and lead nowhere."""
    DEAF = "deaf"
    """Requests pass, answers do not: what was asked is done, and nobody hears of it."""
    LATE = "late"
    """Every piece waits for 0.4 s."""
    RESET = "reset"
    """Connections are reset, new ones at once."""
    HALF = "half"
    """64 more bytes of answers pass on each connection; then it is reset."""


class Dropped(Exception):
    """Raised by a :class:`Tap`: this piece goes no further, and its connection is reset on both sides."""


class Tap(Protocol):
    """Sees every piece of one connection just before it is passed on. Either call may raise :class:`Dropped`."""

    def asked(self, piece: bytes) -> None: ...

    def answered(self, piece: bytes) -> None: ...


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to ``target`` (host, port); see :attr:`port`.

    ``tap`` makes one for each connection.
    """

    def __init__(self, target: tuple[str, int], tap: Callable[[], Tap] | None = None) -> None:
        self._target = target
        self._tap = tap
        self._trouble = Trouble.NONE
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "start it first"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def trouble(self) -> Trouble:
        return self._trouble

    @trouble.setter
    def trouble(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._changed.set()
        self._changed = asyncio.Event()
        for pair in list(self._pairs):
            pair.told(trouble)

    @property
    def target(self) -> tuple[str, int]:
        return self._target

    @target.setter
    def target(self, target: tuple[str, int]) -> None:
        """Where new connections lead from now on; those to the old one are reset."""
        self._target = target
        for pair in list(self._pairs):
            pair.reset()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None:
            self._server.close()
        for pair in list(self._pairs):
            pair.reset()
        await asyncio.gather(*(pair.ended for pair in list(self._pairs)), return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def passes(self, answers: bool) -> None:
        """Returns when bytes of this direction may pass, at once while all is well."""
        if self._trouble is Trouble.LATE:
            await asyncio.sleep(_LATE)
        while self._trouble is Trouble.SILENCE or (answers and self._trouble is Trouble.DEAF):
            await self._changed.wait()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = _Pair(self, writer, self._tap() if self._tap is not None else None)
        self._pairs.add(pair)
        try:
            if self._trouble is Trouble.RESET:
                return
            await self.passes(answers=False)
            await pair.run(reader, self._target)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            pair.reset()
            self._pairs.discard(pair)


class _Pair:
    """One connection and the one behind it."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter, tap: Tap | None) -> None:
        self._proxy = proxy
        self._tap = tap
        self._writers = [client]
        self._left: int | None = None
        task = asyncio.current_task()
        assert task is not None
        self.ended = task

    def told(self, trouble: Trouble) -> None:
        self._left = _BY_HALF if trouble is Trouble.HALF else None
        if trouble is Trouble.RESET:
            self.reset()

    def reset(self) -> None:
        for writer in self._writers:
            with suppress(OSError, ValueError):  # closed already
                found = writer.get_extra_info("socket")
                if found is not None:
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        if not self.ended.done() and self.ended is not asyncio.current_task():
            self.ended.cancel()

    async def run(self, client: asyncio.StreamReader, target: tuple[str, int]) -> None:
        server, writer = await asyncio.open_connection(*target)
        self._writers.append(writer)
        self.told(self._proxy.trouble)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pump(client, writer, answers=False))
            group.create_task(self._pump(server, self._writers[0], answers=True))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(ConnectionError):
            while chunk := await source.read(_CHUNK):
                await self._proxy.passes(answers)
                if self._tap is not None:
                    try:
                        self._tap.answered(chunk) if answers else self._tap.asked(chunk)
                    except Dropped:
                        self.reset()
                        return
                if answers and self._left is not None:
                    chunk = chunk[: self._left]
                    self._left -= len(chunk)
                if sink.is_closing():
                    break
                sink.write(chunk)
                await sink.drain()
                if self._left == 0:
                    break
        # An end is passed on like anything else: not while nothing passes.
        await self._proxy.passes(answers)
        self.reset() if self._left == 0 else sink.close()
