"""A ledger of ten million entries, its keys expiring as fast as new ones come, ÷ an empty one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

import asyncpg

from bench.ledger_writes import ROUTE
from bench.load import http
from bench.rounds import Answer, answers, measured, paired
from bench.servers import Database, gateway, postgres
from fencegate.errors import Unavailable
from fencegate.store.postgres import PostgresStore

KEEP = 86_400.0
"""Seconds; the default of ``[idempotency] keep``."""
# Without their indexes while they are filled: random keys into a large index take minutes.
_FILL = """
ALTER TABLE fencegate.idempotency_key DROP CONSTRAINT idempotency_key_pkey;
DROP INDEX fencegate.idempotency_key_age;
INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body)
SELECT f.role_id, f.last_seq + i, f.max_token_seen, clock_timestamp(), sha256(int8send(i)), 'key-' || i,
       '{{"decision":"approve","subject":"order-81723","amount": 1250,"currency":"EUR"}}'
  FROM fencegate.fence f, generate_series(1, {entries}) i WHERE f.role = 'ledger';
INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
SELECT f.role_id, decode(md5('a' || i), 'hex'), decode(md5('b' || i), 'hex'), f.max_token_seen,
       clock_timestamp() - make_interval(secs => {keep} - i / {expiring}), f.last_seq + i
  FROM fencegate.fence f, generate_series(1, {entries}) i WHERE f.role = 'ledger';
UPDATE fencegate.fence SET last_seq = last_seq + {entries}, last_hash = sha256(int8send({entries}))
 WHERE role = 'ledger';
ALTER TABLE fencegate.idempotency_key ADD PRIMARY KEY (role_id, key);
CREATE INDEX idempotency_key_age ON fencegate.idempotency_key (created_at);
VACUUM (ANALYZE) fencegate.entry, fencegate.idempotency_key;
CHECKPOINT;
"""


def run(rounds: int, seconds: float) -> list[Answer]:
    entries = 10_000_000 if seconds >= 5 else 200_000
    with (
        postgres(own=True) as full,
        gateway(full, ROUTE) as ours,
        postgres(own=True) as empty,
        gateway(empty, ROUTE) as peer,
    ):
        rate = http(ours.address, seconds, 64, token=ours.token).rate
        time.sleep(2)  # what that load has left under way lands first
        asyncio.run(_fill(full, entries, expiring=rate))
        with _Expiry(full) as expiry:
            a, b = paired(
                rounds,
                lambda: measured(
                    lambda: http(ours.address, seconds, 64, token=ours.token), gateway=ours.pid, postgres=full.pid
                ),
                lambda: measured(
                    lambda: http(peer.address, seconds, 64, token=peer.token), gateway=peer.pid, postgres=empty.pid
                ),
            )
    answer = answers(f"{entries:,} entries, key expiry running ÷ an empty ledger, 64 connections", "≥ 0.95", a, b)
    answer.more["keys_expired"] = expiry.count
    return [answer]


async def _fill(database: Database, entries: int, *, expiring: float) -> None:
    """``expiring``: how many keys come of age in a second, from now on."""
    connection = await asyncpg.connect(database.dsn)
    for statement in _FILL.format(entries=entries, keep=KEEP, expiring=f"{expiring:.1f}").strip().split(";\n"):
        await connection.execute(statement)
    await connection.close()


class _Expiry:
    """Drops what has come of age once a second, as a gateway does once a minute, in a thread of its own."""

    def __init__(self, database: Database) -> None:
        self.count = 0
        self._dsn = database.dsn
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> _Expiry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    async def _run(self) -> None:
        store = await PostgresStore.open(self._dsn, gateway="bench")
        while not self._end.is_set():
            with contextlib.suppress(Unavailable):
                self.count += await store.expire_keys(KEEP)
            await asyncio.sleep(1.0)
        await store.close()
