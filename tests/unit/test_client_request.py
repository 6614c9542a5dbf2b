"""What a caller may hand to the client, and the errors that say what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from yarl import URL

from fencegate.client.machine import Operation
from fencegate.client.request import Wanted, checked_deadline, checked_settings, checked_token, stamped, wanted
from fencegate.errors import ConfigurationError
from fencegate.tokens import MAX_TOKEN, MalformedKey


def want(method: str = "POST", path: str = "/v1/entries", **changes: object) -> Wanted:
    options: dict[str, object] = {"json": None, "data": None, "params": None, "headers": None, "idempotency_key": None}
    return wanted(method, path, **{**options, **changes})  # type: ignore[arg-type]


def test_a_write_gets_a_key_of_its_own_and_a_read_gets_none() -> None:
    first, second = want().key, want().key
    assert first is not None
    assert UUID(first).version == 4
    assert first != second
    assert want("GET").key is None
    assert want("get").read


def test_a_callers_key_is_kept_and_false_sends_none() -> None:
    assert want(idempotency_key="order-7").key == "order-7"
    assert want(idempotency_key=False).key is None
    with pytest.raises(MalformedKey):
        want(idempotency_key="no spaces allowed")


def test_json_becomes_bytes_once() -> None:
    made = want(json={"a": 1})
    assert (made.body, made.headers["Content-Type"]) == (b'{"a":1}', "application/json")


def test_a_query_becomes_a_part_of_the_path_once() -> None:
    params = {"dry": "no", "mark": "a+b &#é"}
    made = want(path="/v1/entries?dry=yes&n=1", params=params)
    params["dry"] = "changed"
    assert made.path == "/v1/entries?dry=no&n=1&mark=a%2Bb+%26%23%C3%A9"
    assert str(URL("https://a.example" + made.path)) == "https://a.example" + made.path
    assert want(path="//b.example/v1", params={"a": "1"}).path == "//b.example/v1?a=1"


@pytest.mark.parametrize("limit", [1e6, 1e300, float("inf")])
def test_a_try_without_an_end_is_told_to_the_gateway_as_a_long_one_that_it_takes(limit: float) -> None:
    assert stamped(want(), Operation(limit, token=7), limit)["X-Fencing-Timeout-Ms"] == "999999999"


def test_a_callers_content_type_is_the_only_one_however_it_is_spelled() -> None:
    made = stamped(want(json={}, headers={"content-type": "application/ledger+json"}), Operation(1.0, token=7), 1.0)
    assert made.getall("Content-Type") == ["application/ledger+json"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: want(path="v1/entries"), "begin with '/'"),
        (lambda: want(path="@evil.example/"), "begin with '/'"),
        (lambda: want(path="/a\r\nX: y"), "control characters"),
        (lambda: want(path="/a#b"), "'#'"),
        (lambda: want(method="PO ST"), "method"),
        (lambda: want(json={}, data=b"x"), "not both"),
        (lambda: want(headers={"X-Fencing-Token": "9"}), "set by the client"),
        (lambda: want(headers={"x_fencing_token": "9"}), "set by the client"),
        (lambda: want(headers={"Idempotency-Key": "9"}), "set by the client"),
        (lambda: want(headers={"A": "b\r\nc: d"}), "line break"),
        (lambda: want(json={"amount": 100}, headers={"content-length": "5"}), "leave it out"),
        (lambda: want(headers={"Transfer-Encoding": "chunked"}), "leave it out"),
        (lambda: checked_deadline(float("nan")), "deadline must be"),
        (lambda: checked_token(0), "token must be"),
        (lambda: checked_token(MAX_TOKEN + 1), "token must be"),
        (lambda: checked_token(True), "token must be"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_what_to_do(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_a_body_that_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(TypeError, match="must be bytes"):
        want(data=iter([b"x"]))


def test_settings_are_checked_all_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_settings(["https://a.example/path", "b.example"], "", {"deadline": 0, "try_timeout": float("nan")})
    assert len(caught.value.faults) == 5
    with pytest.raises(ConfigurationError, match="at least one"):
        checked_settings([], "ledger", {})
    with pytest.raises(ConfigurationError, match="not one string"):
        checked_settings("https://a.example", "ledger", {})


def test_origins_are_normal_and_not_repeated() -> None:
    assert checked_settings(["https://A.example/", "https://a.example:443"], "ledger/eu-1", {}) == (
        "https://a.example",
    )
