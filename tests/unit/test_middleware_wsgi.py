"""The check before a WSGI application: Flask, and bare ones that show what reaches them."""

from __future__ import annotations

import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, request

from fencegate.errors import Unavailable
from fencegate.key_ring import SharedKey
from fencegate.middleware import FolderMemory, Gatekeeper, HighWaterMark
from fencegate.middleware.gatekeeper import MOST_BODY
from fencegate.middleware.wsgi import Fenced
from fencegate.proof import Passage, Stamp, digest_of, sign

KEY = SharedKey("k", b"s" * 32)


@pytest.fixture
def gatekeeper(tmp_path: Path) -> Gatekeeper:
    file = tmp_path / "proof.keys"
    file.write_text(f"k {'s' * 32}\n")
    return Gatekeeper(proof_key_file=file)


def proved(path: bytes = b"/v1", *, query: bytes = b"", covers: bytes | None = b"{}") -> dict[str, str]:
    issued = int(time.time() * 1000)
    stamp = Stamp(issued, issued + 10_000, "0" * 16, "ledger", body=None if covers is None else digest_of(covers))
    return {"X-Fencing-Token": "42", "X-Fencing-Proof": sign(KEY, stamp, Passage("POST", path, query, b"42")).decode()}


def flask(gatekeeper: Gatekeeper) -> Flask:
    app = Flask(__name__)
    app.wsgi_app = Fenced(app.wsgi_app, gatekeeper)  # type: ignore[method-assign]

    @app.post("/v1")
    @app.post("/v1/<name>")
    def write(name: str = "") -> dict[str, Any]:
        fencing = request.environ["fencegate"]
        return {"got": request.get_json(), "token": fencing.token, "name": name}

    return app


def post(app: Flask, headers: dict[str, str], body: bytes = b"{}", path: str = "/v1") -> Any:
    return app.test_client().post(path, headers=headers, data=body, content_type="application/json")


def test_an_application_gets_the_body_that_was_compared_and_what_was_verified(gatekeeper: Gatekeeper) -> None:
    body = json.dumps({"amount": 1}).encode()
    answer = post(flask(gatekeeper), proved(covers=body), body)
    assert (answer.status_code, answer.json) == (200, {"got": {"amount": 1}, "token": 42, "name": ""})


def test_the_path_is_compared_as_the_application_reads_it_and_the_query_as_it_was_sent(gatekeeper: Gatekeeper) -> None:
    headers = proved("/v1/é a".encode(), query=b"a=%20b")
    assert post(flask(gatekeeper), headers, path="/v1/%C3%A9%20a?a=+b").status_code == 403
    assert post(flask(gatekeeper), headers, path="/v1/%C3%A9%20a?a=%20b").json["name"] == "é a"


def test_what_the_gate_did_not_let_through_reaches_no_code_of_the_application(gatekeeper: Gatekeeper) -> None:
    app = flask(gatekeeper)
    for headers, body in (({}, b"{}"), (proved(), b"[]"), (proved(b"/v2"), b"{}"), (proved(), b"x" * (MOST_BODY + 9))):
        answer = post(app, headers, body)
        assert (answer.status_code, answer.content_type) == (403, "application/problem+json")
        assert (answer.headers["X-Fencing-Applied"], answer.json["code"]) == ("no", answer.headers["X-Fencing-Outcome"])


def environ(body: bytes, **more: Any) -> dict[str, Any]:
    headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in proved().items()}
    made = {"REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": "/v1", "wsgi.input": io.BytesIO(body)}
    return {**made, **headers, **more}


@pytest.mark.parametrize(
    ("more", "body", "status"),
    [
        ({"CONTENT_LENGTH": "2"}, b"{}", "201"),
        ({"CONTENT_LENGTH": "2"}, b"{}POST /next", "201"),
        ({"CONTENT_LENGTH": "2"}, b"{", "403"),
        ({"CONTENT_LENGTH": ""}, b"{}", "403"),
        ({"wsgi.input_terminated": True}, b"{}", "201"),
        ({"SCRIPT_NAME": "/v1", "PATH_INFO": "", "CONTENT_LENGTH": "2"}, b"{}", "201"),
        ({"SCRIPT_NAME": "/other", "CONTENT_LENGTH": "2"}, b"{}", "403"),
        ({"HTTP_X_FENCING_TOKEN": "42,42", "CONTENT_LENGTH": "2"}, b"{}", "403"),
    ],
)
def test_a_server_may_tell_of_a_body_and_a_path_in_its_own_way(
    gatekeeper: Gatekeeper, more: dict[str, Any], body: bytes, status: str
) -> None:
    read: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        read.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("201 Created", [])
        return []

    told: list[str] = []
    Fenced(app, gatekeeper)(environ(body, **more), lambda status, headers: told.append(status[:3]))
    assert (told, read) == ([status], [b"{}"] if status == "201" else [])


def test_of_a_body_that_no_proof_can_cover_no_more_is_read_than_shows_that(gatekeeper: Gatekeeper) -> None:
    stream = io.BytesIO(b"x" * (3 * MOST_BODY))
    told: list[str] = []
    fenced = Fenced(lambda environ, start_response: [], gatekeeper)
    long = environ(b"", CONTENT_LENGTH=str(3 * MOST_BODY)) | {"wsgi.input": stream}
    fenced(long, lambda status, headers: told.append(status[:3]))
    assert (told, stream.tell()) == (["403"], MOST_BODY + 1)


def test_a_refused_head_has_no_body(tmp_path: Path) -> None:
    gatekeeper = Gatekeeper(fence=HighWaterMark(), role="ledger", methods=["HEAD"])
    asked = {"REQUEST_METHOD": "HEAD", "PATH_INFO": "/v1"}
    assert list(Fenced(lambda *_: [b"reached"], gatekeeper)(asked, lambda *_: None)) == []


def test_a_proof_that_arrives_in_many_threads_at_once_is_taken_once(gatekeeper: Gatekeeper) -> None:
    app, headers, together = flask(gatekeeper), proved(), threading.Barrier(8)

    def send(_: int) -> int:
        together.wait(10)
        return int(post(app, headers).status_code)

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(send, range(8))) == [200, *[403] * 7]


def test_of_many_threads_none_is_taken_below_what_another_has_raised() -> None:
    fence = HighWaterMark()
    app, together = flask(Gatekeeper(fence=fence, role="ledger")), threading.Barrier(8)

    def send(token: int) -> tuple[int, int]:
        together.wait(10)
        return token, int(post(app, {"X-Fencing-Token": str(token)}).status_code)

    with ThreadPoolExecutor(8) as threads:
        found = dict(threads.map(send, range(40, 48)))
    assert found[47] == 200
    assert set(found.values()) <= {200, 409}
    assert fence.raise_to("ledger", 1) == 47
    assert post(app, {"X-Fencing-Token": "46"}).json["code"] == "stale_token"


def test_a_fence_that_cannot_be_asked_refuses_and_one_that_is_awaited_is_not_for_wsgi() -> None:
    class Away:
        def raise_to(self, role: str, token: int) -> int:
            raise Unavailable("the database is down")

    answer = post(flask(Gatekeeper(fence=Away(), role="ledger")), {"X-Fencing-Token": "42"})
    assert (answer.status_code, answer.json["code"]) == (503, "fence_unavailable")

    class Awaited:
        async def raise_to(self, role: str, token: int) -> int:
            return token

    def reached(*_: Any) -> list[bytes]:
        raise AssertionError

    asked = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1", "HTTP_X_FENCING_TOKEN": "42"}
    with pytest.raises(TypeError, match="for ASGI"):
        Fenced(reached, Gatekeeper(fence=Awaited(), role="ledger"))(asked, lambda *_: None)


def test_a_memory_of_used_proofs_that_cannot_be_asked_refuses_and_one_that_is_awaited_is_not_for_wsgi(
    tmp_path: Path,
) -> None:
    (tmp_path / "proof.keys").write_text(f"k {'s' * 32}\n")

    def with_memory(memory: Any) -> Gatekeeper:
        return Gatekeeper(proof_key_file=tmp_path / "proof.keys", used_proofs=memory)

    class Away:
        def first_use(self, mark: str, until: float) -> bool:
            raise Unavailable("the disk is full")

    answer = post(flask(with_memory(Away())), proved())
    assert (answer.status_code, answer.json["code"]) == (503, "fence_unavailable")
    assert "memory of used proofs cannot be asked: the disk is full" in answer.json["detail"]

    class Awaited:
        async def first_use(self, mark: str, until: float) -> bool:
            return True

    with pytest.raises(TypeError, match="memory of used proofs answers at once"):
        post(flask(with_memory(Awaited())), proved())

    headers = proved()
    first, other = (flask(with_memory(FolderMemory(tmp_path / "used"))) for _ in range(2))
    assert post(first, headers).status_code == 200
    assert post(other, headers).json["code"] == "proof_invalid"
