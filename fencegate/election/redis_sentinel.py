"""Follows the primary that Redis Sentinel has chosen. How sentinels lie: see DESIGN.md beside this file.

Every sentinel is asked at every read: the term is what a majority says (``sentinel_opinions.py``). The token is
the config-epoch plus one. The address of the primary is its name to us; nothing is ever sent there.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencegate.access.refusals import advice
from fencegate.election.followed_cluster import FollowedCluster
from fencegate.election.masking import masked
from fencegate.election.sentinel_bounds import Bounds
from fencegate.election.sentinel_opinions import NoOpinion, Opinion, agreed, majority, opinion_of
from fencegate.election.strange_answers import reading
from fencegate.lease import ElectionUnavailable, LeaseTimings, Term

try:
    from redis.asyncio import Redis, SSLConnection
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
except ImportError as error:
    raise ImportError("following Redis Sentinel needs redis-py: pip install 'fencegate[redis]'") from error

_PATIENCE: Final = 0.25
"""Seconds for which a sentinel may still say that it knows better than those that agree."""


@dataclass(frozen=True, slots=True)
class SentinelAccess:
    """How sentinels are spoken to: under TLS where there is a context for it."""

    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None


class RedisSentinelSource(FollowedCluster):
    """The primary called ``cluster`` at the sentinels ``endpoints``, each a ``host:port``: name *all* of them.

    Raises ``ValueError`` for a bad endpoint.
    """

    name = "redis-sentinel"

    def __init__(
        self, endpoints: list[str], cluster: str, timings: LeaseTimings, access: SentinelAccess | None = None
    ) -> None:
        super().__init__(timings)
        if not endpoints:
            raise ValueError("election endpoints: name every sentinel, such as sentinel-1:26379")
        self._cluster = cluster
        self._bounds = {endpoint: Bounds() for endpoint in endpoints}
        access = access or SentinelAccess()
        self._password = access.password
        self._sentinels = {endpoint: _client(endpoint, access, self._bounds[endpoint]) for endpoint in endpoints}

    async def leader(self, limit: float) -> Term | None:
        """``None`` where the sentinels that answered do not agree.

        Raises :class:`~fencegate.lease.ElectionUnavailable` where too few answered for anything to be agreed on.
        """
        answers = await self._ask_all(limit)
        opinions = [answer for answer in answers if isinstance(answer, Opinion)]
        needed = majority(opinions, len(self._sentinels))
        if len(opinions) < needed:
            silent = "; ".join(answer for answer in answers if isinstance(answer, str))
            found = f"{len(opinions)} of {len(self._sentinels)} sentinels answered, {needed} must agree"
            raise ElectionUnavailable(f"redis-sentinel: {found}. {silent}".rstrip(), "quorum")
        found_term = agreed(opinions, len(self._sentinels))
        return self.term(found_term.token, found_term.address) if found_term else None

    async def hints(self) -> AsyncIterator[None]:
        """``+switch-master`` of the first sentinel that lets us listen. It carries no epoch: it is only a hint."""
        for client in self._sentinels.values():
            channel = client.pubsub(ignore_subscribe_messages=True)
            try:
                await channel.subscribe("+switch-master")
                while True:
                    message = await channel.get_message(timeout=60)
                    if message and str(message.get("data", "")).split(" ")[0] == self._cluster:
                        yield
            except (RedisError, OSError):
                continue
            finally:
                await channel.aclose()  # type: ignore[no-untyped-call]

    async def hang_up(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self._sentinels.values()))

    async def _ask_all(self, limit: float) -> list[Opinion | str]:
        """Every sentinel's answer; once enough of them agree, one that is late is waited for a moment only."""
        tasks = [asyncio.create_task(self._ask(endpoint, limit)) for endpoint in self._sentinels]
        waiting = set(tasks)
        answers: list[Opinion | str] = []
        try:
            while waiting:
                opinions = [answer for answer in answers if isinstance(answer, Opinion)]
                patience = _PATIENCE if agreed(opinions, len(tasks)) else None
                done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                answers += [task.result() for task in done]
            return answers
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask(self, endpoint: str, limit: float) -> Opinion | str:
        """One sentinel's opinion, or why there is none."""
        client: Any = self._sentinels[endpoint]
        self._bounds[endpoint].renew()
        try:
            async with asyncio.timeout(limit):
                with reading(self.name):
                    return opinion_of(await client.execute_command("SENTINEL", "MASTER", self._cluster))
        except TimeoutError:
            return f"{endpoint}: no answer within {limit:.2g} s"
        except ElectionUnavailable as error:  # what follows on this connection is no answer to the next question
            await client.connection_pool.disconnect()
            return f"{endpoint}: {masked(str(error), [self._password])}"
        except (RedisError, OSError, NoOpinion) as error:
            return f"{endpoint}: {masked(advice(error), [self._password])}"


class _SecureConnection(SSLConnection):
    """With a context of ours: redis-py makes its own of files that it reads once."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls}


def _client(endpoint: str, access: SentinelAccess, bounds: Bounds) -> Redis:
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ValueError(f"election endpoints: {endpoint!r} must be host:port, such as sentinel-1:26379")
    client = Redis(
        host=host.strip("[]"),
        port=int(port),
        username=access.username,
        password=access.password,
        ssl=access.tls is not None,
        protocol=2,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),  # the next look is the retry
        socket_timeout=None,
        socket_connect_timeout=None,
        redis_connect_func=bounds.connect,
    )
    if access.tls is not None:
        client.connection_pool.connection_class = _SecureConnection
        client.connection_pool.connection_kwargs["tls"] = access.tls
    return client
