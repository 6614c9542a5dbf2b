"""The vectors in ``sdk/conformance`` hold for this SDK: the real client, before a scripted gate, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from fencegate.client import FencedClient
from fencegate.client.answers import Answer, Lost, read_answer
from fencegate.client.exchange import Reply
from fencegate.client.failures import (
    DeadlineExceeded,
    FencedError,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Refused,
    RetriesExhausted,
    StaleToken,
)
from fencegate.client.request import Wanted
from fencegate.errors import PROBLEMS
from fencegate.testing.virtual_time import run_in_virtual_time

FOLDER = Path(__file__).parents[2] / "sdk" / "conformance"
KINDS = {
    StaleToken: "stale",
    NotLeader: "not_leader",
    NoLeader: "no_leader",
    Refused: "refused",
    OutcomeUnknown: "outcome_unknown",
    DeadlineExceeded: "deadline",
    RetriesExhausted: "exhausted",
}
DISCOVERY = "/.well-known/fencegate/leader/ledger"


def vectors() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("vectors/*.json")):
        for vector in json.loads(file.read_text()):
            yield pytest.param(vector, id=f"{file.stem}: {vector['name']}")


class Gate:
    """Answers by the script, and notes where the client departs from it."""

    def __init__(self, exchanges: list[dict[str, Any]], key: str | None) -> None:
        self.left = list(exchanges)
        self.faults: list[str] = []
        self._key = key
        self._began = _now()
        self._asked: set[str] = set()

    async def exchange(
        self, origin: str, want: Wanted, headers: CIMultiDict[str], limit: float, answer_limit: int
    ) -> tuple[Answer | Lost, Reply | None]:
        discovery = want.path == DISCOVERY
        answer = self._discover(origin) if discovery else self._send(origin, headers)
        await asyncio.sleep(answer.get("after_ms", 0) / 1000)
        return _as_exchange(answer)

    def _discover(self, origin: str) -> dict[str, Any]:
        if not self.left or "discover" not in self.left[0]:
            return self._fault(f"asked {origin} who leads")
        self._at(self.left[0])
        self._asked.add(origin)
        answer: dict[str, Any] = self.left[0]["discover"][origin]
        if self._asked == set(self.left[0]["discover"]):
            self.left.pop(0)
            self._asked = set()
        return answer

    def _send(self, origin: str, headers: CIMultiDict[str]) -> dict[str, Any]:
        token, key, grant = (headers.get(name) for name in ("X-Fencing-Token", "Idempotency-Key", "X-Fencing-Grant"))
        if not self.left or "send" not in self.left[0]:
            return self._fault(f"sent to {origin}")
        due = self.left.pop(0)
        self._at(due)
        wanted = {"key": self._key, "grant": None, **due["send"]}
        found = {"key": key, "origin": origin, "token": token, "grant": grant}
        if found != wanted:
            self.faults.append(f"sent {found}, expected {wanted}")
        answer: dict[str, Any] = due["answer"]
        return answer

    def _at(self, due: dict[str, Any]) -> None:
        passed = round((_now() - self._began) * 1000)
        if passed != due["at_ms"]:
            self.faults.append(f"after {passed} ms, expected at {due['at_ms']}: {due}")

    def _fault(self, what: str) -> dict[str, Any]:
        self.faults.append(f"{what}, expected {self.left[:1] or 'nothing more'}")
        return {"lost": "not_sent"}


def _as_exchange(answer: dict[str, Any]) -> tuple[Answer | Lost, Reply | None]:
    if "lost" in answer:
        return Lost(sent=answer["lost"] == "sent"), None
    status, lines, body = _as_http(answer)
    if answer.get("cut"):
        return read_answer(status, lines, complete=False), None
    return read_answer(status, lines, body), Reply(status, CIMultiDictProxy(CIMultiDict(lines)), body)


def _as_http(answer: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    if "refusal" in answer:
        return _refusal(answer)
    if "accepted" in answer:
        replayed = [("Idempotent-Replayed", "true")] if answer.get("replayed") else []
        return answer["accepted"], [("X-Fencing-Outcome", "accepted"), *replayed], b"{}"
    if "token" in answer:
        leader = {"url": answer["leader"], "region": "eu", "state": "active"}
        grant = {"grant": answer["grant"]} if "grant" in answer else {}
        document = {"role": "ledger", "leader": leader, "token": int(answer["token"]), **grant}
        return 200, [("X-Fencing-Region", "eu")], json.dumps(document).encode()
    return answer["status"], [(name, value) for name, value in answer["headers"]], answer.get("body", "").encode()


def _refusal(answer: dict[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    problem = json.loads((FOLDER / "problems.json").read_text())[answer["refusal"]]
    lines = [
        ("X-Fencing-Outcome", answer["refusal"]),
        ("X-Fencing-Applied", problem["applied"]),
        ("X-Fencing-Retry", problem["retry"]),
    ]
    document: dict[str, Any] = {"code": answer["refusal"], "title": problem["title"], "status": problem["status"]}
    if "max_seen" in answer:
        lines.append(("X-Fencing-Max-Seen", answer["max_seen"]))
        document["max_token_seen"] = int(answer["max_seen"])
    if "leader" in answer:
        lines.append(("X-Fencing-Leader", answer["leader"]))
        document["leader"] = {"url": answer["leader"]}
        if "leader_token" in answer:
            document["leader"]["token"] = int(answer["leader_token"])
    if "retry_after" in answer:
        lines.append(("Retry-After", str(answer["retry_after"])))
    return problem["status"], lines, json.dumps(document).encode()


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _one(client: FencedClient, operation: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    request = operation["request"]
    gate = Gate(operation["exchanges"], request.get("key"))
    monkeypatch.setattr(client, "_exchange", gate.exchange)
    read = request["method"] == "GET"
    try:
        response = await client.request(
            request["method"],
            request["path"],
            json=request.get("json"),
            idempotency_key=None if read else (request["key"] or False),
            token=int(request["token"]) if "token" in request else None,
            grant=request.get("grant"),
            deadline=request["deadline_ms"] / 1000 if "deadline_ms" in request else None,
        )
        result: dict[str, Any] = {"done": {"status": response.status, "replayed": response.replayed}}
    except FencedError as error:
        result = {"fail": {"kind": KINDS[type(error)], "code": error.code}}
    assert not gate.faults
    assert not gate.left
    assert result == operation["result"]


@pytest.mark.parametrize("vector", list(vectors()))
def test_the_client_does_what_the_vector_says(vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dict(vector["client"])
    jitter = settings.pop("jitter", 0.0)
    monkeypatch.setattr(random, "random", lambda: jitter)

    async def story() -> None:
        async with FencedClient(settings.pop("urls"), "ledger", **settings) as client:
            for operation in vector["operations"]:
                await _one(client, operation, monkeypatch)

    run_in_virtual_time(story())


def test_the_table_of_problems_is_the_products() -> None:
    table = json.loads((FOLDER / "problems.json").read_text())
    assert table == {
        code: {"status": kind.status, "title": kind.title, "retry": kind.retry.value, "applied": kind.applied}
        for code, kind in PROBLEMS.items()
    }


def test_every_retryable_problem_of_a_write_and_every_kind_of_failure_has_a_vector() -> None:
    text = "".join(file.read_text() for file in FOLDER.glob("vectors/*.json"))
    assert not [kind for kind in KINDS.values() if kind not in ("not_leader", "no_leader") and f'"{kind}"' not in text]
    for code in (
        "stale_token",
        "not_leader",
        "no_leader",
        "draining",
        "overloaded",
        "fence_unavailable",
        "grant_required",
        "grant_expired",
    ):
        assert f'"{code}"' in text
