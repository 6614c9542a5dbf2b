"""A long run under a steady load with a handoff now and then: what the processes and the stores take must stay flat.

Two regions, as in the drill. Clients write to the ledger all the time, others through the gateways to an upstream, and
idle and slow ones take up room (:mod:`fencegate.gameday.loiterers`). What is measured is judged by
:mod:`fencegate.gameday.steady`; beside that each measure *at rest* must come back to what it was before the load, and
the checker of the drill must find every write where its client was told that it is.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencegate.client import FencedClient, FencedError
from fencegate.election.etcd_gateway import EtcdGateway, encode
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.gameday.hammer import Hammer
from fencegate.gameday.history import History
from fencegate.gameday.ledgers import LedgerReader
from fencegate.gameday.loiterers import Loiterers
from fencegate.gameday.plain_http import NoAnswer, NotSent, ask
from fencegate.gameday.regions import PATH, ROLE, Region, TwoRegions
from fencegate.gameday.steady import Bound, Point, Trend, trend
from fencegate.gameday.verify import Verdict, verify_apart

WEB_ROLE: Final = "web"
_WEB_PATH: Final = "/web/thing"
_LONG: Final = 600.0
"""Seconds of measuring from which on also what turns over slowly is judged."""

BOUNDS: Final = {
    "memory, MB": Bound(8.0, 0.05),
    "open files": Bound(15.0),
    "sockets": Bound(15.0),
    "tasks": Bound(15.0),
    "store sessions": Bound(2.0),
    "dead tuples": Bound(600.0, 0.5),
    "fence and marks, kB": Bound(64.0),
    "marks": Bound(2.0),
    "quorum keys": Bound(2.0),
    "quorum leases": Bound(10.0),
    "keys, kB": Bound(512.0, 0.1),
    "keys, dead tuples": Bound(2000.0, 0.5),
}
"""How far each measure may rise while it is watched, however long that is."""
SLOW: Final = frozenset({"keys, kB", "keys, dead tuples"})
"""What has no steady state before idempotency keys have expired and the store has been vacuumed."""
AT_REST: Final = ("open files", "sockets", "tasks", "store sessions")
_REST_SLACK: Final = 3

_STORE: Final = """
    SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencegate %'
                    AND application_name <> 'fencegate game day')::float8 AS sessions,
           (SELECT count(*) FROM fencegate.mark)::float8 AS marks,
           sum(n_dead_tup) FILTER (WHERE relname IN ('fence', 'mark'))::float8 AS dead,
           sum(pg_total_relation_size(relid)) FILTER (WHERE relname IN ('fence', 'mark'))::float8 / 1024 AS size,
           sum(n_dead_tup) FILTER (WHERE relname = 'idempotency_key')::float8 AS keys_dead,
           sum(pg_total_relation_size(relid)) FILTER (WHERE relname = 'idempotency_key')::float8 / 1024 AS keys_size
      FROM pg_stat_user_tables WHERE schemaname = 'fencegate'"""
_GAUGE = re.compile(r"^(process_resident_memory_bytes|process_open_fds|asyncio_tasks) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """How much of each; of the loiterers, so many for each region. Seconds."""

    clients: int = 8
    pace: float = 0.1
    web_clients: int = 2
    idle: int = 60
    slow_heads: int = 6
    slow_bodies: int = 6
    slow_readers: int = 4


@dataclass(slots=True)
class Soaked:
    """How a soak went. ``left_over``: measures that did not come back at rest, in words."""

    trends: Sequence[Trend]
    left_over: Sequence[str]
    verdict: Verdict
    answers: Counter[str]
    handoffs: int
    cut: Counter[str]

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.left_over and all(trend.flat for trend in self.trends)

    def __str__(self) -> str:
        lines = [
            "writes: " + ", ".join(f"{name} {count}" for name, count in self.answers.most_common()),
            f"{self.handoffs} handoffs; connections ended by a gateway: {dict(self.cut)}",
            *map(str, self.trends),
            *(f"AT REST: {line}" for line in self.left_over),
            *(f"VIOLATION: {v.kind} ({v.count}): {'; '.join(v.evidence)}" for v in self.verdict.violations),
            "verdict: " + ("flat, and no write was lost, doubled or taken from an old term" if self.ok else "FAILED"),
        ]
        return "\n".join(lines)


class SoakStage(TwoRegions):
    """Two regions with short limits, a second role over an upstream, and stores that vacuum often."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        for region in self.regions.values():
            # A soak's minutes stand for days: what is vacuumed each minute by default must be seen to be vacuumed.
            settings = {"autovacuum_naptime": "10s"}
            region.postgres = EmbeddedPostgres(region.directory / "postgres", settings=settings)
        self._upstream: asyncio.Server | None = None

    async def start_servers(self) -> None:
        self._upstream = await asyncio.start_server(_upstream, "127.0.0.1", 0)
        await super().start_servers()

    async def stop(self) -> None:
        await super().stop()
        if self._upstream is not None:
            self._upstream.close()

    def route(self, region: Region) -> str:
        assert self._upstream is not None
        port = self._upstream.sockets[0].getsockname()[1]
        return f"""\
{super().route(region)}
[[route]]
path = "/web/*"
role = "{WEB_ROLE}"
target = "http://127.0.0.1:{port}"

[limits]
header_timeout = 4.0
body_timeout = 4.0
idle_timeout = 8.0

[idempotency]
keep = 60.0
"""


async def _upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads each request to its end and says 200."""
    with suppress(OSError, EOFError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    writer.close()


class Gauges:
    """Looks at every part of the stage, one point for each measure and part at a time."""

    def __init__(self, stage: SoakStage, clock: Callable[[], float]) -> None:
        self._stage, self._clock = stage, clock
        self._readers = {name: LedgerReader(name, r.postgres.dsn, ROLE) for name, r in stage.regions.items()}
        self._etcd = EtcdGateway(stage.etcd.endpoints)
        self.series: dict[tuple[str, str], list[Point]] = defaultdict(list)

    async def look(self) -> None:
        """A part that does not answer just now gives no point; too few points are a failure in the end."""
        for name, region in self._stage.regions.items():
            with suppress(NotSent, NoAnswer, Unavailable):
                for measure, value in {**await self._gateway(region), **await self._store(name)}.items():
                    self.series[measure, name].append((self._clock(), value))
        for measure, value in (await self._quorum()).items():
            self.series[measure, "etcd"].append((self._clock(), value))

    async def close(self) -> None:
        await asyncio.gather(*(reader.close() for reader in self._readers.values()), self._etcd.close())

    async def _gateway(self, region: Region) -> dict[str, float]:
        answer = await ask("GET", f"{region.admin_url}/metrics", limit=5.0)
        found = {name: float(value) for name, value in _GAUGE.findall(answer.body.decode())}
        assert region.process is not None
        return {
            "memory, MB": found["process_resident_memory_bytes"] / 2**20,
            "open files": found["process_open_fds"],
            "tasks": found["asyncio_tasks"],
            "sockets": float(_sockets(region.process.pid)),
        }

    async def _store(self, name: str) -> dict[str, float]:
        [row] = await self._readers[name].ask(_STORE)
        return {
            "store sessions": row["sessions"],
            "dead tuples": row["dead"],
            "fence and marks, kB": row["size"],
            "marks": row["marks"],
            "keys, kB": row["keys_size"],
            "keys, dead tuples": row["keys_dead"],
        }

    async def _quorum(self) -> dict[str, float]:
        everything = {"key": encode(b"\0"), "range_end": encode(b"\0"), "count_only": True}
        keys = await self._etcd.call("/v3/kv/range", everything, 5.0)
        leases = await self._etcd.call("/v3/lease/leases", {}, 5.0)
        return {"quorum keys": float(keys.get("count", 0)), "quorum leases": float(len(leases.get("leases", [])))}


def _sockets(pid: int) -> int:
    count = 0
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            count += file.readlink().name.startswith("socket:")
    return count


async def run(
    directory: Path,
    *,
    seconds: float,
    handoff_every: float,
    warm_up: float,
    spacing: float,
    load: Load | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Soaked:
    """Soak for ``seconds``, of which the first ``warm_up`` are not judged, looking every ``spacing`` seconds.

    Raises :class:`~fencegate.embedded.process.EmbeddedServerError` where the set does not start.
    """
    load = load or Load()
    clock = asyncio.get_running_loop().time
    stage, history = SoakStage(directory), History()
    gauges: Gauges | None = None
    try:
        await stage.start_servers()
        await asyncio.gather(*(region.start() for region in stage.regions.values()))
        gauges = Gauges(stage, clock)
        origins = {name: region.url for name, region in stage.regions.items()}
        # Each region has led and written once before anything is compared: what is opened at the first use is open.
        handing = asyncio.create_task(_hand_to_and_fro(stage, 2.0, 2))
        hammer, web, loiterers = _start(origins, history, clock, load, "first")
        await handing
        await _end(hammer, web, loiterers)
        before = await _at_rest(gauges)

        hammer, web, loiterers = _start(origins, history, clock, load, "client")
        started = clock()
        gauges.series.clear()
        handing = asyncio.create_task(_hand_to_and_fro(stage, handoff_every, int(seconds / handoff_every)))
        while (now := clock()) < started + seconds:
            await gauges.look()
            say(f"{now - started:6.0f} s  {_summary(gauges.series)}")
            await asyncio.sleep(max(0.0, now + spacing - clock()))
        handoffs = await handing
        await _end(hammer, web, loiterers)
        series = {
            key: [point for point in points if point[0] >= started + warm_up] for key, points in gauges.series.items()
        }
        after = await _at_rest(gauges)
        readers = {name: LedgerReader(name, r.postgres.dsn, ROLE) for name, r in stage.regions.items()}
        ledgers = {name: await reader.entries() for name, reader in readers.items()}
        await asyncio.gather(*(reader.close() for reader in readers.values()))
    finally:
        if gauges is not None:
            await gauges.close()
        await stage.stop()
    trends = [
        trend(f"{part}: {measure}", points, BOUNDS[measure])
        for (measure, part), points in series.items()
        if measure not in SLOW or seconds - warm_up >= _LONG
    ]
    verdict = verify_apart(history.attempts, ledgers, role=ROLE)
    answers = Counter(f"{a.answered} {a.reason}".strip() for a in history.attempts)
    cut = sum((each.cut for each in loiterers), Counter[str]())
    return Soaked(trends, left_over(before, after), verdict, answers, handoffs, cut)


def left_over(before: Mapping[tuple[str, str], float], after: Mapping[tuple[str, str], float]) -> list[str]:
    """What is more after the load than before it, in words; at rest nothing of it may be."""
    return [
        f"{part}: {measure} were {before[measure, part]:.6g} before the load, {after[measure, part]:.6g} after it"
        for measure, part in before
        if measure in AT_REST and after[measure, part] > before[measure, part] + _REST_SLACK
    ]


def _start(
    origins: dict[str, str], history: History, clock: Callable[[], float], load: Load, name: str
) -> tuple[Hammer, list[asyncio.Task[None]], list[Loiterers]]:
    hammer = Hammer(origins, PATH, ROLE, history, clock, clients=load.clients, pace=load.pace, name=name)
    hammer.start()
    loiterers = [Loiterers(origin, PATH) for origin in origins.values()]
    for each in loiterers:
        each.start(
            idle=load.idle,
            slow_heads=load.slow_heads,
            slow_bodies=load.slow_bodies,
            slow_readers=load.slow_readers,
        )
    web = [asyncio.create_task(_write_through(list(origins.values()), load.pace)) for _ in range(load.web_clients)]
    return hammer, web, loiterers


async def _end(hammer: Hammer, web: list[asyncio.Task[None]], loiterers: list[Loiterers]) -> None:
    await hammer.stop()
    for task in web:
        task.cancel()
    await asyncio.gather(*web, return_exceptions=True)
    await asyncio.gather(*(each.stop() for each in loiterers))


async def _write_through(urls: list[str], pace: float) -> None:
    """Writes to the upstream, by the SDK. What became of each is the other tests' business."""
    async with FencedClient(urls, WEB_ROLE, deadline=10.0, retry_ratio=1.0) as client:
        while True:
            with suppress(FencedError):
                await client.post(_WEB_PATH, json={})
            await asyncio.sleep(pace)


async def _hand_to_and_fro(stage: SoakStage, every: float, count: int) -> int:
    """Hands both roles over, each to the region that does not lead it, ``count`` times. How many came about."""
    done = 0
    for _ in range(count):
        await asyncio.sleep(every)
        for role in (ROLE, WEB_ROLE):
            done += any([await _hand(region, role, to) for region, to in _pairs(stage)])
    return done


def _pairs(stage: SoakStage) -> list[tuple[Region, str]]:
    return [(stage.primary, stage.dr.name), (stage.dr, stage.primary.name)]


async def _hand(region: Region, role: str, to: str) -> bool:
    """False where ``region`` does not lead, or its handoff was undone."""
    headers = {"Authorization": f"Bearer {region.token_file.read_text('ascii').strip()}"}
    body = json.dumps({"to": to, "limit": 5.0}).encode()
    try:
        url = f"{region.admin_url}/-/roles/{role}/handoff"
        answer = await ask("POST", url, headers=headers, body=body, limit=15.0)
        return answer.status == 200 and json.loads(answer.body).get("outcome") == "done"
    except (NotSent, NoAnswer, ValueError):
        return False


async def _at_rest(gauges: Gauges) -> dict[tuple[str, str], float]:
    """The least of what is measured in the seconds in which idle connections end."""
    gauges.series.clear()
    for _ in range(6):
        await asyncio.sleep(2.0)
        await gauges.look()
    return {key: min(value for _, value in points) for key, points in gauges.series.items()}


def _summary(series: Mapping[tuple[str, str], Sequence[Point]]) -> str:
    shown = ("memory, MB", "tasks", "sockets", "dead tuples")
    return "  ".join(
        f"{part} {measure} {points[-1][1]:.0f}" for (measure, part), points in series.items() if measure in shown
    )
