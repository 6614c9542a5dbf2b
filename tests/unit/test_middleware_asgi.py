"""The check before an ASGI application: FastAPI, and bare ones that show what reaches them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request

from fencegate.errors import Unavailable
from fencegate.key_ring import SharedKey
from fencegate.middleware import Gatekeeper, HighWaterMark
from fencegate.middleware.asgi import Fenced
from fencegate.middleware.gatekeeper import MOST_BODY
from fencegate.middleware.used_proofs import ProcessMemory
from fencegate.proof import Passage, Stamp, digest_of, sign

KEY = SharedKey("k", b"s" * 32)
Application = Callable[[Any, Any, Any], Awaitable[None]]


@pytest.fixture
def gatekeeper(tmp_path: Path) -> Gatekeeper:
    file = tmp_path / "proof.keys"
    file.write_text(f"k {'s' * 32}\n")
    return Gatekeeper(proof_key_file=file, open_paths=["/open"])


def by_itself(fence: Any = None) -> Gatekeeper:
    return Gatekeeper(fence=fence or HighWaterMark(), role="ledger")


def proved(path: str = "/v1", *, covers: bytes | None = b"{}", nonce: int = 0) -> dict[str, str]:
    issued = int(time.time() * 1000)
    stamp = Stamp(
        issued, issued + 10_000, f"{nonce:016x}", "ledger", body=None if covers is None else digest_of(covers)
    )
    return {
        "X-Fencing-Token": "42",
        "X-Fencing-Proof": sign(KEY, stamp, Passage("POST", path.encode(), b"", b"42")).decode(),
    }


async def ask(
    app: Application, headers: dict[str, str], *body: bytes, method: str = "POST", path: str = "/v1", ends: bool = True
) -> tuple[int, dict[str, str], bytes]:
    """One request as a server hands it to an application: the body in pieces, and then, perhaps, its end."""
    told: list[Any] = []
    coming = [{"type": "http.request", "body": part, "more_body": True} for part in body]
    coming.append({"type": "http.request", "body": b"", "more_body": False} if ends else {"type": "http.disconnect"})

    async def receive() -> Any:
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    lines.append((b"content-type", b"application/json"))
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": lines}
    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], found, b"".join(message.get("body", b"") for message in told[1:])


def fastapi(gatekeeper: Gatekeeper) -> FastAPI:
    app = FastAPI()
    app.add_middleware(Fenced, gatekeeper=gatekeeper)

    @app.post("/v1")
    async def write(body: dict[str, Any], request: Request) -> dict[str, Any]:
        fencing = request.scope["fencegate"]
        return {"got": body, "role": fencing.role, "token": fencing.token}

    @app.post("/open")
    async def open_write(request: Request) -> bool:
        return "fencegate" in request.scope

    return app


async def test_an_application_gets_the_body_that_was_compared_and_what_was_verified(gatekeeper: Gatekeeper) -> None:
    body = json.dumps({"amount": 1}).encode()
    status, _, answer = await ask(fastapi(gatekeeper), proved(covers=body), body[:4], body[4:])
    assert (status, json.loads(answer)) == (200, {"got": {"amount": 1}, "role": "ledger", "token": 42})


async def test_what_the_gate_did_not_let_through_reaches_no_code_of_the_application(gatekeeper: Gatekeeper) -> None:
    app = fastapi(gatekeeper)
    for headers, body in (({}, b"{}"), (proved(), b"[]"), (proved("/v2"), b"{}"), (proved(), b"x" * (MOST_BODY + 9))):
        status, told, answer = await ask(app, headers, body)
        assert (status, told["content-type"], told["x-fencing-applied"]) == (403, "application/problem+json", "no")
        assert json.loads(answer)["code"] == told["x-fencing-outcome"]


async def test_an_open_path_is_open_and_told_nothing(gatekeeper: Gatekeeper) -> None:
    status, _, answer = await ask(fastapi(gatekeeper), {}, path="/open")
    assert (status, answer) == (200, b"false")


async def test_a_body_that_is_not_covered_streams_through_untouched(gatekeeper: Gatekeeper) -> None:
    pieces: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive())["more_body"]:
            pieces.append(message["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body"})

    large = [b"x" * MOST_BODY] * 3
    assert (await ask(Fenced(app, gatekeeper), proved(covers=None), *large))[0] == 201
    assert pieces == large


async def test_a_body_that_breaks_off_reaches_nobody_and_uses_nothing_up(gatekeeper: Gatekeeper) -> None:
    app, headers = fastapi(gatekeeper), proved()
    assert (await ask(app, headers, b"{", ends=False))[1]["x-fencing-outcome"] == "request_malformed"
    assert (await ask(app, headers, b"{}"))[0] == 200


async def test_a_proof_that_arrives_many_times_at_once_is_taken_once(gatekeeper: Gatekeeper) -> None:
    app, headers = fastapi(gatekeeper), proved()
    statuses = [status for status, _, _ in await asyncio.gather(*(ask(app, headers, b"{}") for _ in range(20)))]
    assert sorted(statuses) == [200, *[403] * 19]


@pytest.mark.parametrize(("root", "status"), [("/open", 403), ("/api", 200)])
async def test_a_prefix_of_the_server_opens_nothing(gatekeeper: Gatekeeper, root: str, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def below(scope: Any, receive: Any, send: Any) -> None:
        path = "/open/v1" if root == "/open" else "/api/open"
        await Fenced(app, gatekeeper)({**scope, "root_path": root, "path": path}, receive, send)

    assert (await ask(below, {}))[0] == status


async def test_no_websocket_is_opened_past_the_check(gatekeeper: Gatekeeper) -> None:
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(message)

    for path in ("/v1", "/open"):
        await Fenced(app, gatekeeper)({"type": "websocket", "path": path, "headers": []}, receive, send)
    assert (told, reached) == ([{"type": "websocket.close", "code": 1008, "reason": "upgrade_refused"}], ["/open"])


async def test_the_lifespan_of_the_application_is_its_own(gatekeeper: Gatekeeper) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        return None

    await Fenced(app, gatekeeper)({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]


class Awaited:
    """A fence that has to be waited for, and may be away."""

    def __init__(self) -> None:
        self.mark = HighWaterMark()
        self.away = False

    async def raise_to(self, role: str, token: int) -> int:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the database is down")
        return self.mark.raise_to(role, token)


@pytest.mark.parametrize("kind", [HighWaterMark, Awaited])
async def test_a_service_that_checks_by_itself_refuses_the_stale(kind: Any) -> None:
    app = fastapi(by_itself(kind()))
    assert (await ask(app, {"X-Fencing-Token": "42"}, b"{}"))[0] == 200
    status, headers, body = await ask(app, {"X-Fencing-Token": "41"}, b"{}")
    assert (status, headers["x-fencing-outcome"], headers["x-fencing-max-seen"]) == (409, "stale_token", "42")
    assert json.loads(body)["presented_token"] == 41
    assert (await ask(app, {}, b"{}"))[1]["x-fencing-outcome"] == "token_required"


async def test_a_fence_that_cannot_be_asked_refuses(gatekeeper: Gatekeeper) -> None:
    fence = Awaited()
    fence.away = True
    status, headers, _ = await ask(fastapi(by_itself(fence)), {"X-Fencing-Token": "42"}, b"{}")
    assert (status, headers["x-fencing-outcome"], headers["retry-after"]) == (503, "fence_unavailable", "1")


class AwaitedMemory:
    """A memory of used proofs that has to be waited for, and may be away."""

    def __init__(self) -> None:
        self.memory = ProcessMemory()
        self.away = False

    async def first_use(self, mark: str, until: float) -> bool:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("the database is down")
        return self.memory.first_use(mark, until)


async def test_a_memory_of_used_proofs_may_be_waited_for_and_refuses_where_it_is_away(tmp_path: Path) -> None:
    (tmp_path / "proof.keys").write_text(f"k {'s' * 32}\n")
    memory, fence = AwaitedMemory(), HighWaterMark()
    app = fastapi(Gatekeeper(proof_key_file=tmp_path / "proof.keys", used_proofs=memory, fence=fence))
    memory.away = True
    status, headers, body = await ask(app, proved(), b"{}")
    assert (status, headers["x-fencing-outcome"]) == (503, "fence_unavailable")
    assert b"memory of used proofs cannot be asked: the database is down" in body
    assert fence.raise_to("ledger", 1) == 1, "what is refused raises nothing"
    memory.away = False
    headers = proved()
    assert [(await ask(app, headers, b"{}"))[0] for _ in range(3)] == [200, 403, 403]
