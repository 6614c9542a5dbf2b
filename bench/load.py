"""Load from other processes: wrk for HTTP, pgbench for SQL. Each run gives a rate and a 99th percentile."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BODY = '{"decision":"approve","subject":"order-81723","amount": 1250,"currency":"EUR"}'
_CLIENT = ("chrt", "--batch", "0")
"""How every client is started: an answer that wakes it does not take the core from the server that is just answering
others. A client on a machine of its own could not, and without it each answer costs the server two switches."""


@dataclass(frozen=True)
class Run:
    """One run. ``rate`` per second, of what was meant to succeed; latencies in milliseconds; ``count`` over all."""

    rate: float
    p50: float
    p99: float
    count: int
    refused: int = 0


def http(
    address: str,
    seconds: float,
    connections: int,
    *,
    path: str = "/v1/entries",
    method: str = "POST",
    token: int | None = None,
    keyed: bool = True,
    expect: str = "good",
    body: str = BODY,
    members: int = 0,
) -> Run:
    """Closed loop over ``connections``, each request to a random one of ``members`` (``%d`` in the path).

    Raises where anything came that was not ``expect`` (``good``, ``refused``)."""
    seed = str(random.randrange(2**31))
    command = [
        *_CLIENT,
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--latency",
        "-s",
        str(HERE / "load.lua"),
    ]
    arguments = [
        method,
        path,
        "" if token is None else str(token),
        "key" if keyed else "nokey",
        seed,
        body,
        str(members),
        expect,
    ]
    done = subprocess.run(
        [*command, f"http://{address}", "--", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 30,
    )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    count = found["good"] + found["refused"] + found["other"]
    if found["errors"] or found["other"] or found[expect] != count or not count:
        raise RuntimeError(f"the load met other answers than {expect}: {found}")
    return Run(found[expect] / found["seconds"], found["p50_us"] / 1e3, found["p99_us"] / 1e3, count, found["refused"])


def fixed(address: str, seconds: float, connections: int, *, path: str, token: int) -> Run:
    """As :func:`http`, but always the same write without a key, which costs the client next to nothing.

    Raises where some were refused and some were not, or worse.
    """
    duration = f"-d{max(1, round(seconds))}s"
    done = subprocess.run(
        [
            *_CLIENT, "wrk", "-t1", f"-c{connections}", duration, "--timeout", "20s", "--latency", "-s",
            str(HERE / "fixed.lua"), "-H", f"X-Fencing-Token: {token}", "-H", "Content-Type: application/json",
            f"http://{address}{path}",
        ],
        capture_output=True, text=True, check=True, timeout=seconds + 30,
    )  # fmt: skip
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["errors"] or found["refused"] not in (0, found["count"]) or not found["count"]:
        raise RuntimeError(f"the load met answers of several kinds: {found}")
    rate = found["count"] / found["seconds"]
    return Run(rate, found["p50_us"] / 1e3, found["p99_us"] / 1e3, found["count"], found["refused"])


PLAIN_TABLE = """
CREATE TABLE IF NOT EXISTS bench_plain (
    role text NOT NULL, seq bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(), key text NOT NULL, body json NOT NULL,
    PRIMARY KEY (role, seq), UNIQUE (role, key))"""
_INSERT = f"""\\set a random(0, 4294967295)
\\set b random(0, 4294967295)
\\set c random(0, 4294967295)
\\set r random(0, {{last}})
INSERT INTO bench_plain (role, token, key, body) VALUES ('ledger/' || :r, 1, :a || '-' || :b || '-' || :c, '{BODY}');
"""


_rates: dict[int, float] = {}


def pgbench(binaries: Path, dsn: str, seconds: float, clients: int, *, roles: int = 1) -> Run:
    """What an application does without a fence: prepared single-row inserts into random roles, a commit each.

    As many as take ``seconds`` at the rate of the run before: by its clock, pgbench would count the time in which
    it connects.
    """
    with tempfile.TemporaryDirectory(prefix="fencegate-bench-") as folder:
        script = Path(folder) / "insert.sql"
        script.write_text(_INSERT.replace("{last}", str(roles - 1)))
        done = subprocess.run(
            [
                *_CLIENT, str(binaries / "pgbench"), "-n", "-M", "prepared", "-f", str(script), "-c", str(clients),
                "-j", "1", "-t", str(max(20, round(_rates.get(clients, 0) * seconds / clients))), "-l",
                "--sampling-rate=0.25", dsn,
            ],
            capture_output=True, text=True, check=True, cwd=folder, timeout=seconds + 60,
        )  # fmt: skip
        micros = [
            int(line.split()[2]) for log in Path(folder).glob("pgbench_log*") for line in log.read_text().splitlines()
        ]
    facts = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
    if "tps" not in facts or not micros:
        raise RuntimeError(f"pgbench measured nothing: {done.stdout} {done.stderr}")
    count = int(done.stdout.split("number of transactions actually processed: ")[1].split()[0].split("/")[0])
    rate = _rates[clients] = float(facts["tps"].split()[0])
    latencies = with_omitted(micros, clients / rate * 1e6)
    return Run(rate, latencies[len(latencies) // 2] / 1e3, latencies[int(len(latencies) * 0.99)] / 1e3, count)


def with_omitted(micros: list[int], expected: float) -> list[float]:
    """Latencies, sorted, with those that a closed loop omits, since it sends nothing while it waits: as wrk adds them.

    ``expected``: microseconds between two requests of one client. Of each that took more than twice as long, the
    requests are added that would have been sent meanwhile.
    """
    found = [float(latency) for latency in micros]
    for latency in micros:
        late = latency - expected if latency > 2 * expected else 0.0
        while late > expected:
            found.append(late)
            late -= expected
    return sorted(found)
