"""How long a new leader's first write waits behind 64 busy writers of the term before ÷ their median latency.

Application processes lead (``mode = "follow"``), and the store is one: the new term's first write raises the fence
under the old writers' feet, or the gateway's follower has by then. A writer that is refused takes the newer token on,
so that each new leader in turn meets 64 busy writers of the term before its own.
"""

from __future__ import annotations

import asyncio
import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from bench.load import BODY, Run
from bench.on_schedule import Asked, on_schedule
from bench.rounds import Answer, Measured
from bench.servers import Database, Gateway, gateway, postgres
from fencegate.election.postgres import PostgresElection
from fencegate.lease import Candidate, LeaseTimings, SealRecord, Won

WRITERS = 64
_EVERY = 0.25
_ROUTE = '[election]\nmode = "follow"\n[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
_ROLE = "ledger"


def run(rounds: int, seconds: float) -> list[Answer]:
    with postgres() as database, gateway(database, _ROUTE, leads=False) as ours, asyncio.Runner() as runner:
        terms = _Terms(database)
        token = runner.run(terms.next())
        _first_write(ours, token)
        pairs = [_round(ours, terms, runner, max(seconds, 2.0)) for _ in range(rounds)]
        runner.run(terms.close())
    first, busy = [list(side) for side in zip(*pairs, strict=True)]
    ratios = [a.run.p50 / b.run.p50 for a, b in zip(first, busy, strict=True)]
    name = f"a new leader's first write under {WRITERS} busy old-term writers ÷ their median latency"
    return [Answer(name, "≤ 2", ratios, first, busy, " ms", "p50")]


def _round(ours: Gateway, terms: _Terms, runner: asyncio.Runner, seconds: float) -> tuple[Measured, Measured]:
    """The first writes of a row of new leaders, and the writers that were busy meanwhile."""
    waits = []
    with ThreadPoolExecutor(1) as pool:
        asked = Asked(ours.address, terms.token, 0, WRITERS, follow=True)
        writers = pool.submit(on_schedule, asked, seconds, expect=201)
        end = time.monotonic() + seconds - _EVERY
        time.sleep(2 * _EVERY + 0.5)  # until the writers have started
        while time.monotonic() < end:
            waits.append(_first_write(ours, runner.run(terms.next())))
            time.sleep(_EVERY)
        busy = writers.result()
    waits.sort()
    return Measured(Run(0, median(waits), waits[-1], len(waits)), {}), Measured(busy, {})


def _first_write(ours: Gateway, token: int) -> float:
    """Milliseconds of one write, on a connection that is open already. Raises where it is not accepted."""
    connection = http.client.HTTPConnection(ours.address, timeout=30)
    connection.connect()
    began = time.monotonic()
    headers = {"X-Fencing-Token": str(token), "Idempotency-Key": f"first-{token}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/entries", BODY, headers)
    answer = connection.getresponse()
    content = answer.read()
    wait = (time.monotonic() - began) * 1e3
    connection.close()
    if answer.status != 201:
        raise RuntimeError(f"the new leader's first write was answered {answer.status}: {content[:300]!r}")
    return wait


class _Terms:
    """One application process after the other wins the role and says so; the one before gives it back."""

    def __init__(self, database: Database) -> None:
        self.token = 0
        self._dsn = database.dsn
        self._before: PostgresElection | None = None

    async def next(self) -> int:
        if self._before is not None:
            await self._before.release(_ROLE, self.token, SealRecord(self.token, "eu"), 5)
            await self._before.close()
        election = self._before = PostgresElection(self._dsn, LeaseTimings())
        who = Candidate(f"app-{self.token + 1}", "eu", "")
        won = await election.acquire(_ROLE, who, 5)
        if not isinstance(won, Won):
            raise RuntimeError(f"the role was not free for a new leader: {won}")
        await election.renew(_ROLE, won.token, who, active=True, deadline=5)
        self.token = won.token
        return self.token

    async def close(self) -> None:
        if self._before is not None:
            await self._before.close()
