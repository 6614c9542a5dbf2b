"""Writes spread over 100 and 10,000 roles ÷ unfenced inserts into as many; and what an idle role costs in memory."""

from __future__ import annotations

import asyncio
import time

import asyncpg

from bench.load import http, pgbench
from bench.rounds import Answer, answers, measured, paired, plain
from bench.servers import Database, cpu_seconds, gateway, postgres, rss_kib

_OPEN = """
    UPDATE fencegate.fence SET max_token_seen = 1, holder = 'bench', valid_until = 'infinity',
                               incarnation = fencegate.incarnation()"""
# Applications would lead, one for each role: here nobody campaigns, and the terms are opened by hand.
_ROUTE = """
[election]
mode = "follow"
[[route]]
path = "/v1/shards/{{shard}}/entries"
role = "ledger/{{shard}}"
members = {members}
target = "ledger"
"""


def run(rounds: int, seconds: float) -> list[Answer]:
    found = []
    sizes: dict[int, int] = {}
    for members in (1, 100, 10_000):
        with postgres() as database, gateway(database, _ROUTE.format(members=members), leads=False) as ours:
            asyncio.run(_open_terms(database))
            _rest(ours.pid)
            sizes[members] = rss_kib(ours.pid)
            if members == 1:
                continue
            a, b = paired(
                rounds,
                lambda m=members, g=ours, d=database: measured(
                    lambda: http(g.address, seconds, 64, path="/v1/shards/%d/entries", token=1, members=m),
                    gateway=g.pid,
                    postgres=d.pid,
                ),
                lambda m=members, d=database: measured(
                    lambda: pgbench(d.binaries, d.dsn, seconds, 64, roles=m), postgres=d.pid
                ),
            )
            name = f"fenced writes to {members:,} roles ÷ unfenced inserts into as many, 64 connections"
            found.append(answers(name, "≥ 1.5", a, b))
    kib = (sizes[10_000] - sizes[1]) / 9_999
    return [*found, plain("an idle role of a gateway that follows 10,000", "< 1 KiB", [kib], " KiB")]


async def _open_terms(database: Database) -> None:
    connection = await asyncpg.connect(database.dsn)
    await connection.execute(_OPEN)
    await connection.close()


def _rest(pid: int) -> None:
    """Until the gateway has looked at every role once; a minute at most."""
    end = time.monotonic() + 60
    before = cpu_seconds(pid)
    while time.monotonic() < end:
        time.sleep(2)
        now = cpu_seconds(pid)
        if now - before < 0.1:
            return
        before = now
