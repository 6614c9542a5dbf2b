"""The admin listener over a real socket: health, state of roles, and who may act."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from fencegate.errors import Unavailable
from fencegate.fence import Fence, StoreClock
from fencegate.gateway.admin import AdminParts, AdminServer
from fencegate.testing.scripted_view import ScriptedView


class _Store:
    """The two reads of a fence store that the admin pages make."""

    def __init__(self) -> None:
        self.down = False

    async def clock(self) -> StoreClock:
        if self.down:
            raise Unavailable("no connection")
        return StoreClock(1000.0, "i/1")

    async def read_all(self) -> list[Fence]:
        return [
            Fence("ledger", "lease", 42, 41, 1012.5, "i/1", "eu/gw-1", 7),
            Fence("t", "token", 3, 0, float("inf"), "i/1", "x"),
        ]


class _Admin:
    def __init__(self) -> None:
        self.store, self.view = _Store(), ScriptedView()
        self.resigned: list[str] = []
        self.stopping = False
        self.leads = True
        self.server: Any = None

    async def resign(self, role: str) -> bool:
        self.resigned.append(role)
        return self.leads

    async def start(self, act: str | None = "act-secret", read: str | None = None) -> None:
        parts = AdminParts(
            node="gw-1",
            region="eu",
            roles=["ledger", "shard/eu-1", "t"],
            store=self.store,  # type: ignore[arg-type]
            view=self.view,
            metrics=lambda: ("text/plain; version=0.0.4; charset=utf-8", b"fencing_store_up 1\n"),
            resign=self.resign,
            rejections=lambda role: {"stale_token": 3} if role == "ledger" else {},
            stopping=lambda: self.stopping,
            act_token=act,
            read_token=read,
        )
        self.server = AdminServer(parts)
        await self.server.start("127.0.0.1", 0)

    async def ask(self, method: str, path: str, token: str | None = None) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as response:
            json = response.content_type == "application/json"
            return response.status, await (response.json() if json else response.text())


@pytest.fixture
async def admin() -> AsyncIterator[_Admin]:
    one = _Admin()
    yield one
    if one.server is not None:
        await one.server.stop()


async def test_ready_follows_the_store_and_live_does_not(admin: _Admin) -> None:
    await admin.start()
    assert (await admin.ask("GET", "/ready"))[0] == 200
    admin.store.down = True
    status, body = await admin.ask("GET", "/ready")
    assert (status, body["ready"]) == (503, False)
    assert (await admin.ask("GET", "/live"))[0] == 200
    admin.store.down, admin.stopping = False, True
    assert (await admin.ask("GET", "/ready"))[0] == 503


async def test_metrics_pass_through(admin: _Admin) -> None:
    await admin.start()
    assert await admin.ask("GET", "/metrics") == (200, "fencing_store_up 1\n")


async def test_roles_show_fence_leader_and_rejections(admin: _Admin) -> None:
    admin.view.lead("ledger", 42, "eu", "https://eu.example")
    await admin.start()
    status, body = await admin.ask("GET", "/-/roles")
    assert status == 200
    ledger, shard, shared = body["roles"]
    assert ledger["fence"]["max_token_seen"] == 42
    assert ledger["fence"]["valid_for_s"] == 12.5
    assert ledger["fence"]["open"] is True
    assert ledger["leader"]["url"] == "https://eu.example"
    assert ledger["rejections"] == {"stale_token": 3}
    assert (shard["fence"], shard["leader"], shard["leadership_known"]) == (None, None, False)
    assert (shared["fence"]["valid_for_s"], shared["fence"]["open"]) == (None, True)


async def test_roles_are_shown_while_the_store_is_down(admin: _Admin) -> None:
    await admin.start()
    admin.store.down = True
    status, body = await admin.ask("GET", "/-/roles")
    assert (status, body["store"]["up"], body["roles"][0]["fence"]) == (200, False, None)


async def test_an_action_needs_the_act_token(admin: _Admin) -> None:
    await admin.start(read="read-secret")
    path = "/-/roles/ledger/resign"
    for token in (None, "", "wrong", "read-secret", "act-secre", "act-secret2"):
        assert (await admin.ask("POST", path, token))[0] == 401
    assert admin.resigned == []
    assert (await admin.ask("POST", path, "act-secret"))[0] == 200
    assert (await admin.ask("POST", "/-/roles/shard/eu-1/resign", "act-secret"))[0] == 200
    assert admin.resigned == ["ledger", "shard/eu-1"]


async def test_actions_are_off_without_a_configured_token(admin: _Admin) -> None:
    await admin.start(act=None)
    assert (await admin.ask("POST", "/-/roles/ledger/resign", "anything"))[0] == 403
    assert admin.resigned == []


async def test_resigning_what_is_not_led_or_not_configured_is_told(admin: _Admin) -> None:
    await admin.start()
    assert (await admin.ask("POST", "/-/roles/other/resign", "act-secret"))[0] == 404
    admin.leads = False
    assert (await admin.ask("POST", "/-/roles/ledger/resign", "act-secret"))[0] == 409


async def test_reads_need_a_token_only_where_one_is_configured(admin: _Admin) -> None:
    await admin.start(read="read-secret")
    for path in ("/-/roles", "/metrics"):
        assert (await admin.ask("GET", path))[0] == 401
        assert (await admin.ask("GET", path, "read-secret"))[0] == 200
        assert (await admin.ask("GET", path, "act-secret"))[0] == 200
    assert (await admin.ask("GET", "/ready"))[0] == 200
