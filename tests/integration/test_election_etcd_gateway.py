"""Calls to several members of an etcd: which one is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from aiohttp import web

from fencegate.election.etcd_gateway import EtcdGateway
from fencegate.testing.faulty_http import FaultyServer

RANGE = "/v3/kv/range"


class Member(FaultyServer):
    """Answers every call alike."""

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"header": {"revision": "7"}})


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[Member, Member]]:
    first, second = Member(), Member()
    await first.start()
    await second.start()
    yield first, second
    await first.close()
    await second.close()


async def test_calls_that_leave_a_frozen_member_at_once_do_not_send_each_other_back_to_it(
    pair: tuple[Member, Member],
) -> None:
    """Two that fail together are one failure of that member: its successor is asked by both."""
    frozen, healthy = pair
    frozen.hanging = True
    gateway = EtcdGateway([frozen.url, healthy.url])

    answers = await asyncio.gather(*(gateway.call(RANGE, {}, 1.0) for _ in range(4)))

    assert len(answers) == 4
    assert gateway.endpoint == healthy.url
    await gateway.close()
