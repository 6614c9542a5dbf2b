"""What the mode that trusts no clock costs: ``validate = true`` ÷ the lease alone, over the elections that run here."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, answers, measured, paired
from bench.servers import gateway, postgres
from fencegate.embedded.etcd import EmbeddedEtcd

VALIDATED = f"{ROUTE}validate = true\n"


def run(rounds: int, seconds: float) -> list[Answer]:
    found = _compared(rounds, seconds, "a row in the same Postgres", "")
    with _etcd() as quorum:
        election = f'[election]\nsource = "etcd"\nendpoints = {quorum.endpoints}\nprefix = "/bench/{{}}"\n'
        found += _compared(rounds, seconds, "etcd, three members", election)
    return found


def _compared(rounds: int, seconds: float, name: str, election: str) -> list[Answer]:
    found = []
    with (
        postgres() as proving,
        gateway(proving, election.format("proving") + VALIDATED) as ours,
        postgres() as leased,
        gateway(leased, election.format("leased") + ROUTE) as peer,
    ):
        for connections in (1, 64, 256):
            a, b = paired(
                rounds,
                lambda n=connections: measured(
                    lambda: http(ours.address, seconds, n, token=ours.token), gateway=ours.pid, postgres=proving.pid
                ),
                lambda n=connections: measured(
                    lambda: http(peer.address, seconds, n, token=peer.token), gateway=peer.pid, postgres=leased.pid
                ),
            )
            what = f"validated ÷ leased ledger writes, {name}, {connections} connection{'s' * (connections > 1)}"
            found.append(answers(what, "–", a, b))
            found.append(answers(f"its p99 ÷ the lease's, {name}, {connections}", "–", a, b, of="p99", unit=" ms"))
    return found


@contextlib.contextmanager
def _etcd() -> Iterator[EmbeddedEtcd]:
    folder = Path(tempfile.mkdtemp(prefix="fencegate-bench-"))
    quorum = EmbeddedEtcd(folder)
    quorum.start_sync()
    try:
        yield quorum
    finally:
        quorum.stop_sync()
        shutil.rmtree(folder, ignore_errors=True)
