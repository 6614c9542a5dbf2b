"""The gateway ÷ a gateway that fences each request by itself (``naive.py``): what group commit is worth."""

from __future__ import annotations

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, answers, measured, micros, paired
from bench.servers import gateway, postgres


def run(rounds: int, seconds: float) -> list[Answer]:
    with (
        postgres() as first,
        gateway(first, ROUTE) as ours,
        postgres() as second,
        gateway(second, ROUTE, module="bench.naive") as naive,
    ):
        a, b = paired(
            rounds,
            lambda: measured(
                lambda: http(ours.address, seconds, 64, token=ours.token), gateway=ours.pid, postgres=first.pid
            ),
            lambda: measured(
                lambda: http(naive.address, seconds, 64, token=naive.token), gateway=naive.pid, postgres=second.pid
            ),
        )
    if micros(b)["postgres"] < 2 * micros(a)["postgres"]:
        raise RuntimeError(
            "the peer's writes cost Postgres no more than ours: its store was not put in place (naive.py)"
        )
    return [answers("÷ a gateway that fences each request by itself, 64 connections", "≥ 15", a, b)]
