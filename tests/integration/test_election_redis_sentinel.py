"""Following Redis Sentinel: real failovers, and sentinels that do not agree."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fencegate.election.redis_sentinel import RedisSentinelSource, SentinelAccess
from fencegate.embedded.process import clean_environment, free_port, spawn
from fencegate.lease import ElectionUnavailable, LeaseTimings
from fencegate.testing.redis_sentinels import CLUSTER, RedisSentinels, program
from fencegate.testing.tcp_server import TcpServer

TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)
LIMIT = 10.0


async def token_of(source: RedisSentinelSource) -> tuple[int, str]:
    term = await source.read("ledger", LIMIT)
    assert term is not None
    return term.token, term.node


async def test_kill_9_of_the_primary_makes_the_token_grow(redis_sentinels: RedisSentinels) -> None:
    source = RedisSentinelSource(redis_sentinels.endpoints, CLUSTER, TIMINGS)
    await redis_sentinels.until_whole()
    before, primary = await token_of(source), redis_sentinels.primary()

    redis_sentinels.kill(primary)
    await redis_sentinels.until_primary_is_not(primary)

    after = await token_of(source)
    assert after[0] > before[0]
    assert after[1] != before[1]
    await redis_sentinels.revive(primary)
    assert await token_of(source) == after, "the old primary is a replica now"
    await source.close()


async def test_one_frozen_sentinel_of_three_costs_a_moment(redis_sentinels: RedisSentinels) -> None:
    await redis_sentinels.until_whole()
    source = RedisSentinelSource(redis_sentinels.endpoints, CLUSTER, TIMINGS)
    before = await token_of(source)
    frozen = redis_sentinels.sentinels[2]
    redis_sentinels.signal(frozen, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert await token_of(source) == before
        assert time.monotonic() - began < LIMIT / 2  # not the whole time limit of a read
    finally:
        redis_sentinels.signal(frozen, signal.SIGCONT)
    await source.close()


async def test_a_primary_that_no_sentinel_knows_is_told(redis_sentinels: RedisSentinels) -> None:
    source = RedisSentinelSource(redis_sentinels.endpoints, "another", TIMINGS)
    with pytest.raises(ElectionUnavailable, match=r"0 of 3 sentinels answered, 2 must agree.*No such master"):
        await source.read("ledger", LIMIT)
    await source.close()


async def test_a_sentinel_with_a_password_is_asked_with_it(tmp_path: Path) -> None:
    if shutil.which("redis-sentinel") is None:
        pytest.skip("no redis-sentinel: install the package of that name")
    port = free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\nrequirepass secret\nsentinel monitor {CLUSTER} 127.0.0.1 1 1\n")
    sentinel = spawn(
        [program("redis-sentinel"), str(config)],
        log=tmp_path / "log",
        death_signal=signal.SIGKILL,
        environment=clean_environment(),
    )
    knowing = RedisSentinelSource([f"127.0.0.1:{port}"], CLUSTER, TIMINGS, SentinelAccess(password="secret"))
    unknowing = RedisSentinelSource([f"127.0.0.1:{port}"], CLUSTER, TIMINGS)
    try:
        async with asyncio.timeout(10):
            found = None
            while found is None:
                with contextlib.suppress(ElectionUnavailable):
                    found = await knowing.read("ledger", LIMIT)
                await asyncio.sleep(0.05)
        assert (found.token, found.node) == (1, "127.0.0.1:1")
        with pytest.raises(ElectionUnavailable, match=r"(?i)auth"):
            await unknowing.read("ledger", LIMIT)
    finally:
        sentinel.kill()
        sentinel.wait()
        await knowing.close()
        await unknowing.close()


# -- sentinels that say what a test wants ----------------------------------------------------------------


class Sentinels:
    """Three that each answer SENTINEL MASTER with an address, a config-epoch and a number of other sentinels."""

    def __init__(self) -> None:
        self.minds = [("10.0.0.1", 4, 2)] * 3
        self.servers: list[TcpServer] = []

    async def start(self) -> None:
        for number in range(3):
            self.servers.append(TcpServer(lambda reader, writer, number=number: self._serve(number, reader, writer)))
            await self.servers[-1].start()

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip().upper())
            answer = "+OK\r\n"
            if words[:2] == [b"SENTINEL", b"MASTER"]:
                host, epoch, others = self.minds[number]
                fields = ["ip", host, "port", "6379", "config-epoch", str(epoch), "num-other-sentinels", str(others)]
                answer = f"*{len(fields)}\r\n" + "".join(f"${len(each)}\r\n{each}\r\n" for each in fields)
            writer.write(answer.encode())


@pytest_asyncio.fixture
async def sentinels() -> AsyncIterator[Sentinels]:
    sentinels = Sentinels()
    await sentinels.start()
    yield sentinels
    for server in sentinels.servers:
        await server.close()


async def test_a_split_of_opinions_is_nobody_until_they_agree(sentinels: Sentinels) -> None:
    source = RedisSentinelSource([server.address for server in sentinels.servers], CLUSTER, TIMINGS)
    assert await token_of(source) == (5, "10.0.0.1:6379")

    for minds in (
        [("10.0.0.1", 4, 2), ("10.0.0.1", 4, 2), ("10.0.0.2", 5, 2)],  # the newest is known to one only
        [("10.0.0.1", 4, 2), ("10.0.0.1", 4, 2), ("10.0.0.2", 4, 2)],  # two primaries under one number
        [("10.0.0.1", 4, 2), ("10.0.0.2", 5, 2), ("10.0.0.3", 6, 2)],
    ):
        sentinels.minds = minds
        assert await source.read("ledger", LIMIT) is None

    sentinels.minds = [("10.0.0.1", 4, 2), ("10.0.0.2", 5, 2), ("10.0.0.2", 5, 2)]
    assert await token_of(source) == (6, "10.0.0.2:6379")
    await source.close()


async def test_three_of_five_that_exist_are_needed_where_only_three_are_configured(sentinels: Sentinels) -> None:
    sentinels.minds = [("10.0.0.1", 4, 4)] * 3
    source = RedisSentinelSource([server.address for server in sentinels.servers], CLUSTER, TIMINGS)
    assert await token_of(source) == (5, "10.0.0.1:6379")
    await sentinels.servers[0].close()
    with pytest.raises(ElectionUnavailable, match="2 of 3 sentinels answered, 3 must agree"):
        await source.read("ledger", LIMIT)
    await source.close()


@pytest.mark.parametrize("endpoint", ["s-1", "redis://s-1:26379", "s:x"])
def test_a_bad_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        RedisSentinelSource([endpoint], CLUSTER, TIMINGS)
