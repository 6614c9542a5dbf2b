"""Five handoffs to and fro between two real gateways with a store each, under clients that write all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from system.regions import Writers, arguments, entries_of, hand
from system.serving import Serving

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
LOOSE_BOUND_MS = 6000
"""Less than the lease that a failover waits out. Healthy pairs pause for a small part of this; machines may be busy."""


@pytest.mark.parametrize("source", ["etcd", "postgres"])
@pytest.mark.timeout(180)
async def test_five_handoffs_under_writing_clients_lose_nothing_and_apply_nothing_twice(
    source: str,
    serve: Serve,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    other_dsn: str,
    tmp_path: Path,
    unused_ports: list[int],
) -> None:
    election = {
        "etcd": f'source = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n',
        "postgres": f'source = "postgres"\ndsn = "{fresh_dsn}"\n',
    }[source]
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    eu = serve(*arguments("eu", addresses[0], fresh_dsn, election, tmp_path)).listens()
    await asyncio.to_thread(eu.leads)
    dr = serve(*arguments("dr", addresses[1], other_dsn, election, tmp_path)).listens()

    writers = Writers([f"http://{address}" for address in addresses], 4)
    pauses, tokens = [], []
    for here, to in [(eu, "dr"), (dr, "eu"), (eu, "dr"), (dr, "eu"), (eu, "dr")]:
        await asyncio.sleep(0.3)
        done = await asyncio.to_thread(hand, here, to, tmp_path)
        assert done["outcome"] == "done", done
        pauses.append(int(str(done["paused_ms"])))
        tokens.append(int(str(done["token"])))
    await asyncio.sleep(0.3)
    await writers.end()

    print(f"\n{source}: writes paused for {pauses} ms; {len(writers.acknowledged)} writes")
    ledgers = [await asyncio.to_thread(entries_of, serving) for serving in (eu, dr)]
    names = [name for ledger in ledgers for _, name in ledger]
    assert not writers.failures
    assert sorted(names) == sorted(set(names)), "applied twice"
    assert set(writers.acknowledged) == set(names), "lost"
    # Each term is in one ledger only, and the terms of the two alternate.
    terms = [sorted({token for token, _ in ledger}) for ledger in ledgers]
    assert not set(terms[0]) & set(terms[1])
    assert [token for token, _ in ledgers[0]] == sorted(token for token, _ in ledgers[0])
    assert set(terms[1]) <= {tokens[0], tokens[2], tokens[4]}
    assert set(tokens) <= {*terms[0], *terms[1]}, "a term without a write"
    assert max(pauses) < LOOSE_BOUND_MS
    again = await asyncio.to_thread(hand, dr, "dr", tmp_path)
    assert again["outcome"] == "already"
    for serving in (eu, dr):
        assert await asyncio.to_thread(serving.stop) == 0
