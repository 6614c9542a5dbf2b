"""Good writes' p99 beside 10,000 stale writes a second in an open loop ÷ alone, and ÷ beside as many valid ones.

The good writes are on a schedule too, so that "alone" and "beside" are the same load. Where this machine does not carry
the two, the rate is halved until it does, and the answer's name says which it was.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from bench.ledger_writes import ROUTE
from bench.load import Run
from bench.on_schedule import Asked, BehindSchedule, on_schedule
from bench.rounds import Answer, Measured, answers, in_turn, measured
from bench.servers import Database, Gateway, gateway, postgres

GOOD_RATE, GOOD_CONNECTIONS = 500, 8
STORM_CONNECTIONS = 32
RATES = (10_000, 5_000, 2_500, 1_250)


def run(rounds: int, seconds: float) -> list[Answer]:
    # A token below the fence: the term before this one. Two gateways in turn make sure that there was one.
    with postgres() as database:
        with gateway(database, ROUTE) as before:
            stale = before.token
        with gateway(database, ROUTE) as ours:
            rate, (alone, storm, valid) = _at_a_rate_that_is_carried(ours, database, stale, rounds, seconds)
    name = f"good writes' p99 while {rate:,} stale writes/s are refused (open loop) ÷ "
    return [
        answers(name + "alone", "≤ 1.5", storm, alone, of="p99", unit=" ms"),
        answers(name + "beside as many valid writes/s", "≤ 1", storm, valid, of="p99", unit=" ms"),
    ]


def _at_a_rate_that_is_carried(
    ours: Gateway, database: Database, stale: int, rounds: int, seconds: float
) -> tuple[int, list[list[Measured]]]:
    pids = {"gateway": ours.pid, "postgres": database.pid}
    for rate in RATES:
        try:
            return rate, in_turn(
                rounds,
                lambda: measured(lambda: _good(ours, seconds), **pids),
                lambda r=rate: measured(lambda: _beside(ours, seconds, stale, r), **pids),
                lambda r=rate: measured(lambda: _beside(ours, seconds, ours.token, r), **pids),
            )
        except BehindSchedule as error:
            print(f"isolation, {rate:,}/s: {error}", file=sys.stderr)
    raise BehindSchedule(f"this machine carries not even {RATES[-1]:,} writes a second beside {GOOD_RATE}")


def _good(ours: Gateway, seconds: float) -> Run:
    return on_schedule(Asked(ours.address, ours.token, GOOD_RATE, GOOD_CONNECTIONS), seconds, expect=201)


def _beside(ours: Gateway, seconds: float, token: int, rate: int) -> Run:
    """Good writes with ``rate`` others of ``token`` beside them; the CPU is shared out over both."""
    others = Asked(ours.address, token, rate, STORM_CONNECTIONS)
    with ThreadPoolExecutor(1) as pool:
        # A moment longer than what is measured, or its beginning and end would be without a storm.
        other = pool.submit(on_schedule, others, seconds + 1.0, expect=201 if token == ours.token else 409)
        run = _good(ours, seconds)
        storm = other.result()
    return Run(run.rate, run.p50, run.p99, run.count + storm.count, storm.count)
