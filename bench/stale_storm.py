"""Refusals: stale writes as fast as they come ÷ nginx's ``return 409``, and good writes' p99 beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bench.ledger_writes import ROUTE
from bench.load import Run, http
from bench.rounds import Answer, Measured, answers, measured, paired
from bench.servers import Gateway, gateway, nginx, postgres


def _beside(ours: Gateway, seconds: float, storm: int | None) -> Run:
    """Good writes of 8 connections, with 32 connections of the token ``storm`` beside them."""
    if storm is None:
        return http(ours.address, seconds, 8, token=ours.token)
    with ThreadPoolExecutor(1) as pool:
        expect = "good" if storm == ours.token else "refused"
        other = pool.submit(http, ours.address, seconds, 32, token=storm, expect=expect)
        run = http(ours.address, seconds, 8, token=ours.token)
        other.result()
    return run


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
            storm, valid = paired(
                rounds,
                lambda: measured(lambda: _beside(ours, seconds, stale), **pids),
                lambda: measured(lambda: _beside(ours, seconds, ours.token), **pids),
            )
    return [
        *found,
        answers(
            "good writes' p99 beside a closed-loop stale storm ÷ beside valid writes", "≤ 1", storm, valid,
            of="p99", unit=" ms",
        ),
    ]  # fmt: skip


__all__ = ["Measured", "run"]
