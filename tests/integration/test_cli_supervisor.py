"""The supervisor of workers that misbehave: real processes, of a program that does what the test wants."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from fencegate.cli import supervision, supervisor
from fencegate.cli.supervisor import Workers
from fencegate.config import Flag, parse
from fencegate.embedded.process import afinish
from fencegate.errors import ConfigurationError, FencegateError
from fencegate.observations import FenceChecked, Observation, WorkerEnded, WorkerServes
from fencegate.telemetry.metrics import Metrics
from fencegate.telemetry.senders import SendersOfAll
from fencegate.telemetry.shares import Whole
from fencegate.testing.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "http://127.0.0.1:1"
listen = { data = "127.0.0.1:0" }
store = { dsn = "postgresql://nobody@127.0.0.1:1/none" }
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""
BEGIN = """
import json, os, signal, socket, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
channel = socket.socket(fileno=int(sys.argv[2]))
begin = json.loads(channel.makefile("rb").readline())
def tell(**message):
    channel.sendall(json.dumps(message).encode() + b"\\n")
"""
SERVES = BEGIN + 'tell(kind="serves")\n'
REPORTS = (
    SERVES
    + """
while True:
    rows = [["fencing_checks", "fencing_checks_total", [["role", "ledger"], ["outcome", "accepted"]], 7.0]]
    facts = [["FenceChecked", {"roles": ["ledger"], "duration": 0.25}]]
    tell(kind="report", in_flight=2, rows=rows, senders=None, facts=facts)
    time.sleep(0.05)
"""
)


class Scene:
    def __init__(self, *flags: Flag) -> None:
        settings = parse(file=("F", TEXT), flags=[Flag("--workers", "workers", "2"), *flags])
        self.facts: list[Observation] = []
        self.heard: list[Observation] = []
        self.whole = Whole(Metrics(["ledger"], node="gw-1", region="eu", backend="postgres", version="1"))
        self.workers = Workers(
            settings,
            "postgresql://s3cret@127.0.0.1:1/none",
            self.facts.append,
            whole=self.whole,
            senders=SendersOfAll(),
            hear=self.heard.append,
            grace=1.0,
        )

    def of(self, kind: type[Observation]) -> list[Observation]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    async def until(self, condition: Callable[[], object]) -> None:
        await afinish(until(condition, "what the test waits for", 30))


Begin = Callable[..., AbstractAsyncContextManager[Scene]]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Starts the workers of this program, and ends them."""
    monkeypatch.setattr(supervisor, "LOOK_PERIOD", 0.05)

    @asynccontextmanager
    async def scene(program: str, *flags: Flag) -> AsyncIterator[Scene]:
        monkeypatch.setattr(supervisor, "_PROGRAM", program)
        found = Scene(*flags)
        try:
            yield found
        finally:
            await found.workers.stop(0.0)

    return scene


async def test_what_workers_report_is_heard_and_added_up_and_forgotten_with_them(begin: Begin) -> None:
    async with begin(REPORTS) as scene:
        url = await scene.workers.start()
        assert url.startswith("http://127.0.0.1:")
        assert not url.endswith(":0")
        assert [fact.number for fact in scene.of(WorkerServes)] in ([1, 2], [2, 1])
        await scene.until(lambda: scene.workers.in_flight == 4)
        await scene.until(lambda: b'outcome="accepted",role="ledger"} 14.0' in scene.whole.render()[1])
        assert FenceChecked(("ledger",), 0.25) in scene.heard
        assert scene.workers.waiting_for() == ""
        assert await scene.workers.stop(1.0) == 0
        assert not scene.of(WorkerEnded), "they were told to"
        assert b'outcome="accepted",role="ledger"} 14.0' in scene.whole.render()[1]
        assert scene.workers.waiting_for() == "no worker takes requests"


async def test_a_worker_that_dies_at_once_is_started_ever_more_slowly_and_at_last_the_gateway_gives_up(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOOK_PERIOD", 0.05)
    monkeypatch.setattr(supervisor, "FIRST_START", 6.0)
    async with begin(BEGIN + "sys.exit(3)") as scene:
        with pytest.raises(FencegateError, match="no worker has taken requests for 6 s"):
            await scene.workers.start()
        ended = [fact for fact in scene.of(WorkerEnded) if isinstance(fact, WorkerEnded) and fact.number == 1]
        assert {fact.reason for fact in ended} == {"exit code 3"}
        delays = [fact.restart_in for fact in ended]
        assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2][: len(delays)]
        assert len(delays) > 1


async def test_where_no_worker_serves_any_more_for_a_lease_the_gateway_ends(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = {"lease_duration": "3", "renew_deadline": "1.5", "retry_period": "0.5", "margin": "0.5"}
    flags = [Flag("--set", f"election.{name}", value) for name, value in timings.items()]
    monkeypatch.setattr(supervision, "LOOK_PERIOD", 0.05)
    monkeypatch.setattr(supervisor, "LEAST_OUTAGE", 0.0)
    async with begin(SERVES + "time.sleep(0.5)", *flags) as scene:
        await scene.workers.start()
        monkeypatch.setattr(supervisor, "_PROGRAM", BEGIN + "sys.exit(3)")
        with pytest.raises(FencegateError, match="no worker has taken requests for 3 s"):
            await scene.workers.run()


async def test_a_worker_that_says_nothing_any_more_is_killed_and_another_takes_its_place(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "SILENT_LOOKS", 100)
    monkeypatch.setattr(supervision, "QUIET_LOOKS", 4)
    silent = f"if begin['number'] == 2:\n    {SERVES.splitlines()[-1]}\n    time.sleep(1000)\n"
    async with begin(BEGIN + silent + REPORTS.removeprefix(BEGIN)) as scene:
        await scene.workers.start()
        watching = asyncio.create_task(scene.workers.run())
        await scene.until(lambda: scene.workers.waiting_for() == "worker 2 does not answer")
        await scene.until(lambda: scene.of(WorkerEnded))
        (ended, *_) = scene.of(WorkerEnded)
        assert isinstance(ended, WorkerEnded)
        assert ended.number == 2
        assert ended.reason.startswith("killed: it said nothing for")
        await scene.until(lambda: len(scene.of(WorkerServes)) >= 3)
        watching.cancel()


async def test_the_faults_that_a_worker_finds_at_the_first_start_are_the_gateways(begin: Begin) -> None:
    async with begin(BEGIN + 'tell(kind="faults", faults=["election.tls.ca: cannot use it"])\nsys.exit(78)') as scene:
        unheard: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        with pytest.raises(ConfigurationError) as caught:
            await scene.workers.start()
        assert caught.value.faults == ["election.tls.ca: cannot use it"]
        scene.workers._keepers.clear()
        gc.collect()
        assert not unheard, "the other worker's, which is the same, would be printed with its stack"


async def test_a_worker_that_will_not_end_is_killed_after_its_time(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "END_LIMIT", 1.0)
    async with begin(SERVES + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)") as scene:
        await scene.workers.start()
        await asyncio.sleep(0.3)
        async with asyncio.timeout(20):
            await scene.workers.stop(0.5)


async def test_a_worker_is_told_its_secrets_where_no_other_process_can_read_them(begin: Begin) -> None:
    async with begin(SERVES + "time.sleep(1000)") as scene:
        await scene.workers.start()
        ours = Path(f"/proc/{next(iter(scene.of(WorkerServes))).pid}")
        assert b"s3cret" not in (ours / "cmdline").read_bytes() + (ours / "environ").read_bytes()


async def test_a_worker_that_does_not_read_for_a_while_misses_no_settings(begin: Begin, tmp_path: Path) -> None:
    program = SERVES + (
        "lines = channel.makefile('rb')\n"
        f"while not os.path.exists({str(tmp_path / 'go-on')!r}):\n    time.sleep(0.02)\n"
        "while json.loads(lines.readline())['kind'] != 'settings':\n    pass\n"
        "tell(kind='stopped', abandoned=7)\ntime.sleep(1000)\n"
    )
    async with begin(program) as scene:
        await scene.workers.start()
        for _ in range(9):
            scene.workers.hint("x" * 1_000_000)
        scene.workers.use(parse(file=("F", TEXT), flags=[Flag("--workers", "workers", "2")]))
        (tmp_path / "go-on").touch()
        await scene.until(lambda: sum(place.abandoned for place in scene.workers._places) == 14)
