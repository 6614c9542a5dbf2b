"""Two gateways on one store ÷ one: the load is the same in all, half of the connections to each.

On two cores they share these with client and Postgres. So it is also asked with a quarter of a core for each gateway,
as on machines of their own: what they do to each other in the store is left then.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.ledger_writes import ROUTE
from bench.load import Run, http
from bench.quota import held
from bench.rounds import Answer, answers, measured, paired
from bench.servers import Database, Gateway, gateway, postgres

CORES = 0.25


def run(rounds: int, seconds: float) -> list[Answer]:
    with postgres() as database, gateway(database, ROUTE) as one, gateway(database, ROUTE, node="gw-2") as two:
        found = [_compared(database, one, two, count, "", rounds, seconds) for count in (64, 128)]
        with held([one.pid, two.pid], CORES):
            name = f", {CORES:g} of a core for each gateway"
            return [*found, _compared(database, one, two, 128, name, rounds, seconds)]


def _compared(
    database: Database, one: Gateway, two: Gateway, count: int, name: str, rounds: int, seconds: float
) -> Answer:
    """``count`` connections in all."""
    a, b = paired(
        rounds,
        lambda: measured(lambda: _both(one, two, count, seconds), first=one.pid, second=two.pid, postgres=database.pid),
        lambda: measured(
            lambda: http(one.address, seconds, count, token=one.token), first=one.pid, postgres=database.pid
        ),
    )
    return answers(f"two gateways on one store ÷ one, {count} connections in all{name}", "≥ 1", a, b)


def _both(one: Gateway, two: Gateway, count: int, seconds: float) -> Run:
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda g: http(g.address, seconds, count // 2, token=g.token), (one, two)))
    first, second = runs
    return Run(
        first.rate + second.rate,
        max(first.p50, second.p50),
        max(first.p99, second.p99),
        first.count + second.count,
    )
