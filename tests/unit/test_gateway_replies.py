"""Refusals on the wire: every problem in the registry, headers and body saying the same."""

from __future__ import annotations

import orjson
import pytest

from fencegate.errors import PROBLEMS, Leader, Problem, Refusal, problem
from fencegate.gateway.replies import accepted_headers, origin_only, refusal_reply


@pytest.mark.parametrize("kind", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_every_problem_is_sent_with_headers_and_body_that_agree(kind: Problem) -> None:
    leader = Leader("https://a.example", "us", 9)
    reply = refusal_reply(Refusal(kind, "why", "r", 3, 7, leader, 1200), "eu")
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    assert isinstance(reply.body, bytes)
    body = orjson.loads(reply.body)
    assert reply.status == body["status"] == kind.status
    assert headers["X-Fencing-Outcome"] == body["code"] == kind.code
    assert headers["X-Fencing-Applied"] == body["applied"] == kind.applied
    assert headers["X-Fencing-Retry"] == body["retry"] == kind.retry
    assert headers["X-Fencing-Region"] == body["region"] == "eu"
    assert headers["X-Fencing-Max-Seen"] == str(body["max_token_seen"]) == "7"
    assert headers["X-Fencing-Leader"] == body["leader"]["url"] == "https://a.example"
    assert headers["Retry-After"] == "2"
    assert body["retry_after_ms"] == 1200
    assert "Location" not in headers


@pytest.mark.parametrize(
    "url",
    [
        "https://a/",
        "https://a/x",
        "https://u@a",
        "https://a?b",
        "https://a#b",
        "ftp://a",
        "//a",
        "a",
        "https://a\r\nX: y",
    ],
)
def test_a_hint_is_an_origin_or_nothing(url: str) -> None:
    assert origin_only(url) is None
    reply = refusal_reply(Refusal(problem("not_leader"), "why", leader=Leader(url, "us", 9)), "eu")
    assert b"X-Fencing-Leader" not in dict(reply.headers)
    assert isinstance(reply.body, bytes)
    assert "leader" not in orjson.loads(reply.body)


def test_what_is_not_known_is_left_out() -> None:
    reply = refusal_reply(Refusal(problem("token_required"), "why"), "eu")
    assert isinstance(reply.body, bytes)
    assert not {"role", "presented_token", "max_token_seen", "leader"} & orjson.loads(reply.body).keys()
    assert b"Retry-After" not in dict(reply.headers)


def test_extra_members_cannot_replace_the_contracts() -> None:
    reply = refusal_reply(Refusal(problem("stale_token"), "why", extra={"code": "x", "sqlstate": "P0001"}), "eu")
    assert isinstance(reply.body, bytes)
    body = orjson.loads(reply.body)
    assert (body["code"], body["sqlstate"]) == ("stale_token", "P0001")


def test_an_acceptance_says_so() -> None:
    assert accepted_headers("eu", 7, replayed=True) == [
        (b"X-Fencing-Outcome", b"accepted"),
        (b"X-Fencing-Max-Seen", b"7"),
        (b"X-Fencing-Region", b"eu"),
        (b"Idempotent-Replayed", b"true"),
    ]
