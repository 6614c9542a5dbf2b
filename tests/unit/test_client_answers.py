"""Reading answers: what is believed, and what counts as nobody's."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.client.answers import Answer, origin_of, read_answer
from fencegate.errors import PROBLEMS, Retry

STALE = {
    "X-Fencing-Outcome": "stale_token",
    "X-Fencing-Applied": "no",
    "X-Fencing-Retry": "rediscover",
    "X-Fencing-Max-Seen": "43",
    "X-Fencing-Leader": "https://b.example",
}


def read(status: int, headers: dict[str, str], body: bytes = b"") -> Answer:
    return read_answer(status, headers.items(), body)


def test_a_refusal_is_read_from_its_headers_alone() -> None:
    answer = read(409, {**STALE, "Retry-After": "2"})
    assert (answer.outcome, answer.retry, answer.applied) == ("stale_token", Retry.REDISCOVER, "no")
    assert (answer.max_seen, answer.leader, answer.retry_after) == (43, "https://b.example", 2.0)


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_every_problem_of_the_registry_is_read_as_the_registry_says(code: str) -> None:
    problem = PROBLEMS[code]
    headers = {
        "x-fencing-outcome": code,
        "x-fencing-applied": problem.applied,
        "x-fencing-retry": problem.retry.value,
    }
    answer = read(problem.status, headers)
    assert (answer.outcome, answer.retry, answer.applied) == (code, problem.retry, problem.applied)


def test_the_token_of_the_hint_comes_from_the_body_only_where_its_leader_is_the_headers() -> None:
    def with_body(leader: object) -> int | None:
        return read(409, STALE, json.dumps({"leader": leader}).encode()).leader_token

    assert with_body({"url": "https://b.example", "token": 43}) == 43
    assert with_body({"url": "https://B.example:443/", "token": "43"}) == 43
    assert with_body({"url": "https://evil.example", "token": 43}) is None
    assert with_body({"url": "https://b.example", "token": True}) is None
    assert with_body({"url": "https://b.example", "token": 2**63}) is None
    assert with_body("https://b.example") is None


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (409, {}),
        (200, {}),
        (200, STALE),
        (503, STALE),
        (409, {**STALE, "X-Fencing-Outcome": "Stale_Token"}),
        (409, {**STALE, "X-Fencing-Outcome": "stale_token, accepted"}),
        (409, {**STALE, "X-Fencing-Outcome": ""}),
        (409, {**STALE, "X-Fencing-Outcome": "sometime_later", "X-Fencing-Retry": "maybe"}),
    ],
)
def test_an_answer_that_cannot_be_the_gateways_says_nothing(status: int, headers: dict[str, str]) -> None:
    answer = read(status, headers)
    assert (answer.outcome, answer.applied, answer.leader) == (None, "unknown", None)


def test_a_header_that_comes_twice_has_no_value() -> None:
    twice = [("X-Fencing-Outcome", "accepted"), ("x-fencing-outcome", "accepted")]
    assert read_answer(201, twice).outcome is None


def test_where_header_and_registry_differ_the_more_cautious_holds() -> None:
    assert read(409, {**STALE, "X-Fencing-Applied": "unknown"}).applied == "unknown"
    assert read(409, {"X-Fencing-Outcome": "stale_token"}).applied == "unknown"
    assert read(409, {**STALE, "X-Fencing-Retry": "never"}).retry is Retry.NEVER
    lying = {"X-Fencing-Outcome": "outcome_unknown", "X-Fencing-Applied": "no", "X-Fencing-Retry": "after-delay"}
    assert (read(502, lying).applied, read(502, lying).retry) == ("unknown", Retry.IF_IDEMPOTENT)
    assert read(504, lying).outcome == "outcome_unknown"
    eager = {"X-Fencing-Outcome": "token_required", "X-Fencing-Applied": "no", "X-Fencing-Retry": "after-delay"}
    assert read(428, eager).retry is Retry.NEVER


def test_a_code_of_a_newer_gateway_is_acted_on_by_its_headers() -> None:
    newer = {"X-Fencing-Outcome": "quota_reached", "X-Fencing-Applied": "no", "X-Fencing-Retry": "after-delay"}
    answer = read(429, newer)
    assert (answer.outcome, answer.retry, answer.applied) == ("quota_reached", Retry.AFTER_DELAY, "no")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("15", 15.0), ("9" * 5000, 1e9), ("-1", None), ("1.5", None), ("", None), ("١", None)],
)
def test_retry_after_is_delta_seconds_or_nothing(text: str, seconds: float | None) -> None:
    assert read(503, {"Retry-After": text}).retry_after == seconds
    assert read(503, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}).retry_after is None


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://a.example", "https://a.example"),
        ("HTTPS://A.Example:443/", "https://a.example"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_origin_has_one_normal_form(text: str, origin: str) -> None:
    assert origin_of(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example",
        "//a.example",
        "ftp://a.example",
        "javascript:alert(1)",
        "https://a.example/path",
        "https://a.example?x",
        "https://a.example#x",
        "https://user@a.example",
        "https://a.example@evil.example",
        "https://a.example\\@evil.example",
        "https://a.exa\tmple",
        " https://a.example",
        "https://a.example\r\nX: y",
        "https://a.example:0",
        "https://a.example:99999",
        "https://a.example:x",
        "https://[::1",
        "https://аpple.example",
        "https://a.example, https://b.example",
        "https://" + "a" * 400,
    ],
)
def test_what_is_no_plain_origin_is_none(text: str) -> None:
    assert origin_of(text) is None


@given(
    st.integers(100, 999),
    st.lists(
        st.tuples(
            st.sampled_from([*STALE, "Retry-After", "Idempotent-Replayed", "X-Fencing-Region"]),
            st.one_of(st.text(max_size=30), st.sampled_from(list(STALE.values()))),
        )
    ),
    st.one_of(st.binary(), st.just(b"[" * 100_000), st.just(b'{"leader": {"url": 7, "token": []}}')),
)
def test_nothing_that_comes_over_the_wire_makes_the_reader_raise(
    status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    answer = read_answer(status, headers, body)
    assert answer.outcome is not None or answer.applied == "unknown"
