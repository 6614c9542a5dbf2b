"""Several equal HTTP servers: which one is asked, for how long, and what is never sent anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from fencegate.election.http_endpoints import Answer, Deadline, HttpEndpoints
from fencegate.lease import ElectionUnavailable
from fencegate.testing.faulty_http import FaultyServer


class Echo(FaultyServer):
    """Answers with what it was sent, and counts the writes it applied."""

    def __init__(self) -> None:
        super().__init__()
        self.applied = 0

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/x", self._echo, allow_head=False)
        router.add_put("/x", self._echo)

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        self.applied += request.method == "PUT"
        body = {"secret": request.headers.get("Authorization"), "query": dict(request.query)}
        return web.json_response({**body, "sent": (await request.read()).decode()})


def judge(endpoint: str, answer: Answer) -> None:
    if answer.status >= 500:
        raise ElectionUnavailable(f"{endpoint}: HTTP {answer.status} {answer.text}", "refused")


def endpoints_of(*urls: str) -> HttpEndpoints:
    credentials = {"Authorization": "Bearer s3cret"}
    return HttpEndpoints("echo", list(urls), example="http://h", judge=judge, credentials=lambda: credentials)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[Echo, Echo]]:
    first, second = Echo(), Echo()
    await first.start()
    await second.start()
    yield first, second
    await first.close()
    await second.close()


async def test_the_endpoint_that_answered_last_is_asked_first(pair: tuple[Echo, Echo]) -> None:
    first, second = pair
    http = endpoints_of(first.url + "/", second.url)
    first.refusals.append(web.Response(status=500, text="down"))
    assert (await http.call("GET", "/x", 10.0)).status == 200
    assert (await http.call("PUT", "/x", 10.0, query={"a": "b"}, body={"c": 1})).json == {
        "secret": "Bearer s3cret",
        "query": {"a": "b"},
        "sent": '{"c":1}',
    }
    assert (len(first.requests), len(second.requests)) == (1, 2)
    await http.close()


async def test_a_frozen_endpoint_gets_its_share_of_the_time_only(pair: tuple[Echo, Echo]) -> None:
    first, second = pair
    first.hanging = True
    http = endpoints_of(first.url, second.url)
    began = asyncio.get_running_loop().time()
    await http.call("GET", "/x", 4.0)
    assert 1.9 < asyncio.get_running_loop().time() - began < 3.9
    await http.close()


async def test_a_cut_connection_is_a_failure_though_the_write_was_applied(pair: tuple[Echo, Echo]) -> None:
    first, _ = pair
    first.losing = 1
    http = endpoints_of(first.url)
    assert (await http.call("PUT", "/x", 10.0)).status == 200
    assert first.applied == 2
    first.muffled = 1
    with pytest.raises(ElectionUnavailable) as failed:
        await http.call("PUT", "/x", 1.5)
    assert (failed.value.cause, first.applied) == ("timeout", 3)
    await http.close()


async def test_the_last_failure_is_what_the_caller_is_told(pair: tuple[Echo, Echo]) -> None:
    first, _ = pair
    http = endpoints_of("http://127.0.0.1:1", first.url)
    first.refusals.extend(web.Response(status=503, text=f"busy\x1b[31m {n}\nmore") for n in range(1000))
    with pytest.raises(ElectionUnavailable) as failed:
        await http.call("GET", "/x", 1.5)
    assert failed.value.cause in ("refused", "connection")
    assert "\x1b" not in str(failed.value)
    assert "more" not in str(failed.value)
    await http.close()


async def test_no_time_is_no_try(pair: tuple[Echo, Echo]) -> None:
    http = endpoints_of(pair[0].url)
    for deadline in (0.0, -1.0):
        with pytest.raises(ElectionUnavailable):
            await http.call("PUT", "/x", deadline)
    assert pair[0].applied == 0
    with pytest.raises(ElectionUnavailable, match="time is up"):
        _ = Deadline("echo", 0.0).left
    await http.close()


async def test_a_redirect_is_an_answer_and_carries_the_secret_nowhere(pair: tuple[Echo, Echo]) -> None:
    first, second = pair
    http = endpoints_of(first.url)
    for _ in range(2):
        first.refusals.append(web.Response(status=307, headers={"Location": f"{second.url}/x"}))
    assert (await http.call("GET", "/x", 10.0)).status == 307
    async with http.stream("/x", {}) as response:
        assert response.status == 307
    assert second.requests == []
    await http.close()


async def test_an_endless_answer_is_cut_off(pair: tuple[Echo, Echo]) -> None:
    http = endpoints_of(pair[0].url)
    pair[0].refusals.append(web.Response(body=b"x" * (9 * 1024 * 1024)))
    answer = await http.call("GET", "/x", 5.0)
    assert len(answer.raw) < 9 * 1024 * 1024
    assert answer.json is None
    await http.close()


async def test_closed_is_for_good_even_for_a_call_under_way(pair: tuple[Echo, Echo]) -> None:
    pair[0].hanging = True
    http = endpoints_of(pair[0].url, pair[1].url)
    call = asyncio.ensure_future(http.call("GET", "/x", 10.0))
    await asyncio.sleep(0.1)
    await http.close()
    with pytest.raises(ElectionUnavailable):
        await call
    with pytest.raises(ElectionUnavailable, match="was closed"):
        await http.call("GET", "/x", 10.0)
    assert pair[1].requests == []


async def test_calls_that_leave_a_frozen_endpoint_at_once_do_not_send_each_other_back_to_it(
    pair: tuple[Echo, Echo],
) -> None:
    """Two that fail together are one failure of that endpoint: its successor is asked by both."""
    first, second = pair
    first.hanging = True
    http = endpoints_of(first.url, second.url)
    answers = await asyncio.gather(*(http.call("GET", "/x", 4.0) for _ in range(4)))
    assert [answer.status for answer in answers] == [200] * 4
    assert http.endpoint == second.url
    await http.close()
