"""64 MiB uploads, four at once, through the fenced ``http`` target ÷ nginx without buffering; and the peak memory."""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.ledger_writes import ROUTE
from bench.load import Run
from bench.rounds import Answer, answers, measured, paired, plain
from bench.servers import free_port, gateway, nginx_proxy, postgres, rss_kib, started, until_open

MIB = 1024 * 1024
SIZE, AT_ONCE = 64 * MIB, 4
_ROUTE = """
[[route]]
path = "/web/*"
role = "ledger"
max_body_bytes = 67108864
target = "http://127.0.0.1:{port}"
"""


def run(rounds: int, seconds: float) -> list[Answer]:
    with (
        sink() as port,
        nginx_proxy(f"127.0.0.1:{port}") as front,
        postgres() as database,
        gateway(database, ROUTE + _ROUTE.format(port=port)) as ours,
    ):
        at_rest = rss_kib(ours.pid)
        each = max(1, round(seconds))
        a, b = paired(
            rounds,
            lambda: measured(lambda: uploads(ours.address, each, token=ours.token), gateway=ours.pid),
            lambda: measured(lambda: uploads(front.address, each), nginx=front.pid),
        )
        peaks = [_peak_of(ours.pid, lambda: uploads(ours.address, 1, token=ours.token)) for _ in range(2)]
    fast = answers("64 MiB uploads, four at once, fenced ÷ nginx without request buffering", "≥ 1", a, b, unit=" MiB/s")
    grown = plain(
        "peak memory of the gateway under four uploads above what it has at rest",
        "≤ 32 MiB",
        [(peak - at_rest) / 1024 for peak in peaks],
        " MiB",
    )
    grown.more.update(at_rest_mib=at_rest / 1024, peak_mib=max(peaks) / 1024)
    return [fast, grown]


def uploads(address: str, times: int, *, token: int | None = None) -> Run:
    """``times`` bodies of 64 MiB over each of four connections; the rate and the count are in MiB.

    Raises where an answer is not 201."""
    failures: list[str] = []
    spent: list[float] = []

    def one() -> None:
        connection = http.client.HTTPConnection(address, timeout=120, blocksize=MIB)
        body = memoryview(bytes(SIZE))
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(SIZE)}
        if token is not None:
            headers["X-Fencing-Token"] = str(token)
        for _ in range(times):
            began = time.monotonic()
            connection.request("POST", "/web/x", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            spent.append((time.monotonic() - began) * 1e3)
            if answer.status != 201:
                failures.append(f"{answer.status} {content[:300]!r}")
                return
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(AT_ONCE)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures or len(spent) != times * AT_ONCE:
        raise RuntimeError(f"an upload failed: {failures}")
    mib = times * AT_ONCE * SIZE // MIB
    spent.sort()
    return Run(mib / (time.monotonic() - began), spent[len(spent) // 2], spent[-1], mib)


def _peak_of(pid: int, work: Callable[[], object]) -> int:
    """KiB: the most that was resident while ``work`` ran."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    work()
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


@contextlib.contextmanager
def sink() -> Iterator[int]:
    """An upstream that takes every upload; its port."""
    port = free_port()
    with started(sys.executable, "-m", "bench.sink", str(port)):
        until_open(port)
        yield port
