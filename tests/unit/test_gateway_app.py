"""Lines that have passed every check are not checked again on a way of the same kind; anything else is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fencegate.gateway.app import Gateway
from fencegate.gateway.limits import Limits
from fencegate.gateway.replies import lines_of
from fencegate.gateway.request import BufferedBody, Reply, Request
from fencegate.gateway.request_bytes import read_head
from fencegate.gateway.routes import Route
from fencegate.steady_clock import steady_clock
from fencegate.testing.memory_write_path import MemoryWritePath
from fencegate.testing.scripted_view import ScriptedView

TOKEN = 42
LINES = b"Host: x\r\nX-Fencing-Token: 42\r\nContent-Length: 2\r\n"
ROUTES = [
    Route("/plain", "ledger", "ledger"),
    Route("/shards/{shard}", "shard/{shard}", "ledger", members=frozenset({"a", "b"})),
    Route("/keyed", "ledger", "ledger", idempotency="required"),
    Route("/small", "ledger", "ledger", max_body_bytes=1),
]


def gateway(**more: Any) -> Gateway:
    store, view = MemoryWritePath(), ScriptedView()
    for role in ("ledger", "shard/a", "shard/b"):
        view.lead(role, TOKEN, "eu", "https://eu.example")
        store.open(role, TOKEN)
    return Gateway(ROUTES, store, view, region="eu", **more)


def asked(path: str, lines: bytes = LINES, *, method: str = "POST", query: str = "") -> Request:
    head, key = read_head(f"{method} {path} HTTP/1.1\r\n".encode() + lines + b"\r\n")
    body = BufferedBody(b"{}")
    return Request(
        method, path, query, head.headers, body, 2, "::1", steady_clock(), "http", fields=head.fields, key=key
    )  # fmt: skip


async def outcome(gate: Gateway, request: Request) -> str:
    reply: Reply = await gate.handle(request)
    return dict(lines_of(reply))["X-Fencing-Outcome"]


def checks(monkeypatch: pytest.MonkeyPatch, gate: Gateway) -> list[str]:
    """The paths of the requests that were checked."""
    seen: list[str] = []
    checked = gate._checked

    def noting(exchange: Any, way: Any) -> Any:
        seen.append(exchange.request.path)
        return checked(exchange, way)

    monkeypatch.setattr(gate, "_checked", noting)
    return seen


async def test_lines_that_recur_are_checked_once_for_a_route_and_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gateway()
    seen = checks(monkeypatch, gate)
    for path in ("/plain", "/plain", "/plain", "/shards/a", "/shards/b", "/shards/a", "/shards/b"):
        assert await outcome(gate, asked(path)) == "accepted"
    assert seen == ["/plain", "/shards/a", "/shards/b"]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (asked("/keyed"), "idempotency_key_required"),
        (asked("/small"), "body_too_large"),
        (asked("/plain", method="PUT"), "method_not_allowed"),
        (asked("/shards/c"), "unknown_role"),
        (asked("/nowhere"), "unknown_route"),
        (asked("/plain", query="a\tb"), "request_malformed"),
        (asked("/plain", LINES + b"Idempotency-Key: a b\r\n"), "idempotency_key_malformed"),
        (asked("/plain", LINES + b"X-Fencing-Timeout-Ms: 0\r\n"), "deadline_exceeded"),
        (asked("/plain", LINES + b"X-HTTP-Method: GET\r\n"), "request_malformed"),
        (asked("/plain", LINES + b"Early-Data: 1\r\n"), "too_early"),
        (asked("/plain", LINES.replace(b"42", b"41")), "stale_token"),
        (asked("/plain", LINES.replace(b"42", b"x")), "token_malformed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_passed_once_passes_nothing_else(request_: Request, told: str) -> None:
    gate = gateway()
    for path in ("/plain", "/shards/a"):
        for _ in range(2):
            assert await outcome(gate, asked(path)) == "accepted"
    for _ in range(2):
        again = replace(request_, body=BufferedBody(b"{}"), received_at=steady_clock())
        assert await outcome(gate, again) == told
    assert await outcome(gate, asked("/plain")) == "accepted"


async def test_lines_that_passed_are_held_to_a_limit_that_was_lowered_since() -> None:
    gate = gateway()
    assert await outcome(gate, asked("/plain")) == "accepted"
    gate.limits = Limits(header_bytes=10)
    assert await outcome(gate, asked("/plain")) == "headers_too_large"


async def test_lines_that_passed_are_checked_anew_by_new_routes() -> None:
    gate = gateway()
    for _ in range(2):
        assert await outcome(gate, asked("/plain")) == "accepted"
    gate.use_routes([replace(ROUTES[0], idempotency="required")])
    for _ in range(2):
        assert await outcome(gate, asked("/plain")) == "idempotency_key_required"


async def test_a_key_counts_whatever_was_remembered_of_the_other_lines() -> None:
    gate = gateway()
    for expected in ("accepted", "accepted"):
        assert await outcome(gate, asked("/plain", LINES + b"Idempotency-Key: k\r\n")) == expected
    reply = await gate.handle(asked("/plain", LINES + b"Idempotency-Key: k\r\n"))
    assert dict(lines_of(reply))["Idempotent-Replayed"] == "true"
