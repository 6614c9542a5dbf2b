"""The external authorizer over gRPC: a real client of gRPC asks as Envoy does, and is never answered with an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_network

import grpc
import pytest
from envoy_data_plane.envoy.service.auth.v3 import (
    AttributeContext,
    AttributeContextHttpRequest,
    AttributeContextPeer,
    AttributeContextRequest,
    CheckRequest,
    CheckResponse,
)
from envoy_data_plane.envoy.type.v3 import StatusCode

from fencegate.errors import PROBLEMS, Unavailable
from fencegate.gateway.caller import Callers
from fencegate.gateway.edge_protocol import ProtocolEdge
from fencegate.gateway.envoy import SERVICE, EnvoyAuthorizer, host_of
from fencegate.gateway.envoy_messages import STATUSES
from fencegate.gateway.limits import Limits
from fencegate.observations import WriteAccepted, WriteRefused
from fencegate.testing.wire_world import ELSEWHERE, HOME, MemoryStage, World, world_of

Ask = Callable[..., Awaitable[CheckResponse]]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with world_of(MemoryStage(), ProtocolEdge) as started:
        yield started


@asynccontextmanager
async def asking(world: World) -> AsyncIterator[Ask]:
    authorizer = EnvoyAuthorizer(world.gateway, role="web", identity_header="X-Caller")
    port = await authorizer.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(f"/{SERVICE}/Check")

        async def question(
            role: str = "",
            method: str = "POST",
            *,
            raw: bytes | None = None,
            principal: str = "",
            path: str = "/x",
            **headers: str,
        ) -> CheckResponse:
            lines = {name.replace("_", "-"): value for name, value in headers.items()}
            http = AttributeContextHttpRequest(method=method, path=path, headers={":method": method, **lines})
            about = AttributeContext(
                source=AttributeContextPeer(principal=principal),
                request=AttributeContextRequest(http=http),
                context_extensions={"role": role} if role else {},
            )
            message = bytes(CheckRequest(attributes=about)) if raw is None else raw
            return CheckResponse.parse(await check(message, timeout=10))

        try:
            yield question
        finally:
            await authorizer.stop(1.0)


@pytest.fixture
async def ask(world: World) -> AsyncIterator[Ask]:
    async with asking(world) as question:
        yield question


def allowed(answer: CheckResponse) -> bool:
    assert answer.status is not None
    assert answer.error_response is None
    assert (answer.ok_response is None) != (answer.denied_response is None)
    assert (answer.status.code == 0) == (answer.ok_response is not None)
    return answer.ok_response is not None


def refused(answer: CheckResponse, code: str, *, status: int | None = None) -> dict[str, str]:
    """The headers of a refusal that is the contract's."""
    assert not allowed(answer)
    denied = answer.denied_response
    assert denied is not None
    assert denied.status is not None
    assert int(denied.status.code) == (status or PROBLEMS[code].status)
    headers = {one.header.key.lower(): one.header.value for one in denied.headers if one.header is not None}
    assert headers["x-fencing-outcome"] == code
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-fencing-applied"] == PROBLEMS[code].applied
    assert f'"code":"{code}"' in denied.body
    return headers


async def test_the_leaders_write_may_pass_and_no_mark_of_it_is_left(world: World, ask: Ask) -> None:
    answer = await ask(x_fencing_token="42")
    assert allowed(answer)
    assert answer.ok_response is not None
    assert [(one.header.key, one.header.value) for one in answer.ok_response.headers if one.header is not None] == [
        ("X-Fencing-Max-Seen", "42")
    ]
    # Of the gate's own, in every spelling that a WSGI upstream takes for it.
    assert {name.replace("_", "-") for name in answer.ok_response.headers_to_remove} == {
        "x-fencing-grant",
        "x-fencing-caller",
    }
    assert {"x-fencing_caller", "x_fencing-caller", "x_fencing_caller"} <= set(answer.ok_response.headers_to_remove)
    assert answer.ok_response.response_headers_to_add == []  # Whether the upstream took it, nobody knows yet.
    assert any(isinstance(fact, WriteAccepted) and fact.role == "web" for fact in world.seen)
    await world.stage.open("web", 43)
    assert allowed(await ask(x_fencing_token="43"))
    refused(await ask(x_fencing_token="42"), "stale_token")


async def test_its_refusals_are_the_contracts(world: World, ask: Ask) -> None:
    refused(await ask(), "token_required")
    refused(await ask(x_fencing_token="07"), "token_malformed")
    refused(await ask(x_fencing_token="42,42"), "token_malformed")  # As Envoy joins two lines.
    refused(await ask("nobodys", x_fencing_token="42"), "unknown_role")
    refused(await ask("../web", x_fencing_token="42"), "unknown_role")
    refused(await ask(x_fencing_token="99"), "token_not_issued")
    assert refused(await ask(x_fencing_token="41"), "stale_token")["x-fencing-leader"] == HOME
    assert any(isinstance(fact, WriteRefused) and fact.client == "127.0.0.1" for fact in world.seen)
    await world.stage.seal("web")
    world.view.lead("web", 43, "us", ELSEWHERE)
    assert refused(await ask(x_fencing_token="42"), "not_leader")["x-fencing-leader"] == ELSEWHERE
    world.store.failure = Unavailable("down")
    assert refused(await ask(x_fencing_token="42"), "fence_unavailable", status=503)["retry-after"] == "1"


async def test_a_status_that_envoy_does_not_know_is_sent_beside_one_that_it_does(ask: Ask) -> None:
    headers = refused(await ask(x_fencing_token="42", early_data="1"), "too_early", status=403)
    assert headers["x-fencing-status"] == "425"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
async def test_whatever_the_method_the_question_is_about_a_write(ask: Ask, method: str) -> None:
    refused(await ask(method=method), "token_required")


async def test_where_a_method_counts_it_is_envoys_word_and_no_clients(ask: Ask) -> None:
    assert allowed(await ask("method", "GET"))
    assert allowed(await ask("method", "GET", x_original_method="POST"))
    refused(await ask("method", "POST", x_original_method="GET"), "token_required")
    refused(await ask("method", "POST", X_Original_Method="GET"), "token_required")


async def test_a_read_that_hides_another_method_or_asks_for_another_protocol_is_judged_as_a_write(ask: Ask) -> None:
    assert allowed(await ask("method", "GET", path="/x?profile=nginx&method=card"))
    refused(await ask("method", "GET", path="/x?a=1&%5fmethod=DELETE"), "token_required")
    refused(await ask("method", "GET", content_type="multipart/form-data"), "token_required")
    refused(await ask("method", "GET", upgrade="websocket", connection="upgrade"), "upgrade_refused")
    assert allowed(await ask("method", path="/x?a=1&%5fmethod=DELETE", x_fencing_token="42"))


async def test_who_calls_is_envoys_word_and_no_clients() -> None:
    callers = Callers(header="X-Caller", proxies=[ip_network("127.0.0.1")], required=True)
    async with world_of(MemoryStage(), ProtocolEdge, callers=callers) as world, asking(world) as ask:
        assert allowed(await ask(x_fencing_token="42", principal="spiffe://x.example/billing"))
        assert any(isinstance(f, WriteAccepted) for f in world.seen)
        for forged in ({}, {"x_caller": "spiffe://x.example/billing"}, {"X_Caller": "billing"}):
            answer = await ask(x_fencing_token="42", **forged)
            refused(answer, "caller_required")
        refused(await ask(x_fencing_token="42", principal="caf\u00e9"), "request_malformed")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:41234", "127.0.0.1"),
        ("ipv6:%5B::1%5D:41234", "::1"),
        ("ipv6:[::1]:41234", "::1"),
        ("unix:/run/x", ""),
        ("", ""),
    ],
)
def test_who_asks_is_known_by_its_address(peer: str, host: str) -> None:
    assert host_of(peer) == host


async def test_the_role_is_envoys_word_and_a_member_of_a_family_is_one(world: World, ask: Ask) -> None:
    assert allowed(await ask("shard/eu-1", x_fencing_token="42"))
    refused(await ask("shard/us-9", x_fencing_token="42"), "unknown_role")
    refused(await ask(role="nobodys", x_fencing_token="42", role_="web"), "unknown_role")


def test_the_statuses_are_those_that_envoy_takes() -> None:
    assert {int(status) for status in StatusCode} - {0} == STATUSES


@pytest.mark.parametrize("raw", [b"", b"\xff\xff", b"\x0a\x05\x0a\x03\xff\xff\xff", b"\x22\x02\x0a\xff"])
async def test_what_is_no_question_is_refused_and_no_error(ask: Ask, raw: bytes) -> None:
    assert not allowed(await ask(raw=raw))


async def test_a_failure_of_our_own_is_a_refusal_and_no_error(
    world: World, ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(world.gateway, "handle", None)
    refused(await ask(x_fencing_token="42"), "fence_unavailable")
    assert "unexpected failure of a question" in caplog.text


async def test_too_many_questions_are_refused_and_no_error(world: World, ask: Ask) -> None:
    world.gateway.limits = Limits(in_flight=0)
    refused(await ask(x_fencing_token="42"), "overloaded")
