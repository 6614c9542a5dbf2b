"""The admin listener over a real socket: health, state of roles, and who may act."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
import trustme

from fencegate.errors import Unavailable
from fencegate.fence import Fence, StoreClock
from fencegate.gateway.actions import Acted, Asked
from fencegate.gateway.admin import AdminParts, AdminServer
from fencegate.gateway.admin_connection import AdminConnections
from fencegate.gateway.limits import Limits
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
        self.several: dict[str, Any] = {}
        self.resigned: list[str] = []
        self.stopping = False
        self.leads = True
        self.campaigns = True
        self.rehearsal = {"shard/eu-1": "/v1/canary"}
        self.handed: list[tuple[str, str, float]] = []
        self.sealed: list[tuple[str, int, float]] = []
        self.unreachable = False
        self.looks = 0
        self.server: Any = None

    async def resign(self, role: str, _: Asked) -> Acted:
        self.resigned.append(role)
        return Acted(200, {"resigned": True}) if self.leads else Acted(409, {"error": "This node does not lead."})

    async def hand_over(self, role: str, asked: Asked) -> Acted:
        if self.unreachable:
            raise Unavailable("no quorum")
        self.handed.append((role, asked["to"], asked["limit"]))
        return Acted(409, {"outcome": "no_candidate", "detail": "nobody"})

    async def seal(self, role: str, asked: Asked) -> Acted:
        self.sealed.append((role, asked["token"], asked["limit"]))
        return Acted(200, {"outcome": "sealed"})

    def refused(self) -> Callable[[str], dict[str, int]]:
        self.looks += 1
        return lambda role: {"stale_token": 3} if role == "ledger" else {}

    async def start(
        self, act: str | None = "act-secret", read: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        parts = AdminParts(
            node="gw-1",
            region="eu",
            roles=["ledger", "shard/eu-1", "t"],
            stores=self.several or {"": self.store},
            store_of=lambda role: ("north" if role == "ledger" else "south") if self.several else "",
            view=self.view,
            metrics=lambda: ("text/plain; version=0.0.4; charset=utf-8", b"fencing_store_up 1\n"),
            actions={"seal": self.seal}
            | ({"resign": self.resign, "handoff": self.hand_over} if self.campaigns else {}),
            rejections=self.refused,
            rehearsal=self.rehearsal,
            advertise="https://eu.example",
            stopping=lambda: self.stopping,
            act_token=act,
            read_token=read,
        )
        self.server = AdminServer(parts, ssl_context=tls)
        await self.server.start("127.0.0.1", 0)

    async def ask(self, method: str, path: str, token: str | None = None, body: str | None = None) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, data=body) as response,
        ):
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


async def test_one_document_of_all_roles_looks_at_all_refusals_once(admin: _Admin) -> None:
    await admin.start()
    # A look takes time with the roles, and nothing else runs meanwhile: no write, and no renewal of a lease.
    _, document = await admin.ask("GET", "/-/roles")
    assert [role["rejections"] for role in document["roles"]] == [{"stale_token": 3}, {}, {}]
    assert admin.looks == 1


async def test_of_several_stores_one_that_answers_is_ready_and_each_role_is_told_by_its_own(admin: _Admin) -> None:
    north, south = admin.store, type(admin.store)()
    admin.several = {"north": north, "south": south}
    await admin.start()
    assert await admin.ask("GET", "/ready") == (200, {"ready": True})
    south.down = True
    status, body = await admin.ask("GET", "/ready")
    assert (status, body["ready"], list(body["closed"])) == (200, True, ["south"])
    _, document = await admin.ask("GET", "/-/roles")
    assert document["store"]["reason"].startswith("south: ")
    assert {name: store["up"] for name, store in document["stores"].items()} == {"north": True, "south": False}
    assert [role["store"] for role in document["roles"]] == ["north", "south", "south"]
    assert [role["fence"] is None for role in document["roles"]] == [False, True, True]
    north.down = True
    status, body = await admin.ask("GET", "/ready")
    assert status == 503
    assert "north: the store does not answer" in body["reason"]
    assert "south: the store does not answer" in body["reason"]


def _context(ca: trustme.CA, purpose: ssl.Purpose, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose)
    ca.configure_trust(context)
    if name is not None:
        ca.issue_cert(name).configure_cert(context)
    return context


async def test_operators_are_answered_under_tls_which_can_ask_for_certificates_and_change(admin: _Admin) -> None:
    ours, others = trustme.CA(), trustme.CA()
    accepting, later = (_context(ca, ssl.Purpose.CLIENT_AUTH, "127.0.0.1") for ca in (ours, others))
    accepting.verify_mode = ssl.CERT_REQUIRED
    await admin.start(tls=accepting)
    url = f"https://127.0.0.1:{admin.server.port}/live"
    known, bare = (_context(ours, ssl.Purpose.SERVER_AUTH, name) for name in ("ops@example.org", None))
    async with aiohttp.ClientSession() as session:
        async with session.get(url, ssl=known) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(url, ssl=bare)
        await admin.server.use_tls(later)
        async with session.get(url, ssl=known) as response:
            assert response.status == 200, "on the connection of before"
        async with session.get(url, ssl=_context(others, ssl.Purpose.SERVER_AUTH, None)) as response:
            assert response.status == 200


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


HANDOFF = "/-/roles/shard/eu-1/handoff"


async def test_a_handoff_needs_the_act_token_and_gives_back_what_became_of_it(admin: _Admin) -> None:
    await admin.start()

    assert (await admin.ask("POST", HANDOFF, None, '{"to": "dr"}'))[0] == 401
    assert (await admin.ask("POST", HANDOFF, "read-secret", '{"to": "dr"}'))[0] == 401
    assert admin.handed == []
    status, document = await admin.ask("POST", HANDOFF, "act-secret", '{"to": "dr", "limit": 3}')

    assert status == 409
    assert document == {"role": "shard/eu-1", "to": "dr", "outcome": "no_candidate", "detail": "nobody"}
    assert admin.handed == [("shard/eu-1", "dr", 3.0)]


@pytest.mark.parametrize(
    "body",
    ["", "x", "[]", "{}", '{"to": ""}', '{"to": 7}', '{"to": "dr", "limit": 0}', '{"to": "dr", "limit": true}',
     '{"to": "dr", "rehearsal": "yes"}',
     '{"to": "dr", "limit": "3"}', '{"to": "dr", "limit": 601}', '{"to": "dr", "force": true}'],
)  # fmt: skip
async def test_a_handoff_that_is_badly_asked_for_is_told_what_was_expected(admin: _Admin, body: str) -> None:
    await admin.start()

    status, document = await admin.ask("POST", HANDOFF, "act-secret", body)

    assert status == 400
    assert document["error"].startswith('Expected a JSON object such as {"to": "dr", "limit": 10}')
    assert admin.handed == []


async def test_a_handoff_for_a_rehearsal_is_refused_unless_the_role_is_marked_for_it(admin: _Admin) -> None:
    await admin.start()
    asked = '{"to": "dr", "rehearsal": true}'
    status, document = await admin.ask("POST", "/-/roles/ledger/handoff", "act-secret", asked)
    assert (status, "rehearsal = true" in document["error"]) == (403, True)
    assert admin.handed == []
    await admin.ask("POST", HANDOFF, "act-secret", asked)
    assert admin.handed == [("shard/eu-1", "dr", 10.0)]


async def test_roles_show_which_of_them_are_for_rehearsals_and_where_to_write(admin: _Admin) -> None:
    await admin.start()
    _, body = await admin.ask("GET", "/-/roles")
    assert body["advertise"] == "https://eu.example"
    assert body["timings"] == {"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0}
    assert [(role["rehearsal"], role["path"]) for role in body["roles"]] == [
        (False, None),
        (True, "/v1/canary"),
        (False, None),
    ]


async def test_a_handoff_of_an_unknown_role_or_where_nobody_campaigns_or_without_a_quorum_is_refused(
    admin: _Admin,
) -> None:
    admin.campaigns = False
    await admin.start()
    assert (await admin.ask("POST", "/-/roles/nothing/handoff", "act-secret", '{"to": "dr"}'))[0] == 404
    assert (await admin.ask("POST", HANDOFF, "act-secret", '{"to": "dr"}'))[0] == 409
    await admin.server.stop()

    admin.campaigns, admin.unreachable = True, True
    await admin.start()
    status, document = await admin.ask("POST", HANDOFF, "act-secret", '{"to": "dr"}')
    assert (status, document["error"]) == (503, "Nothing was begun: no quorum")


SEAL = "/-/roles/shard/eu-1/seal"


async def test_a_seal_needs_the_act_token_and_the_number_of_the_term(admin: _Admin) -> None:
    admin.campaigns = False  # the store is this region's, whoever leads
    await admin.start(read="read-secret")
    assert (await admin.ask("POST", SEAL, "read-secret", '{"token": 42}'))[0] == 401
    for body in ("", "{}", '{"token": "42"}', '{"token": true}', '{"token": 0}', '{"token": 42, "force": 1}',
                 '{"token": 9223372036854775808}'):  # fmt: skip
        status, document = await admin.ask("POST", SEAL, "act-secret", body)
        assert status == 400
        assert document["error"].startswith('Expected a JSON object such as {"token": 42, "limit": 10}')
    assert admin.sealed == []
    assert await admin.ask("POST", SEAL, "act-secret", '{"token": 42}') == (
        200,
        {"role": "shard/eu-1", "outcome": "sealed"},
    )
    assert admin.sealed == [("shard/eu-1", 42, 10.0)]
    status, document = await admin.ask("POST", "/-/roles/ledger/drain", "act-secret", '{"limit": 3}')
    assert (status, document["error"]) == (409, "This gateway follows the election; it has no leadership to drain.")


async def test_a_form_is_for_those_who_read_and_acts_only_with_the_act_token(admin: _Admin) -> None:
    await admin.start(read="read-secret")
    assert admin.server.may_act("act-secret")
    for wrong in ("", "read-secret", "act-secre"):
        assert not admin.server.may_act(wrong)
    admin.server.use_tokens(None, None)
    assert not admin.server.may_act("")
    acted = await admin.server.act("seal", "ledger", {"token": 42, "limit": 3.0})
    assert acted.document == {"role": "ledger", "outcome": "sealed"}


async def test_what_says_that_it_rehearses_is_refused_every_other_role(admin: _Admin) -> None:
    admin.rehearsal = {"ledger": "/v1/entries"}
    await admin.start()
    body = '{"to": "dr", "rehearsal": true}'
    assert (await admin.ask("POST", HANDOFF, "act-secret", body))[0] == 403
    assert admin.handed == []
    assert (await admin.ask("POST", "/-/roles/ledger/handoff", "act-secret", body))[0] == 409
    assert admin.handed == [("ledger", "dr", 10.0)]
    roles = (await admin.ask("GET", "/-/roles", "act-secret"))[1]["roles"]
    assert [(role["rehearsal"], role["path"]) for role in roles][:2] == [(True, "/v1/entries"), (False, None)]


# -- limits -------------------------------------------------------------------------------------------


async def _said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within: float) -> bytes:
    """Everything until the other end has closed."""
    try:
        async with asyncio.timeout(within):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdminConnections, "limits", Limits(connections=3, header_timeout=2.5, idle_timeout=2.5))
    monkeypatch.setattr("fencegate.gateway.admin.BODY_LIMIT", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /live HTTP/1.1\r\nHost: x\r\nX: ",
        b"GET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /live HTTP/1.1\r\nHost",
        b"POST /-/roles/ledger/seal HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half of a second one", "half a body"],
)
async def test_whoever_does_not_finish_a_request_to_the_operators_listener_is_cut_off(
    admin: _Admin, beginning: bytes
) -> None:
    await admin.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
    writer.write(beginning)
    said = await _said(reader, writer, within=20)
    assert not admin.sealed
    if beginning.startswith(b"POST"):
        assert b" 408 " in said.splitlines()[0]


@pytest.mark.usefixtures("impatient")
async def test_the_operators_listener_takes_so_many_connections_and_is_there_again_after_them(admin: _Admin) -> None:
    await admin.start()
    taken = [await asyncio.open_connection("127.0.0.1", admin.server.port) for _ in range(3)]
    for _, writer in taken:
        writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    for reader, _ in taken:
        assert b" 200 " in await reader.readuntil(b"\r\n")
    reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
    writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await _said(reader, writer, within=20) == b""
    for reader, writer in taken:
        await _said(reader, writer, within=20)
    status, _ = await admin.ask("GET", "/live")
    assert status == 200


async def test_heads_and_bodies_over_the_limits_of_the_operators_listener_are_refused(admin: _Admin) -> None:
    await admin.start()
    for over in ([("X", "x" * 70_000)], [(f"X-{number}", "x") for number in range(200)]):
        head = "".join(f"{name}: {value}\r\n" for name, value in over)
        reader, writer = await asyncio.open_connection("127.0.0.1", admin.server.port)
        writer.write(f"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n".encode())
        said = await _said(reader, writer, within=20)
        assert b" 200 " not in said
    status, _ = await admin.ask("POST", "/-/roles/ledger/seal", "act-secret", "x" * 70_000)
    assert status == 413
    assert not admin.sealed
