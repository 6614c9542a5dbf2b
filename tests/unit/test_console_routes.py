"""One node's word, whatever it holds, is refused or can be drawn: it never takes the picture of the others away."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from fencegate.console import routes
from fencegate.console.memory import Memory
from fencegate.console.picture import Seen, pictures_of
from fencegate.console.render import Wanted, page, shown_of
from fencegate.console.routes import Console, _of_all, checked

Json = dict[str, Any]
DURATIONS = {"last_age": 1.2, "last": 0.005, "p50": 0.005, "p99": 0.009, "series": [[30.0, 0.004], [0.0, 0.005]]}
WORD: Json = {
    "node": "gw-eu",
    "region": "eu",
    "store": {"up": True, "reason": None},
    "timings": {"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0},
    "roles": [
        {
            "role": "ledger",
            "fence": {"open": True, "valid_for_s": 11.8, "max_token_seen": 42, "sealed": 41, "draining": False},
            "leader": {"url": "https://eu.example", "region": "eu", "token": 42},
            "leadership_known": True,
            "candidacy": "leading",
            "rejections": {"stale_token": 3},
            "observed": False,
            "rehearsal": False,
            "memory": {"leading": [[420.0, 1]], "renewals": DURATIONS, "checks": DURATIONS},
        }
    ],
    "stale_senders": [
        {
            "role": "ledger",
            "client": "10.0.0.7",
            "forwarded_for": "",
            "agent": "a",
            "refused": 3,
            "let_through": 0,
            "reason": "not_leader",
            "token": 41,
            "last_age_s": 0.4,
        }
    ],
    "events": [{"age": 1.0, "alarming": False, "text": "store up"}],
}
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | (st.sampled_from(["", "1", "1.5", "x", "leading", {}, [], [1], {"token": 1}, [[1.0, 1]], [["a", "b"]]]))
)


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, but the whole."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from places(inner, *path, name)


def changed(path: tuple[Any, ...], value: Any) -> Json:
    word = copy.deepcopy(WORD)
    at: Any = word
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    return word


def drawn(*words: Json) -> str:
    seen = [Seen(f"node {n}", 0.0, word, url="https://a.example") for n, word in enumerate(words)]
    senders = _of_all(seen, "stale_senders", "last_age_s")
    return page(shown_of(pictures_of(seen), "me", "now", _of_all(seen, "events", "age"), senders), Wanted())


def test_a_word_as_it_should_be_is_taken() -> None:
    assert "led by gw-eu in eu" in drawn(checked(orjson.loads(orjson.dumps(WORD))))


async def test_a_word_is_as_old_as_it_has_waited_for_a_peer_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def told(request: web.Request) -> web.Response:
        return web.json_response({**WORD, "node": "gw-dr"})

    async def silent(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async def own() -> Json:
        return copy.deepcopy(WORD)

    async def act(*_: object) -> tuple[int, Json]:
        raise AssertionError

    monkeypatch.setattr(routes, "_PEER_LIMIT", 0.5)
    app = web.Application()
    app.add_routes([web.get("/quick/-/console/state", told), web.get("/silent/-/console/state", silent)])
    server = TestServer(app)
    await server.start_server()
    peers = [str(server.make_url(path)) for path in ("/quick", "/silent")]
    console = Console(own, Memory([]), may_act=lambda token: False, act=act, here=lambda: "", peers=peers)
    try:
        look = await console._looked()
    finally:
        await console.close()
        await server.close()
    quick, hung = look.pictures[0].believers[1:]
    assert (quick.node, hung.problem) == ("gw-dr", "no answer within 0 s")
    assert quick.age >= 0.5
    assert look.pictures[0].age >= 0.5


@given(st.sampled_from(list(places(WORD))), VALUES)
def test_a_word_of_any_other_form_is_refused_or_can_be_drawn(path: tuple[Any, ...], value: Any) -> None:
    try:
        word = checked(changed(path, value))
    except ValueError:
        return
    assert "gw-eu" in drawn(WORD, word)
