"""What a ZooKeeper member says of its own timings, by its command ``conf``: for ``fencegate doctor``."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Final

from fencegate.access.refusals import advice
from fencegate.errors import Unavailable

_MOST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class EnsembleTimings:
    """All in seconds. ``silence``: how long a follower bears a leader that says nothing; ``None`` for a single server.

    Sessions last ``shortest`` to ``longest``, whatever is asked for. ``why``: what was said instead of all this.
    """

    silence: float | None = None
    shortest: float = 0.0
    longest: float = 0.0
    why: str = ""


async def timings_of(host: str, tls: ssl.SSLContext | None, limit: float) -> EnsembleTimings:
    """What the member at ``host`` (``host:port``) says within ``limit`` s. Raises :class:`Unavailable`."""
    name, _, port = host.rpartition(":")
    try:
        async with asyncio.timeout(limit):
            reader, writer = await asyncio.open_connection(name.strip("[]"), int(port), ssl=tls)
            try:
                writer.write(b"conf")
                text = await reader.read(_MOST)
                while len(text) < _MOST and (more := await reader.read(_MOST)):
                    text += more
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise Unavailable(f"{host}: no answer within {limit:.3g} s") from None
    except OSError as error:
        raise Unavailable(f"{host}: {advice(error)}") from error
    return read(text.decode("utf-8", "replace"))


def read(text: str) -> EnsembleTimings:
    """The lines ``name=milliseconds`` of an answer to ``conf``."""
    told = {name: int(value) for name, _, value in (line.partition("=") for line in text.split()) if value.isdecimal()}
    if not {"tickTime", "minSessionTimeout", "maxSessionTimeout"} <= told.keys():
        return EnsembleTimings(
            why="conf is not in 4lw.commands.whitelist" if "whitelist" in text else "no such command"
        )
    silence = told["syncLimit"] * told["tickTime"] / 1000 if told.get("syncLimit") else None
    return EnsembleTimings(silence, told["minSessionTimeout"] / 1000, told["maxSessionTimeout"] / 1000)
