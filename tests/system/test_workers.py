"""``fencegate serve --workers 2``: one gateway to its clients and its operators, of several processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from system.regions import LEDGER, SECRET, Writers, arguments, counted, entries_of, hand, try_to_hand
from system.serving import Answer, Serving, ask, until
from system.upstreams import SLOW, slow_upstream

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux"),
]

Serve = Callable[..., Serving]
TWO = ("--workers", "2")
START = 60.0
"""Seconds for three processes to start on a busy machine."""


def workers(gateway: Serving) -> dict[int, int]:
    """The process that has each worker's place now, by the worker's number."""
    return {int(fact["number"]): int(fact["pid"]) for fact in gateway.facts_of("worker_serves")}


def is_gone(pid: int) -> bool:
    """Whether there is no such process, not even one that nobody has buried."""
    return not Path(f"/proc/{pid}").exists()


def is_dead(pid: int) -> bool:
    """As :func:`is_gone`, for one whose parent has died: who buries it then is not up to us."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def sums(gateway: Serving) -> dict[str, float]:
    """Every counter's sample that is on the page of metrics."""
    text = ask(gateway.admin, "GET", "/metrics", Authorization=f"Bearer {SECRET}").body.decode()
    return {
        name: float(value)
        for name, value in re.findall(r"^(\w+(?:{.*?})?) (\S+)$", text, re.MULTILINE)
        if "_total" in name or "_bucket" in name or "_count" in name
    }


@contextmanager
def watched(gateway: Serving) -> Iterator[list[str]]:
    """Meanwhile the metrics are looked at again and again; the names of sums that fell or were gone."""
    fallen: list[str] = []
    over = threading.Event()

    def look() -> None:
        before: dict[str, float] = {}
        while not over.wait(0.1):
            now = sums(gateway)
            fallen.extend(name for name, value in before.items() if now.get(name, -1) < value)
            before = now

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield fallen
    finally:
        over.set()
        thread.join()


def test_two_workers_are_one_gateway_with_one_elector_one_sequence_and_one_page_of_metrics(
    serve: Serve, tmp_path: Path
) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg"), *TWO).listens(START)
    token = gateway.leads()
    assert len(set(workers(gateway).values()) - {gateway.process.pid}) == 2

    until("a first write", lambda: gateway.write(token).status == 201)
    written = [gateway.write(token) for _ in range(59)]
    assert [answer.status for answer in written] == [201] * 59
    assert [answer.json["seq"] for answer in written] == list(range(2, 61)), "a connection each, and no gap"
    # The instance of a refusal begins with what is the process' own.
    refused = [gateway.ask("POST", "/v1/entries", {}, **{"X-Fencing-Token": "0"}) for _ in range(60)]
    answered = Counter(answer.json["instance"][:-12] for answer in refused)
    assert len(answered) == 2
    assert min(answered.values()) >= 5, "the chance of fewer is below one in a million"
    stale = [gateway.write(token + 1000) for _ in range(10)]
    assert {answer.outcome for answer in stale} == {"token_not_issued"}

    until("the sum", lambda: counted(gateway, "fencing_checks_total").get("refused") == 70)
    checks = counted(gateway, "fencing_checks_total")
    assert checks["accepted"] == 60
    assert counted(gateway, "fencing_rejections_total") == {"token_malformed": 60, "token_not_issued": 10}
    page = ask(gateway.admin, "GET", "/metrics").body.decode()
    assert re.findall(r"^fencing_leader{.*} (\S+)$", page, re.MULTILINE) == ["1.0"]
    assert re.findall(r"^fencing_workers (\S+)$", page, re.MULTILINE) == ["2.0"]
    assert len(gateway.facts_of("leadership_gained")) == 1

    document = ask(gateway.admin, "GET", "/-/roles").json
    assert document["roles"][0]["rejections"] == {"token_malformed": 60, "token_not_issued": 10}
    assert [line["refused"] for line in document["stale_senders"]] == [10], "zombies: one sender, whoever refused it"
    state = ask(gateway.admin, "GET", "/-/console/state").json
    assert [leads for _, leads in state["roles"][0]["memory"]["leading"]] == [1]
    assert gateway.stop() == 0
    assert all(is_gone(pid) for pid in workers(gateway).values())


@pytest.mark.timeout(180)
async def test_each_worker_killed_under_load_loses_nothing_doubles_nothing_and_comes_back(
    serve: Serve, fresh_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    gateway = serve(*arguments("eu", address, fresh_dsn, 'source = "postgres"\n', tmp_path), *TWO).listens(START)
    token = await asyncio.to_thread(gateway.leads)
    writers = Writers([f"http://{address}"], 8)
    with watched(gateway) as fallen:
        for number in (1, 2, 1, 2):
            await asyncio.sleep(0.7)
            victim = workers(gateway)[number]
            os.kill(victim, signal.SIGKILL)
            await asyncio.to_thread(until, "the next worker", lambda n=number, v=victim: workers(gateway)[n] != v)
            assert is_gone(victim)
        await asyncio.sleep(0.7)
        await writers.end()
        await asyncio.sleep(1)
    assert not fallen
    ended = gateway.facts_of("worker_ended")
    assert [(fact["number"], fact["reason"]) for fact in ended] == [(n, "killed by SIGKILL") for n in (1, 2, 1, 2)]
    assert not writers.failures
    entries = await asyncio.to_thread(entries_of, gateway)
    names = [name for _, name in entries]
    assert sorted(names) == sorted(set(names)), "applied twice"
    assert set(names) == set(writers.acknowledged), "lost"
    assert {of for of, _ in entries} == {token}, "the term went on: its elector was never touched"
    told = await asyncio.to_thread(counted, gateway, "fencing_checks_total")
    assert 0 < told["accepted"] <= len(names)
    assert sums(gateway)["fencing_worker_ends_total"] == 4
    assert await asyncio.to_thread(gateway.stop) == 0


@pytest.mark.timeout(180)
async def test_handoffs_between_regions_of_two_workers_are_pauses_under_load(
    serve: Serve,
    fresh_dsn: str,
    other_dsn: str,
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    tmp_path: Path,
    unused_ports: list[int],
) -> None:
    election = f'source = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    route = f"{LEDGER}hold_ms = 8000\n"
    eu = serve(*arguments("eu", addresses[0], fresh_dsn, election, tmp_path, route=route), *TWO).listens(START)
    await asyncio.to_thread(eu.leads)
    dr = serve(*arguments("dr", addresses[1], other_dsn, election, tmp_path, route=route), *TWO).listens(START)
    writers = Writers([f"http://{address}" for address in addresses], 8)
    # Nothing is held where nobody writes yet.
    await asyncio.to_thread(until, "writes in eu", lambda: len(entries_of(eu)) > 50)
    await asyncio.to_thread(hand, eu, "dr", tmp_path)
    await asyncio.to_thread(until, "writes in dr", lambda: len(entries_of(dr)) > 50)
    await asyncio.to_thread(hand, dr, "eu", tmp_path)
    await asyncio.sleep(0.5)
    await writers.end()

    assert not writers.failures
    entries = [entry for gateway in (eu, dr) for entry in await asyncio.to_thread(entries_of, gateway)]
    names = [name for _, name in entries]
    assert sorted(names) == sorted(set(names)), "applied twice"
    assert set(names) == set(writers.acknowledged), "lost"
    assert len({token for token, _ in entries}) == 3
    # On a busy machine a handoff may be over before anybody writes into it; not both, or the test shows nothing.
    await asyncio.to_thread(until, "counts", lambda: any(counted(gate, "fencing_holds_total") for gate in (eu, dr)))
    for gateway in (eu, dr):
        reasons = await asyncio.to_thread(counted, gateway, "fencing_rejections_total")
        assert set(reasons) <= {"not_leader", "stale_token"}, "a held write is never told to come back later"
        assert set(await asyncio.to_thread(counted, gateway, "fencing_holds_total")) <= {"news"}
        assert await asyncio.to_thread(gateway.stop) == 0


@pytest.fixture
async def many_threads() -> None:
    """For as many clients at once as a test has: by default there are a few threads a core."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))


@pytest.mark.usefixtures("many_threads")
async def test_a_handoff_waits_for_a_write_under_way_at_any_worker_and_undone_it_is_a_pause_for_both(
    serve: Serve, fresh_dsn: str, other_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    upstream, let_go, _ = slow_upstream()
    addresses = [f"127.0.0.1:{port}" for port in unused_ports]
    async with upstream:
        election = f'source = "postgres"\ndsn = "{fresh_dsn}"\n'
        route = (
            f'[[route]]\npath = "/v1/*"\nrole = "ledger"\ntarget = "{upstream.url}"\ntimeout = 25\nhold_ms = 12000\n'
        )
        eu = serve(*arguments("eu", addresses[0], fresh_dsn, election, tmp_path, route=route), *TWO).listens(START)
        token = await asyncio.to_thread(eu.leads)
        dr = serve(*arguments("dr", addresses[1], other_dsn, election, tmp_path, route=route), *TWO).listens(START)
        assert await asyncio.to_thread(dr.discovered) == token

        def write(**headers: str) -> asyncio.Task[Answer]:
            return asyncio.create_task(asyncio.to_thread(eu.write, token, path="/v1/thing", **headers))

        slow = [write(**SLOW) for _ in range(6)]
        await upstream.arrived(6, 30)
        handing = asyncio.create_task(asyncio.to_thread(try_to_hand, eu, "dr", tmp_path, limit=5))
        await asyncio.to_thread(until, "the handoff", lambda: eu.facts_of("handoff_began"))
        await asyncio.sleep(0.3)
        held = [write() for _ in range(20)]
        code, document = await handing
        assert (code, document["outcome"]) == (75, "undone")
        assert {answer.outcome for answer in await asyncio.gather(*held)} == {"accepted"}
        await asyncio.to_thread(until, "the count of both workers", lambda: counted(eu, "fencing_holds_total"))
        assert counted(eu, "fencing_holds_total").keys() == {"news"}
        assert not dr.facts_of("leadership_gained"), "while a write was under way at a worker of the other region"

        let_go.set()
        assert {answer.outcome for answer in await asyncio.gather(*slow)} == {"accepted"}
        done = await asyncio.to_thread(hand, eu, "dr", tmp_path)
        assert done["outcome"] == "done"
        refused = [await write() for _ in range(20)]
        assert {answer.outcome for answer in refused} == {"not_leader"}, "every worker knows"
        assert {answer.headers["x-fencing-leader"] for answer in refused} == {f"http://{addresses[1]}"}


@pytest.mark.usefixtures("many_threads")
async def test_sighup_reaches_every_worker_and_sigterm_ends_all_in_order_and_the_term_last(
    serve: Serve, fresh_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    upstream, let_go, finished = slow_upstream()
    address = f"127.0.0.1:{unused_ports[0]}"
    async with upstream:
        route = f'[[route]]\npath = "/v1/*"\nrole = "ledger"\ntarget = "{upstream.url}"\n'
        options = arguments("eu", address, fresh_dsn, 'source = "postgres"\n', tmp_path, route=route)
        gateway = serve(*options, *TWO).listens(START)
        token = await asyncio.to_thread(gateway.leads)

        file = Path(options[1])
        file.write_text(file.read_text().replace("[admin]", "[limits]\nheader_bytes = 1024\n[admin]"))
        gateway.signal(signal.SIGHUP)
        await asyncio.to_thread(until, "the reload", lambda: gateway.facts_of("reloaded"))

        def large() -> set[str | None]:
            padding = {"X-Padding": "x" * 2000}
            return {gateway.write(token, path="/v1/thing", **padding).outcome for _ in range(30)}

        await asyncio.to_thread(until, "the new limit at both", lambda: large() == {"headers_too_large"})

        slow = [
            asyncio.create_task(asyncio.to_thread(gateway.write, token, path="/v1/thing", **SLOW)) for _ in range(6)
        ]
        await upstream.arrived(6, 30)
        gateway.signal(signal.SIGTERM)
        await asyncio.to_thread(until, "its end", lambda: gateway.facts_of("stopping"))
        await asyncio.sleep(0.5)
        assert not gateway.facts_of("leadership_lost"), "before the writes under way have ended"
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset
            await asyncio.to_thread(gateway.write, token, path="/v1/thing")
        let_go.set()
        assert {answer.outcome for answer in await asyncio.gather(*slow)} == {"accepted"}
        assert finished == [token] * 6
        assert await asyncio.to_thread(gateway.ends) == 0
        assert [fact["known"] for fact in gateway.facts_of("term_sealed")] == [True]
        assert gateway.facts_of("stopped")[-1]["abandoned"] == 0
        assert not gateway.facts_of("worker_ended")
        assert all(is_gone(pid) for pid in workers(gateway).values())


def test_workers_of_a_killed_supervisor_die_with_it_and_the_next_one_leads_after_the_lease(
    serve: Serve, fresh_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    options = arguments("eu", address, fresh_dsn, 'source = "postgres"\n', tmp_path)
    gateway = serve(*options, *TWO).listens(START)
    first = gateway.leads()
    assert gateway.write(first).status == 201
    os.kill(workers(gateway)[2], signal.SIGSTOP)  # Not even a frozen one is left.
    killed_at = time.monotonic()
    gateway.process.kill()
    try:
        until("no worker", lambda: all(is_dead(pid) for pid in workers(gateway).values()))
    finally:
        for pid in workers(gateway).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    gateway.ends()
    with socket.socket() as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(("127.0.0.1", unused_ports[0]))
        pytest.fail("something listens still")

    again = serve(*options, *TWO).listens(START)
    second = again.leads()
    assert second > first
    assert time.monotonic() - killed_at > 2, "before the lease of the killed one was over"
    assert {again.write(first).outcome for _ in range(10)} == {"stale_token"}
    assert again.write(second).json["seq"] == 2
    assert again.stop() == 0


def test_workers_of_a_frozen_supervisor_write_nothing_after_its_lease_and_again_when_it_thaws(
    serve: Serve, fresh_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    gateway = serve(*arguments("eu", address, fresh_dsn, 'source = "postgres"\n', tmp_path), *TWO).listens(START)
    token = gateway.leads()
    gateway.process.send_signal(signal.SIGSTOP)
    until("the store's own lease to end", lambda: gateway.write(token).status != 201)
    time.sleep(0.5)
    assert {gateway.write(token).status for _ in range(20)} <= {409, 503}, "whoever would have let it through"
    gateway.process.send_signal(signal.SIGCONT)
    until("a term", lambda: gateway.write(gateway.discovered()).status == 201, 40)
    assert gateway.stop() == 0


def test_a_port_in_use_is_a_fault_also_between_gateways_that_would_both_share_it(
    serve: Serve, fresh_dsn: str, tmp_path: Path, unused_ports: list[int]
) -> None:
    address = f"127.0.0.1:{unused_ports[0]}"
    election = 'source = "postgres"\n'
    serve(*arguments("eu", address, fresh_dsn, election, tmp_path), *TWO).listens(START)
    other = serve(*arguments("eu", address, fresh_dsn, election, tmp_path, node="other"), *TWO)
    assert other.ends() == 1
    assert f'listen.data = "{address}": cannot listen there: Address already in use' in "".join(other.err)
