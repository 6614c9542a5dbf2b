"""``--workers 2`` ÷ 1, each worker held to a quarter of a core, so that load, upstream and Postgres have idle ones."""

from __future__ import annotations

from pathlib import Path

from bench.ledger_writes import ROUTE
from bench.load import fixed
from bench.quota import held
from bench.rounds import Answer, Measured, answers, measured, paired
from bench.servers import Gateway, gateway, nginx, postgres

CORES = 0.25
CONNECTIONS = 256
"""The kernel spreads them by chance: of 256 the fuller of two workers has 53 % on average, of 64 it has 55 %."""


def workers_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def run(rounds: int, seconds: float) -> list[Answer]:
    with nginx() as front, postgres() as database:
        routes = f'{ROUTE}[[route]]\npath = "/web/*"\nrole = "ledger"\ntarget = "http://{front.upstream}"\n'
        with gateway(database, routes) as before:
            stale = before.token
        with (
            gateway(database, routes, node="gw-1") as one,
            gateway(database, routes, node="gw-2", workers=2) as two,
            held([one.pid, *workers_of(two.pid)], CORES),
        ):

            def compared(what: str, path: str, token: int) -> Answer:
                def load(of: Gateway) -> Measured:
                    return measured(
                        lambda: fixed(of.address, seconds, CONNECTIONS, path=path, token=token),
                        gateway=of.pid,
                        postgres=database.pid,
                    )

                ours, peer = paired(rounds, lambda: load(two), lambda: load(one))
                return answers(f"two workers ÷ one, {what}", "≥ 1.8", ours, peer)

            return [
                compared("refusals", "/v1/entries", stale),
                compared("ledger writes", "/v1/entries", one.token),
                compared("http target, fenced", "/web/x", one.token),
            ]
