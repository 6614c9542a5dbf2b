"""The SDK against a gateway that means harm: back in its time, no word to others, nothing forged believed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencegate.client import FencedClient, FencedError, OutcomeUnknown, sync
from fencegate.testing.hostile_server import (
    NO_ANSWERS,
    HostileServer,
    PeakMemory,
    Say,
    answers,
    goes_on,
    packed_gigabyte,
)

DEADLINE = 0.6
SLACK = 3.0
ROOM = 48.0
SECRET = {"Authorization": "Bearer of-the-client"}
ACCEPTED = (b"X-Fencing-Outcome: accepted", b"X-Fencing-Max-Seen: 7", b"X-Fencing-Region: eu")
FLOODS: dict[str, Say] = {name: say for name, say in NO_ANSWERS.items() if "an end" in name or "the end" in name}
FLOODS["a packed gigabyte"] = packed_gigabyte()
FLOODS["a packed gigabyte, accepted"] = packed_gigabyte(*ACCEPTED)
FLOODS["an accepted body without an end"] = goes_on(b"HTTP/1.1 201 X\r\n" + b"\r\n".join(ACCEPTED) + b"\r\n\r\n")


def refused(code: str, status: int, retry: str, *more: bytes, body: object = None) -> Say:
    """A refusal with these words, true or not."""
    headers = (b"X-Fencing-Outcome: " + code.encode(), b"X-Fencing-Applied: no", b"X-Fencing-Retry: " + retry.encode())
    return answers(json.dumps(body or {}).encode(), status, *headers, *more)


@asynccontextmanager
async def serving(say: Say) -> AsyncIterator[HostileServer]:
    server = HostileServer(say)
    await server.start()
    try:
        yield server
    finally:
        await asyncio.sleep(0.05)
        await server.close()


async def post(client: FencedClient, **options: object) -> object:
    return await client.post("/v1/entries", json={}, headers=SECRET, **options)  # type: ignore[arg-type]


async def fails_in_time(
    urls: list[str], *, token: int | None = 7, deadline: float = DEADLINE, max_tries: int = 20
) -> FencedError:
    """How a write ends. With fewer tries than the deadline has time for, it does not come within one of them."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with FencedClient(urls, "ledger", deadline=deadline, max_tries=max_tries, max_answer_bytes=1 << 20) as client:
        with pytest.raises(FencedError) as raised:
            await post(client, token=token)
    assert loop.time() - began < deadline + SLACK
    return raised.value


@pytest.mark.parametrize("token", [7, None], ids=["a token", "discovery"])
async def test_what_is_no_answer_ends_in_time_and_is_never_a_success(token: int | None) -> None:
    async def one(what: str) -> None:
        async with serving(NO_ANSWERS[what]) as server:
            try:
                error = await fails_in_time([server.url], token=token)
            except BaseException as failure:
                failure.add_note(what)
                raise
            # Where the write was sent, nobody can say that it was not applied.
            if any(head.startswith(b"POST") for head in server.requests):
                assert isinstance(error, OutcomeUnknown), what

    await asyncio.gather(*(one(what) for what in NO_ANSWERS if what not in FLOODS))


@pytest.mark.parametrize("what", FLOODS)
async def test_what_has_no_end_ends_in_time_and_fills_no_memory(what: str) -> None:
    async with serving(FLOODS[what]) as server, PeakMemory() as memory:
        assert isinstance(await fails_in_time([server.url]), OutcomeUnknown)
        await fails_in_time([server.url], token=None)
    assert memory.grown < ROOM


async def test_a_huge_document_is_neither_read_to_its_end_nor_parsed() -> None:
    """Reading megabytes of JSON takes seconds, in which nothing else of the process runs."""
    body = b"[" + b"[]," * 5_000_000 + b"[]]"
    async with serving(answers(body)) as server, FencedClient([server.url], "ledger", deadline=5.0) as client:
        began = time.process_time()
        while len(server.requests) < 3:
            with pytest.raises(FencedError):
                await post(client, deadline=DEADLINE)
    assert time.process_time() - began < 1.0, "it has taken the processor"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_and_nobody_else_hears_of_the_write(status: int) -> None:
    async with serving(NO_ANSWERS["nothing"]) as other:
        for target in (other.url.encode() + b"/v1/entries", b"/v1/entries", b"//" + other.address.encode()):
            async with serving(answers(b"", status, b"Location: " + target)) as server:
                assert isinstance(await fails_in_time([server.url]), OutcomeUnknown)
                assert all(head.startswith(b"POST /v1/entries ") for head in server.requests)
        assert other.requests == []


@pytest.mark.parametrize("code", ["stale_token", "not_leader"])
async def test_a_hint_to_a_stranger_is_not_followed(code: str) -> None:
    async with serving(NO_ANSWERS["nothing"]) as stranger:
        leader = {"url": stranger.url, "token": 9}
        hint = b"X-Fencing-Leader: " + stranger.url.encode()
        say = refused(code, 409, "rediscover", hint, body={"leader": leader, "max_token_seen": 9})
        async with serving(say) as server:
            await fails_in_time([server.url])
            server.say = answers(json.dumps({"role": "ledger", "token": 9, "leader": leader}).encode())
            await fails_in_time([server.url], token=None)
        assert stranger.requests == []


async def test_two_gateways_that_point_at_each_other_end_the_operation_in_time() -> None:
    async with serving(NO_ANSWERS["nothing"]) as one, serving(NO_ANSWERS["nothing"]) as two:
        for here, there in ((one, two), (two, one)):
            hint = b"X-Fencing-Leader: " + there.url.encode()
            leader = {"url": there.url, "token": 9}
            here.say = refused("stale_token", 409, "rediscover", hint, body={"leader": leader, "max_token_seen": 9})
        error = await fails_in_time([one.url, two.url], token=None, deadline=5.0, max_tries=4)
        assert error.applied == "no"
        assert len(one.requests) + len(two.requests) < 40


@pytest.mark.parametrize("wait", [b"31536000", b"9" * 400, b"-1", b"1e9", b"Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.parametrize("code", ["no_leader", "overloaded", "draining"])
async def test_a_wait_of_a_year_is_not_waited(code: str, wait: bytes) -> None:
    async with serving(refused(code, 503, "after-delay", b"Retry-After: " + wait)) as server:
        error = await fails_in_time([server.url], deadline=5.0, max_tries=3)
        assert error.applied == "no"
        await fails_in_time([server.url], token=None)


FORGED: dict[str, Say] = {
    "a success without a word": answers(b'{"seq":1}', 201),
    "accepted, and not applied": answers(b"{}", 201, *ACCEPTED, b"X-Fencing-Applied: no"),
    "accepted, and to be sent again": answers(b"{}", 201, *ACCEPTED, b"X-Fencing-Retry: after-delay"),
    "accepted twice": answers(b"{}", 201, *ACCEPTED, b"X-Fencing-Outcome: accepted"),
    "accepted and refused": answers(b"{}", 201, *ACCEPTED, b"X-Fencing-Outcome: stale_token"),
    "a refusal that succeeded": refused("stale_token", 200, "never"),
    "a refusal of another status": refused("stale_token", 503, "never"),
    "an outcome that nobody knows, with success": refused("all_is_well", 200, "never"),
    "unknown, and surely not applied": refused("outcome_unknown", 502, "never"),
    "accepted, half of it": answers(b"", 201, *ACCEPTED, b"Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_forged_or_contradictory_outcome_is_no_success_and_no_promise(what: str) -> None:
    async with serving(FORGED[what]) as server:
        assert isinstance(await fails_in_time([server.url]), OutcomeUnknown)


async def test_the_synchronous_sdk_holds_the_same() -> None:
    def ask(url: str) -> FencedError:
        with sync.FencedClient([url], "ledger", deadline=DEADLINE) as client, pytest.raises(FencedError) as raised:
            client.post("/v1/entries", json={}, headers=SECRET, token=7)
        return raised.value

    async with serving(NO_ANSWERS["nothing"]) as stranger:
        redirect = answers(b"", 307, b"Location: " + stranger.url.encode())
        for say in (NO_ANSWERS["half a body"], NO_ANSWERS["silence"], FORGED["accepted and refused"], redirect):
            async with serving(say) as server:
                assert isinstance(await asyncio.to_thread(ask, server.url), OutcomeUnknown)
        assert stranger.requests == []
