"""Two gateways on one store ÷ one: the load is the same in all, 64 connections, half of them to each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.ledger_writes import ROUTE
from bench.load import Run, http
from bench.rounds import Answer, answers, measured, paired
from bench.servers import Gateway, gateway, postgres

CONNECTIONS = 64


def run(rounds: int, seconds: float) -> list[Answer]:
    with postgres() as database, gateway(database, ROUTE) as one, gateway(database, ROUTE, node="gw-2") as two:
        a, b = paired(
            rounds,
            lambda: measured(lambda: _both(one, two, seconds), first=one.pid, second=two.pid, postgres=database.pid),
            lambda: measured(
                lambda: http(one.address, seconds, CONNECTIONS, token=one.token), first=one.pid, postgres=database.pid
            ),
        )
    return [answers("two gateways on one store ÷ one, 64 connections in all", "≥ 1", a, b)]


def _both(one: Gateway, two: Gateway, seconds: float) -> Run:
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda g: http(g.address, seconds, CONNECTIONS // 2, token=g.token), (one, two)))
    first, second = runs
    return Run(
        first.rate + second.rate,
        max(first.p50, second.p50),
        max(first.p99, second.p99),
        first.count + second.count,
    )
