"""Refusals of the middleware say what the gateway's say, in the same words."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fencegate.errors import PROBLEMS, Refusal
from fencegate.gateway.replies import refusal_reply
from fencegate.middleware import guard_refusal
from fencegate.middleware.refusals import answer


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_a_refusal_is_the_gateways_but_for_the_region(code: str) -> None:
    refusal = Refusal(PROBLEMS[code], "Why.", "ledger", 41, 42, retry_after_ms=1500)
    ours, theirs = answer(refusal), refusal_reply(refusal, "eu")
    assert isinstance(theirs.body, bytes)
    headers = {(name.decode(), value.decode()) for name, value in theirs.headers}
    assert ours.status == theirs.status
    assert {*ours.headers, ("X-Fencing-Region", "eu")} == {*headers, ("Content-Length", str(len(ours.body)))}
    document, wanted = json.loads(ours.body), json.loads(theirs.body)
    assert document.pop("instance").startswith("urn:uuid:")
    assert document == {name: value for name, value in wanted.items() if name not in ("instance", "region")}


def error(state: str, detail: object) -> BaseException:
    made = Exception("refused")
    made.sqlstate = state  # type: ignore[attr-defined]
    made.detail = detail if isinstance(detail, str) else json.dumps(detail)  # type: ignore[attr-defined]
    return made


STALE = {"code": "stale_token", "role": "ledger", "presented_token": 41, "max_token_seen": 42, "retry_after_ms": 1000}


def test_what_the_sql_guard_refused_becomes_an_answer_whatever_wraps_it() -> None:
    plain = error("ZF409", STALE)
    wrapped = Exception("sqlalchemy")
    wrapped.orig = plain  # type: ignore[attr-defined]
    raised = Exception("django")
    raised.__cause__ = plain
    psycopg = Exception("psycopg")
    psycopg.sqlstate = "ZF409"  # type: ignore[attr-defined]
    psycopg.diag = SimpleNamespace(message_detail=json.dumps(STALE))  # type: ignore[attr-defined]
    for each in (plain, wrapped, raised, psycopg):
        said = guard_refusal(each)
        assert said is not None
        assert (said.status, dict(said.headers)["X-Fencing-Outcome"]) == (409, "stale_token")
        assert json.loads(said.body)["max_token_seen"] == 42


@pytest.mark.parametrize(
    "other",
    [
        Exception(),
        error("40001", STALE),
        error("ZF501", STALE),
        error("ZF409", "no JSON"),
        error("ZF409", {"code": "?"}),
    ],
)
def test_any_other_error_is_no_refusal(other: BaseException) -> None:
    assert guard_refusal(other) is None


def test_the_middleware_needs_nothing_but_the_standard_library() -> None:
    look = (
        "import sys; before = {*sys.modules}; import fencegate.middleware.asgi, fencegate.middleware.wsgi; "
        "known = {*sys.stdlib_module_names, *before, 'fencegate'}; "
        "print([name for name in sys.modules if name.split('.')[0] not in known and not name.startswith('_')])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout + done.stderr
