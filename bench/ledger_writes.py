"""A fenced, idempotent ledger write through the gateway ÷ the unfenced single-row insert that it replaces."""

from __future__ import annotations

from bench.load import http, pgbench
from bench.rounds import Answer, answers, measured, paired
from bench.servers import gateway, postgres

ROUTE = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'


def run(rounds: int, seconds: float) -> list[Answer]:
    found = []
    with postgres() as database, gateway(database, ROUTE) as ours:
        for connections in (64, 256):
            a, b = paired(
                rounds,
                lambda n=connections: measured(
                    lambda: http(ours.address, seconds, n, token=ours.token), gateway=ours.pid, postgres=database.pid
                ),
                lambda n=connections: measured(
                    lambda: pgbench(database.binaries, database.dsn, seconds, n), postgres=database.pid
                ),
            )
            name = f"fenced ledger writes ÷ unfenced pgbench inserts, {connections} connections"
            found.append(answers(name, "≥ 2.5", a, b))
            goal = "≤ 0.5" if connections == 64 else "–"
            found.append(answers(f"its p99 ÷ pgbench's, {connections} connections", goal, a, b, of="p99", unit=" ms"))
    return found
