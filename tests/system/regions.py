"""Two regions with a store each: their files, handoffs between them, and clients that write all the time."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from fencegate.client import FencedClient
from system.serving import Serving, ask, fencegate, until

SECRET = "secret-of-the-operators"
LEDGER = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'


def arguments(
    region: str,
    address: str,
    dsn: str,
    election: str,
    folder: Path,
    *,
    node: str = "gw",
    route: str = LEDGER,
    data: str = "",
) -> list[str]:
    """The command line of gateway ``node`` of a region that advertises ``address``, and listens there or at ``data``.

    ``election`` and ``route`` are lines of its file.
    """
    (folder / "token").write_text(SECRET)
    path = folder / f"{node}-{region}.toml"
    path.write_text(
        f'node = "{node}-{region}"\nregion = "{region}"\nadvertise = "http://{address}"\n'
        f'[store]\ndsn = "{dsn}"\n'
        f"[election]\n{election}"
        "lease_duration = 7\nrenew_deadline = 5\nretry_period = 0.4\nmargin = 1\n"
        f'[admin]\ntoken_file = "{folder / "token"}"\n{route}'
    )
    return ["--config", str(path), "--migrate", "--data", data or address]


def brisk(region: str, dsn: str, endpoints: list[str], prefix: str, folder: Path, *, route: str = LEDGER) -> list[str]:
    """The command line of a region's one gateway, over etcd and with a lease of 5 s: a failover is soon over."""
    path = folder / f"{region}.toml"
    path.write_text(
        f'node = "gw-{region}"\nregion = "{region}"\nadvertise = "https://{region}.example"\n'
        f'[store]\ndsn = "{dsn}"\n'
        f'[election]\nsource = "etcd"\nendpoints = {endpoints}\nprefix = "{prefix.rstrip("/")}"\n'
        f"lease_duration = 5\nrenew_deadline = 3.5\nretry_period = 0.4\nmargin = 0.5\n{route}"
    )
    return ["--config", str(path), "--migrate"]


def hand(here: Serving, to: str, folder: Path, *, limit: float = 10.0) -> dict[str, object]:
    """Hand the ledger to region ``to``; what the command said. Fails for any end but the right one."""

    def tried() -> dict[str, object] | None:
        code, document = try_to_hand(here, to, folder, limit=limit)
        if code == 69 and document["outcome"] == "no_candidate":
            return None  # the other region holds back after its own handoff, and is not in line yet
        assert code == 0, (document, here.facts[-12:])
        return document

    found: dict[str, object] = until("the handoff", tried)
    return found


def try_to_hand(here: Serving, to: str, folder: Path, *, limit: float = 10.0) -> tuple[int, dict[str, object]]:
    """One handoff: the command's exit code and document."""
    done = fencegate(
        "handoff", "ledger", "--to", to, "--admin", here.admin, "--json", "--limit", f"{limit:g}",
        "--token-file", str(folder / "token"),
    )  # fmt: skip
    assert done.stdout, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return done.returncode, document


def counted(serving: Serving, metric: str) -> dict[str, int]:
    """The ledger's samples of a metric that are not 0, by the value of their one further label ("" without one)."""
    text = ask(serving.admin, "GET", "/metrics", Authorization=f"Bearer {SECRET}").body.decode()
    found = {}
    for labels, value in re.findall(rf"^{metric}{{(.*?)}} (\S+)$", text, re.MULTILINE):
        words = dict(re.findall(r'(\w+)="(.*?)"', labels))
        if words.pop("role") == "ledger" and float(value):
            words.pop("region", None)
            found[next(iter(words.values()), "")] = int(float(value))
    return found


class Writers:
    """Clients of the SDK that write one numbered entry after another until they are told to end."""

    def __init__(self, urls: list[str], count: int, role: str = "ledger", path: str = "/v1/entries") -> None:
        self._role, self._path = role, path
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self._ending = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(urls, n)) for n in range(count)]

    async def _write(self, urls: list[str], writer: int) -> None:
        async with FencedClient(urls, self._role, deadline=20, retry_ratio=1.0, retry_burst=1000) as client:
            number = 0
            while not self._ending.is_set():
                number += 1
                name = f"{writer}-{number}"
                try:
                    await client.post(self._path, json={"name": name})
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
