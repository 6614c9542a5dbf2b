"""Every election source against servers that mean harm: unavailable in its time, and in little memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fencegate.election.etcd import EtcdElection
from fencegate.election.survey import members_of, survey
from fencegate.election.zookeeper import ZookeeperElection
from fencegate.errors import Unavailable
from fencegate.lease import LeadershipSource
from fencegate.testing.hostile_server import (
    NO_ANSWERS,
    HostileServer,
    PeakMemory,
    Say,
    answers,
    goes_on,
    packed_gigabyte,
)
from fencegate.testing.tcp_server import TcpServer

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.elections import CANDIDATE, ROLE, TIMINGS, sources

LIMIT = 0.3
SLACK = 3.0
PATIENCE = 20.0
"""Seconds for an answer that comes."""
ROOM = 48.0
"""MB. What is sent without an end would be a gigabyte and more in the time that each call has."""

HTTP = ["etcd", "kubernetes", "consul", "patroni"]
FLOODS: dict[str, Say] = {name: say for name, say in NO_ANSWERS.items() if "an end" in name or "the end" in name}
FLOODS["a packed gigabyte"] = packed_gigabyte()
RAW_FLOODS = {
    "zeros": goes_on(b"", bytes(65536)),
    "a text of five gigabytes": goes_on(b"$5000000000\r\n"),
    "a list without an end": goes_on(b"*1000000000\r\n", b":1\r\n" * 1000),
    "lists in lists": goes_on(b"", b"*1\r\n" * 1000),
    "a line without an end": goes_on(b"+"),
    "a frame of two gigabytes": goes_on(b"\x7f\xff\xff\xff"),
}


async def refuses(source: LeadershipSource) -> None:
    """A question ends in time as unavailable, and so does the watch."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unavailable):
        await source.read(ROLE, LIMIT)
    assert loop.time() - began < LIMIT + SLACK
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT):
            async for _ in source.changes(ROLE):
                pass


@asynccontextmanager
async def opened(name: str, server: TcpServer) -> AsyncIterator[LeadershipSource]:
    await server.start()
    source = sources(server.address)[name]()
    try:
        yield source
    finally:
        await source.close()
        await asyncio.sleep(0.05)  # what was connected last is taken before the server closes
        await server.close()


@pytest.mark.parametrize("name", HTTP)
async def test_what_is_no_answer_is_unavailable_in_time(name: str) -> None:
    async def one(what: str) -> None:
        async with opened(name, HostileServer(NO_ANSWERS[what])) as source:
            try:
                await refuses(source)
            except BaseException as error:
                error.add_note(what)
                raise

    await asyncio.gather(*(one(what) for what in NO_ANSWERS if what not in FLOODS))


@pytest.mark.parametrize("body", [b"{}", b'{"header":3}', b'{"header":{"revision":"7"},"errors":3,"members":3}'])
async def test_a_doctor_is_told_of_members_that_answer_strangely(body: bytes) -> None:
    async with opened("etcd", HostileServer(answers(body))) as source:
        assert isinstance(source, EtcdElection)
        [member] = await members_of(source, PATIENCE)
        assert "not as etcd answers" in member.why
        with pytest.raises(Unavailable):
            await survey(source, PATIENCE)


async def test_a_doctor_follows_no_redirect() -> None:
    stranger = HostileServer(answers(b"{}"))
    await stranger.start()
    away = answers(b"", 307, b"Location: " + stranger.url.encode() + b"/version")
    turns = iter([answers(b'{"header":{"cluster_id":"1"}}'), away])

    async def in_turn(writer: asyncio.StreamWriter) -> None:
        await next(turns)(writer)

    async with opened("etcd", HostileServer(in_turn)) as source:
        assert [member.cluster for member in await members_of(source, PATIENCE)] == ["1"]
    await stranger.close()
    assert (list(turns), stranger.requests) == ([], [])


@pytest.mark.parametrize("what", FLOODS)
@pytest.mark.parametrize("name", HTTP)
async def test_what_has_no_end_is_unavailable_in_time_and_fills_no_memory(name: str, what: str) -> None:
    async with opened(name, HostileServer(FLOODS[what])) as source, PeakMemory() as memory:
        await refuses(source)
    assert memory.grown < ROOM


@pytest.mark.parametrize("what", RAW_FLOODS)
@pytest.mark.parametrize("name", ["redis-sentinel", "kafka"])
async def test_what_has_no_end_fills_no_memory_over_a_protocol_of_its_own_either(name: str, what: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await RAW_FLOODS[what](writer)

    async with opened(name, TcpServer(serve)) as source, PeakMemory() as memory:
        await refuses(source)
    assert memory.grown < ROOM


@pytest.mark.parametrize("what", ["zeros", "a frame of two gigabytes"])
async def test_a_zookeeper_that_means_harm_is_unavailable_in_time(what: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await RAW_FLOODS[what](writer)

    server = TcpServer(serve)
    await server.start()
    source = ZookeeperElection([server.address], TIMINGS)
    try:
        async with PeakMemory() as memory:
            with pytest.raises(Unavailable):
                await source.read(ROLE, LIMIT)
            with pytest.raises(Unavailable):
                await source.acquire(ROLE, CANDIDATE, LIMIT)
        assert memory.grown < ROOM
    finally:
        await source.close()
        await server.close()
