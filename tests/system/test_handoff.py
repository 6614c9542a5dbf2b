"""Five handoffs to and fro between two real gateways with a store each, under clients that write all the time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.client import FencedClient
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from system.serving import Serving, fencegate, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
SECRET = "secret-of-the-operators"
LOOSE_BOUND_MS = 3000
"""Healthy pairs pause for a small part of this; the machine that runs the tests may be busy."""


def arguments(region: str, data: str, dsn: str, election: str, folder: Path) -> list[str]:
    (folder / "token").write_text(SECRET)
    path = folder / f"{region}.toml"
    path.write_text(
        f'node = "gw-{region}"\nregion = "{region}"\nadvertise = "http://{data}"\n'
        f'[store]\ndsn = "{dsn}"\n'
        f"[election]\n{election}"
        "lease_duration = 7\nrenew_deadline = 5\nretry_period = 0.4\nmargin = 1\n"
        f'[admin]\ntoken_file = "{folder / "token"}"\n'
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )
    return ["--config", str(path), "--migrate", "--data", data]


@pytest.fixture
def other_dsn(make_postgres: Callable[..., EmbeddedPostgres]) -> str:
    """The other region's store."""
    other = make_postgres(port=0)
    other.start_sync()
    return other.dsn


class Writers:
    """Clients of the SDK that write one numbered entry after another until they are told to end."""

    def __init__(self, urls: list[str], count: int) -> None:
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self._ending = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(urls, n)) for n in range(count)]

    async def _write(self, urls: list[str], writer: int) -> None:
        async with FencedClient(urls, "ledger", deadline=20, retry_ratio=1.0, retry_burst=1000) as client:
            number = 0
            while not self._ending.is_set():
                number += 1
                name = f"{writer}-{number}"
                try:
                    await client.post("/v1/entries", json={"name": name})
                except Exception as error:
                    self.failures.append(f"{name}: {error!r}")
                else:
                    self.acknowledged.append(name)
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        self._ending.set()
        await asyncio.gather(*self._tasks)


def entries_of(serving: Serving) -> list[tuple[int, str]]:
    """Token and name of every entry in this region's ledger, in order."""
    found: list[tuple[int, str]] = []
    after = 0
    while True:
        page = serving.ask("GET", f"/v1/entries?after={after}&limit=1000").json
        found += [(entry["token"], entry["body"]["name"]) for entry in page["entries"]]
        if page["next_after"] is None:
            return found
        after = page["next_after"]


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

    def hand(here: Serving, to: str) -> dict[str, object]:
        def tried() -> dict[str, object] | None:
            done = fencegate(
                "handoff", "ledger", "--to", to, "--admin", here.admin, "--json",
                "--token-file", str(tmp_path / "token"),
            )  # fmt: skip
            document: dict[str, object] = json.loads(done.stdout)
            if done.returncode == 69 and document["outcome"] == "no_candidate":
                return None  # the other region holds back after its own handoff, and is not in line yet
            assert done.returncode == 0, (done.stdout, done.stderr, here.facts[-12:])
            return document

        found: dict[str, object] = until("the handoff", tried, 30)
        return found

    writers = Writers([f"http://{address}" for address in addresses], 4)
    pauses, tokens = [], []
    for here, to in [(eu, "dr"), (dr, "eu"), (eu, "dr"), (dr, "eu"), (eu, "dr")]:
        await asyncio.sleep(0.3)
        done = await asyncio.to_thread(hand, here, to)
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
    again = await asyncio.to_thread(hand, dr, "dr")
    assert again["outcome"] == "already"
    for serving in (eu, dr):
        assert await asyncio.to_thread(serving.stop) == 0
