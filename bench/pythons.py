"""The same gateway run by another interpreter: ours is ``BENCH_PYTHON``, the peer the one that measures.

That interpreter needs fencegate's dependencies installed; the code is the same, that of the working directory.
"""

from __future__ import annotations

import os
import subprocess
import sys

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, Measured, answers, measured, paired
from bench.servers import Database, Gateway, gateway, postgres

OTHER = os.environ.get("BENCH_PYTHON", "")


def run(rounds: int, seconds: float) -> list[Answer]:
    if not OTHER:
        raise RuntimeError("set BENCH_PYTHON to the interpreter that is to be compared with this one")
    with (
        postgres() as first,
        postgres() as second,
        gateway(first, ROUTE, python=OTHER) as theirs,
        gateway(second, ROUTE) as ours,
    ):
        found, peer = paired(rounds, lambda: _load(theirs, first, seconds), lambda: _load(ours, second, seconds))
    return [answers(f"ledger writes, the gateway run by {_name(OTHER)} ÷ by {_name(sys.executable)}", "–", found, peer)]


def _load(one: Gateway, database: Database, seconds: float) -> Measured:
    return measured(lambda: http(one.address, seconds, 64, token=one.token), gateway=one.pid, postgres=database.pid)


def _name(python: str) -> str:
    told = "import platform; print(f'{platform.python_version()} ({platform.python_compiler()})')"
    return f"Python {subprocess.run([python, '-c', told], capture_output=True, text=True, check=True).stdout.strip()}"
