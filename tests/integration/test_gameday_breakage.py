"""What the strikes break things with, each seen to break: a clock, a disk, sessions, a pipelined connection."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.embedded.process import EmbeddedServerError
from fencegate.gameday.clocks import Clocks
from fencegate.gameday.plain_http import NoAnswer, NotSent
from fencegate.gameday.plain_line import PlainLine, Raw
from fencegate.gameday.small_disk import SmallDisk
from fencegate.testing.postgres_owner import Crowd, by_hand
from fencegate.testing.recording_upstream import RecordingUpstream, Wire


def test_a_clock_is_set_while_its_process_runs_and_the_monotonic_one_stays(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    if clocks.missing:
        pytest.skip(clocks.missing)
    program = "import sys, time\nfor _ in sys.stdin:\n    print(time.time(), time.monotonic(), flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clocks.environment("gateway"),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def look() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, steady = process.stdout.readline().split()
            return float(wall), float(steady)

        before = look()
        clocks.set("gateway", 3600.0)
        after = look()
        clocks.leap("gateway", -0.0)
        back = look()
        process.stdin.close()
    assert 3590 < after[0] - before[0] < 3700
    assert 0 <= after[1] - before[1] < 60
    assert abs(back[0] - before[0]) < 60


async def test_a_stores_clock_is_set_while_it_runs(
    tmp_path: Path, make_postgres: Callable[..., EmbeddedPostgres]
) -> None:
    clocks = Clocks(tmp_path)
    if clocks.missing:
        pytest.skip(clocks.missing)
    server = EmbeddedPostgres(tmp_path / "clock", port=0, environment=clocks.environment("store"))
    await server.start()
    try:
        before = await by_hand(server.dsn, "SELECT clock_timestamp()")
        clocks.set("store", -0.3)
        clocks.leap("store", 3600.0)
        after = await by_hand(server.dsn, "SELECT clock_timestamp()")
    finally:
        await server.stop()
    assert 3590 < (after - before).total_seconds() < 3700


def test_a_small_disk_takes_nothing_when_it_is_full_and_all_of_it_again_when_freed(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "small")
    if reason := disk.make():
        pytest.skip(reason)
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "small" / "more").write_bytes(bytes(4 << 20))
        disk.free()
        (tmp_path / "small" / "more").write_bytes(bytes(4 << 20))
    finally:
        disk.remove()
    assert not (tmp_path / "small").is_mount()


async def test_a_crowd_takes_every_session(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "crowded", port=0, settings={"max_connections": "10"})
    await server.start()
    crowd = Crowd(server.dsn)
    try:
        await crowd.gather(50, limit=20.0)
        assert crowd.size == 10
        with pytest.raises(EmbeddedServerError):
            await by_hand(server.dsn, "SELECT 1")
        crowd.leave()
        for _ in range(600):
            try:
                connection = await asyncpg.connect(server.dsn)
            except asyncpg.TooManyConnectionsError:
                await asyncio.sleep(0.05)
            else:
                await connection.close()
                break
        else:
            pytest.fail("the sessions were not given back")
    finally:
        await server.stop()


async def test_a_burst_is_answered_in_order_and_what_is_missing_is_told_from_what_was_never_sent() -> None:
    async def two_and_no_more(wire: Wire) -> None:
        await wire.read_body()
        number = len(upstream.requests)
        if number > 2:
            wire.close = True
            return
        await wire.answer(200, b"%d" % number)

    async with RecordingUpstream(two_and_no_more) as upstream:
        line = PlainLine(upstream.url)
        requests = [line.request("POST", "/x", [("X-Fencing-Token", "7")], b"{}") for _ in range(3)]
        answers = [answer for answer, _ in await line.burst(requests, 5.0)]
        assert [a.body for a in answers if isinstance(a, Raw)] == [b"1", b"2"]
        assert isinstance(answers[2], NoAnswer)
        assert upstream.requests[0].values("X-Fencing-Token") == ["7"]
        origin = upstream.url
    assert all(isinstance(answer, NotSent) for answer, _ in await PlainLine(origin).burst([b"x"], 1.0))
