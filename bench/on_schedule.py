"""Requests on a schedule (open loop), from a process of its own: who is late is still sent, and its wait counts.

wrk waits for each answer before it sends again, so a server that stalls is spared just then. Here ``rate`` requests a
second go out whatever comes back, pipelined over the connections, and a latency is counted from when the request was
*due*. With ``rate`` 0 each connection sends again as soon as it is answered (closed loop), which wrk does at less cost,
but wrk has one latency for every status and keeps its token; with ``follow`` a refused writer takes the newer one on.

The last line of the output is JSON. A generator that did not keep to its schedule says so, and :func:`on_schedule`
raises: the figure would be the generator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from bench.load import BODY, Run

_TICK = 0.001
_LATE = 0.1
"""Seconds behind its time from which on a request counts as late."""
_STATUS = b"HTTP/1.1 "
_MAX_SEEN = b"X-Fencing-Max-Seen: "


class _Writer(asyncio.Protocol):
    """One connection. ``due``: when each unanswered request was to be sent."""

    def __init__(self, load: _Load) -> None:
        self.load = load
        self.due: deque[float] = deque()
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self, due: float) -> None:
        self.due.append(due)
        self.transport.write(self.load.request())

    def data_received(self, data: bytes) -> None:
        now, load = _now(), self.load
        data = self._rest + data
        at = data.find(_STATUS)
        while at >= 0 and len(data) >= at + 12:
            after = data.find(_STATUS, at + 9)
            load.answered(int(data[at + 9 : at + 12]), now - self.due.popleft())
            if load.follow and (seen := data.find(_MAX_SEEN, at, after if after >= 0 else None)) >= 0:
                token, whole, _ = data[seen + len(_MAX_SEEN) :].partition(b"\r\n")
                if whole:
                    load.take_token(token)
            at = after
            if load.rate == 0 and now < load.ends:
                self.send(now)
        # A status line that lies across two reads; else nothing that could be taken for one.
        self._rest = data[at:] if at >= 0 else data[-8:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.lost += len(self.due)
        self.due.clear()


class _Load:
    def __init__(self, options: argparse.Namespace) -> None:
        self.rate, self.follow, self.ends = options.rate, options.follow, 0.0
        self.count = self.lost = self.made = 0
        self.latencies: dict[int, list[float]] = {}
        self._body = BODY.encode()
        self._keyed = options.keyed
        self._prefix = f"{random.getrandbits(48):012x}-".encode()
        self._head = (
            f"POST {options.path} HTTP/1.1\r\nHost: gate.example\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self._body)}\r\n"
        ).encode()
        self.take_token(str(options.token).encode())

    def take_token(self, token: bytes) -> None:
        self._token = b"X-Fencing-Token: " + token + b"\r\n"

    def request(self) -> bytes:
        self.made += 1
        # The counter in front, multiplied by an odd number: keys that come in order are kind to an index.
        key = b"Idempotency-Key: %08x%b\r\n" % (self.made * 2654435761 & 0xFFFFFFFF, self._prefix)
        return self._head + self._token + (key if self._keyed else b"") + b"\r\n" + self._body

    def answered(self, status: int, latency: float) -> None:
        self.latencies.setdefault(status, []).append(latency)
        self.count += 1

    async def rest(self, limit: float) -> None:
        """Until every request has its answer or was lost, for up to ``limit`` s."""
        end = _now() + limit
        for _ in range(int(limit / 0.01)):
            if self.count + self.lost >= self.made or _now() >= end:
                return
            await asyncio.sleep(0.01)


def _now() -> float:
    return time.perf_counter()  # uvloop's clock counts whole milliseconds


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    loop, load = asyncio.get_running_loop(), _Load(options)
    host, _, port = options.address.rpartition(":")
    writers = [
        (await loop.create_connection(lambda: _Writer(load), host, int(port)))[1] for _ in range(options.connections)
    ]
    began = _now()
    load.ends = began + options.seconds
    sent, late, latest = 0, 0, 0.0
    if load.rate == 0:
        for writer in writers:
            writer.send(began)
        await asyncio.sleep(options.seconds)
    while load.rate and (now := _now()) < load.ends + _LATE and sent < options.seconds * load.rate:
        while sent < options.seconds * load.rate and (due := began + sent / load.rate) <= now:
            writers[sent % len(writers)].send(due)
            late += now - due > _LATE
            latest = max(latest, now - due)
            sent += 1
        await asyncio.sleep(_TICK)
    asked_for = int(options.seconds * load.rate)
    await load.rest(5.0)
    unanswered = load.made - load.count
    for writer in writers:
        writer.transport.abort()
    return {
        "seconds": _now() - began if load.rate == 0 else options.seconds,
        "asked_for": asked_for,
        "sent": sent,
        "late": late,
        "latest_ms": latest * 1e3,
        "unanswered": unanswered,
        "lost": load.lost,
        "statuses": {status: _summary(found) for status, found in load.latencies.items()},
    }


def _summary(latencies: list[float]) -> dict[str, float]:
    latencies.sort()
    return {
        "count": len(latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


@dataclass(frozen=True)
class Asked:
    """What to send: ``rate`` a second over ``connections`` (0: closed loop), each with ``token``."""

    address: str
    token: int
    rate: float
    connections: int
    path: str = "/v1/entries"
    follow: bool = False
    keyed: bool = True


def on_schedule(asked: Asked, seconds: float, *, expect: int) -> Run:
    """One run in a process of its own; latencies from when each request was due.

    Raises where an answer was not ``expect`` (with ``follow`` 409 is one as well), or where the generator did not keep
    to its schedule.
    """
    command = [
        sys.executable, "-m", "bench.on_schedule", asked.address, "--token", str(asked.token), "--path", asked.path,
        "--rate", str(asked.rate), "--connections", str(asked.connections), "--seconds", str(seconds),
        *(["--follow"] if asked.follow else []), *(["--keyed"] if asked.keyed else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["sent"] < found["asked_for"] or found["late"] > found["asked_for"] * 0.01:
        raise BehindSchedule(
            f"the generator sent {found['sent']:,} of {found['asked_for']:,} requests, {found['late']:,} of them over "
            f"{_LATE:g} s late: this machine does not carry {asked.rate:,.0f}/s"
        )
    statuses = found["statuses"]
    if found["unanswered"] and not found["lost"]:
        raise BehindSchedule(
            f"{found['unanswered']:,} of {found['asked_for']:,} requests had no answer 5 s after the last was due: "
            f"{asked.rate:,.0f}/s are not carried here"
        )
    others = {status for status in statuses if int(status) != expect and not (asked.follow and status == "409")}
    good = statuses.get(str(expect))
    if others or found["unanswered"] or good is None:
        raise RuntimeError(f"the load met other answers than {expect}: {found}")
    count = sum(int(entry["count"]) for entry in statuses.values())
    return Run(good["count"] / found["seconds"], good["p50_ms"], good["p99_ms"], count)


class BehindSchedule(RuntimeError):
    """The generator could not keep to its schedule, or its requests were not answered in any time."""


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--token", type=int, required=True)
    parser.add_argument("--path", default="/v1/entries")
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--keyed", action="store_true")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(options))))


if __name__ == "__main__":
    main()
