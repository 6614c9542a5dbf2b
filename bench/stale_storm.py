"""Refusals: what a stale write costs, as fast as they come, ÷ nginx's ``return 409``."""

from __future__ import annotations

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, Measured, measured, paired
from bench.servers import gateway, nginx, postgres


def _cost(name: str, refused: list[Measured], plain: list[Measured]) -> Answer:
    costs = [a.micros["gateway"] / b.micros["nginx"] for a, b in zip(refused, plain, strict=True)]
    return Answer(name, "≤ 2", costs, refused, plain)


def run(rounds: int, seconds: float) -> list[Answer]:
    # A token below the fence: the term before this one. Two gateways in turn make sure that there was one.
    with nginx() as front, postgres() as database:
        with gateway(database, ROUTE) as before:
            stale = before.token
        with gateway(database, ROUTE) as ours:
            pids = {"gateway": ours.pid, "postgres": database.pid}
            found = [
                _cost(
                    name,
                    *paired(
                        rounds,
                        lambda k=keyed: measured(
                            lambda: http(ours.address, seconds, 64, token=stale, keyed=k, expect="refused"), **pids
                        ),
                        lambda k=keyed: measured(
                            lambda: http(front.refuser, seconds, 64, token=stale, keyed=k, expect="refused"),
                            nginx=front.proxy_pid,
                        ),
                    ),
                )
                for name, keyed in (
                    ("a refusal's CPU in the gateway ÷ nginx's for return 409", False),
                    ("the same with an idempotency key, which the store is asked about", True),
                )
            ]
    return found
