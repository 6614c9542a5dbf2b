"""Thousands of clients that are refused in one instant: what they then ask of the gateways, second by second."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fencegate.client.answers import Answer
from fencegate.client.machine import Decision, Done, Found, Operation, Policy, Rediscover, Send, found, observe
from fencegate.errors import problem

CLIENTS = 5_000
POLICY = Policy(("https://a.example", "https://b.example"))
A, B = POLICY.origins
BIN = 0.1
"""Seconds over which the load is taken together."""


def _refusal(code: str, retry_after: float, leader: str | None = None, token: int | None = None) -> Answer:
    kind = problem(code)
    return Answer(
        kind.status,
        code,
        kind.retry,
        kind.applied,
        max_seen=token,
        leader=leader,
        leader_token=token,
        retry_after=retry_after,
    )


def _loads(refusal: Answer, draw: random.Random) -> Counter[int]:
    """Requests per bin, of whatever kind, from all clients that were refused at 0 and that B then serves."""
    asked: Counter[int] = Counter()
    for _ in range(CLIENTS):
        operation = Operation(deadline=60.0, origin=A, token=1, key="k")
        decision: Decision = observe(POLICY, operation, refusal, now=0.0, jitter=draw.random(), budget=10.0)
        while not isinstance(decision, Done):
            assert isinstance(decision, Send | Rediscover)
            now = decision.not_before
            asked[int(now / BIN)] += 1
            jitter = draw.random()
            if isinstance(decision, Rediscover):
                result = Found(A, B, 2)
                decision = found(POLICY, decision.operation, result, now=now, jitter=jitter, budget=10.0)
            else:
                answer = Answer(201, "accepted", applied="yes")
                decision = observe(POLICY, decision.operation, answer, now=now, jitter=jitter, budget=10.0)
    return asked


# Field case 99: jenkinsci/swarm-plugin#163, multica-ai/multica#7471.
@pytest.mark.parametrize("retry_after", [1.0, 2.0, 15.0])
@pytest.mark.parametrize("code", ["no_leader", "draining", "fence_unavailable", "overloaded"])
def test_clients_refused_in_one_instant_do_not_come_back_in_one(code: str, retry_after: float) -> None:
    asked = _loads(_refusal(code, retry_after), random.Random(7))
    base = CLIENTS * BIN  # As if each of them sent once a second.
    requests = 2 if code in ("no_leader", "draining") else 1  # Who leads is asked first.
    assert max(asked.values()) <= 2.2 * base * requests
    assert min(asked) >= int(retry_after / BIN), "nobody comes before the time that was asked for"
    assert max(asked) <= (retry_after + POLICY.backoff_cap + POLICY.backoff_base) / BIN, "nor much later"
