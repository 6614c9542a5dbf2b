"""Services with the middleware behind a real gateway: reached through it, and not around it.

The services are the examples of ``docs/middleware.md``, as they stand there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.errors import PROBLEMS
from fencegate.key_ring import SharedKey
from fencegate.proof import Passage, Stamp, digest_of, sign
from fencegate.testing.raw_http import Answer, request
from system.serving import Serving, until
from system.serving_apps import SERVED, Tap, sent_to, served

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
PATH, BODY = "/v1/accounts/1", b'{"amount": 100}'
KEY = SharedKey("2026-11", b"the-secret-of-gateway-and-ledger")
JSON = ("Content-Type", "application/json")


@dataclass
class Place:
    """A service behind its gateway, with a tap between the two, and the table that it writes to."""

    gateway: Serving
    port: int
    tap: Tap
    token: int
    database: asyncpg.Connection
    key_file: Path
    configuration: Path

    async def write(self, *more: tuple[str, str], token: int | None = None, body: bytes = BODY) -> Answer:
        """Through the gateway."""
        port = int(self.gateway.data.rpartition(":")[2])
        return await sent_to(port, request("POST", PATH, JSON, *more, token=token or self.token, body=body))

    async def around(self, *more: tuple[str, str], body: bytes = BODY) -> Answer:
        """Straight to the service, with the token of the running term."""
        return await sent_to(self.port, request("POST", PATH, JSON, *more, token=self.token, body=body))

    async def balance(self) -> int:
        return int(await self.database.fetchval("SELECT balance FROM account"))


def key_lines(*keys: SharedKey) -> str:
    return "".join(f"{key.id} {key.secret.decode()}\n" for key in keys)


@asynccontextmanager
async def place(
    name: str, dsn: str, serve: Serve, tmp_path: Path, *options: str, route: str = ""
) -> AsyncIterator[Place]:
    database = await asyncpg.connect(dsn, timeout=60)
    key_file, configuration = tmp_path / "proof.keys", tmp_path / "fencegate.toml"
    key_file.write_text(key_lines(KEY))
    try:
        await database.execute("CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL)")
        await database.execute("INSERT INTO account VALUES (1, 0)")
        with served(name, dsn, key_file) as port:
            tap = Tap(port)
            await tap.start()
            configuration.write_text(
                'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
                f'[store]\ndsn = "{dsn}"\n[[route]]\npath = "/v1/*"\nrole = "ledger"\n'
                f'target = "http://{tap.address}"\nproof_key_file = "{key_file}"\n{route}'
            )
            try:
                gateway = serve("--config", str(configuration), "--migrate", *options)
                await asyncio.to_thread(gateway.listens)
                token = await asyncio.to_thread(gateway.discovered)
                yield Place(gateway, port, tap, token, database, key_file, configuration)
            finally:
                await tap.close()
    finally:
        database.terminate()


def assert_refused(answer: Answer, code: str) -> dict[str, Any]:
    kind = PROBLEMS[code]
    assert (answer.status, answer.one("X-Fencing-Outcome")) == (kind.status, code), answer.body
    assert answer.one("Content-Type") == "application/problem+json"
    assert (answer.one("X-Fencing-Applied"), answer.one("Cache-Control")) == ("no", "no-store")
    document = answer.json()
    assert (document["code"], document["applied"], document["status"]) == (code, "no", kind.status)
    return document


def proof_of(token: int, *, age: float = 0.0, **changes: Any) -> str:
    """A proof as a gateway would have made it ``age`` seconds ago for a write without a key."""
    issued = int((time.time() - age) * 1000)
    stamp = Stamp(issued, issued + 10_000, "0" * 16, "ledger", "enforce", digest_of(BODY))
    passage = Passage("POST", PATH.encode(), b"", str(token).encode())
    return sign(KEY, replace(stamp, **changes), passage).decode()


# Field case A10: a request that is captured and sent again.
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SERVED)
async def test_a_service_is_reached_through_its_gateway_and_not_around_it(
    name: str, fresh_dsn: str, serve: Serve, tmp_path: Path
) -> None:
    async with place(name, fresh_dsn, serve, tmp_path) as here:
        accepted = await here.write(("Idempotency-Key", "pay-1"))
        assert (accepted.status, accepted.one("X-Fencing-Outcome")) == (201, "accepted"), accepted.body
        assert accepted.json() == {"token": here.token}
        assert await here.balance() == 100
        read = await sent_to(here.port, request("GET", PATH, token=None, body=None))
        assert (read.status, read.json()) == (200, {"balance": 100})

        assert_refused(await here.around(), "proof_required")
        assert_refused(await here.around(("X-Fencing-Proof", "v=1")), "proof_invalid")
        assert_refused(await here.around(("X-Fencing-Proof", proof_of(here.token, age=60))), "proof_expired")
        assert_refused(await here.around(("X-Fencing-Proof", proof_of(here.token, age=-60))), "proof_expired")
        assert_refused(await here.around(("X-Fencing-Proof", proof_of(here.token + 1))), "proof_invalid")
        [captured] = here.tap.taken
        assert_refused(await sent_to(here.port, captured), "proof_invalid")
        assert await here.balance() == 100

        # What never arrived can be brought later: as it was, within seconds, once.
        here.tap.swallows = True
        lost = await here.write()
        assert lost.one("X-Fencing-Outcome") == "outcome_unknown"
        captured = here.tap.taken[-1]
        number = str(here.token).encode()
        for old, new in (
            (b"POST /v1/accounts/1 ", b"POST /v1/accounts/2 "),
            (b"POST ", b"PUT "),
            (b"/1 HTTP", b"/1?a=b HTTP"),
            (b"X-Fencing-Token: " + number, b"X-Fencing-Token: 9" + number),
            (b"role=ledger", b"role=payroll"),
            (b"100}", b"900}"),
            (b"X-Fencing-Timeout-Ms: ", b"X-Fencing-Timeout-Ms: 9"),
            (b"\r\nX-Fencing-Token", b"\r\nIdempotency-Key: mine\r\nX-Fencing-Token"),
        ):
            assert captured.count(old) == 1, old
            assert_refused(await sent_to(here.port, captured.replace(old, new)), "proof_invalid")
        assert await here.balance() == 100
        assert (await sent_to(here.port, captured)).status == 201
        assert_refused(await sent_to(here.port, captured), "proof_invalid")
        assert await here.balance() == 200


# Field case A10.
@pytest.mark.parametrize("name", ["fastapi", "flask"])
async def test_a_captured_write_is_taken_by_one_of_several_workers_and_by_none_that_is_started_later(
    name: str, fresh_dsn: str, serve: Serve, tmp_path: Path
) -> None:
    async with place(name, fresh_dsn, serve, tmp_path) as here:
        with served(name, fresh_dsn, here.key_file) as second, served(name, fresh_dsn, here.key_file) as third:
            await here.write()
            here.tap.swallows = True
            await here.write()
            taken, swallowed = here.tap.taken
            for port in (here.port, second, third):
                assert_refused(await sent_to(port, taken), "proof_invalid")
            racing = [sent_to(port, swallowed) for port in (here.port, second, third) for _ in range(4)]
            answers = sorted(answer.status for answer in await asyncio.gather(*racing))
            assert answers == [201] + [403] * 11
        with served(name, fresh_dsn, here.key_file) as later:
            for captured in (taken, swallowed):
                assert_refused(await sent_to(later, captured), "proof_invalid")
        assert await here.balance() == 200


@pytest.mark.parametrize("name", ["fastapi", "flask"])
async def test_a_transaction_of_a_term_that_has_ended_is_refused_by_the_services_own_guard(
    name: str, fresh_dsn: str, serve: Serve, tmp_path: Path
) -> None:
    async with place(name, fresh_dsn, serve, tmp_path) as here:
        here.tap.swallows = True
        await here.write()
        [captured] = here.tap.taken
        await here.database.execute("UPDATE fencegate.fence SET max_token_seen = max_token_seen + 1")
        document = assert_refused(await sent_to(here.port, captured), "stale_token")
        assert (document["presented_token"], document["max_token_seen"]) == (here.token, here.token + 1)
        assert await here.balance() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_keys_change_at_a_hangup_upstreams_first_and_no_write_is_lost(
    workers: str, fresh_dsn: str, serve: Serve, tmp_path: Path
) -> None:
    async with place("flask", fresh_dsn, serve, tmp_path, "--set", f"workers={workers}") as here:
        gateway_file = tmp_path / "gateway.keys"
        newer = SharedKey("2026-12", b"another-secret-of-the-same-length")

        async def hang_up(event: str) -> dict[str, Any]:
            count = len(here.gateway.facts_of(event))
            here.gateway.signal(signal.SIGHUP)
            return dict((await asyncio.to_thread(until, event, lambda: here.gateway.facts_of(event)[count:]))[-1])

        async def keys_used() -> set[bytes]:
            before = len(here.tap.taken)
            answers = [await here.write() for _ in range(8)]
            assert {answer.status for answer in answers} == {201}
            return {one.partition(b"X-Fencing-Proof: v=1;key=")[2].split(b";")[0] for one in here.tap.taken[before:]}

        gateway_file.write_text(key_lines(KEY))
        text = here.configuration.read_text()
        here.configuration.write_text(text.replace(str(here.key_file), str(gateway_file)))
        assert (await hang_up("reloaded"))["changed"] == ["route.0.proof_key_file"]
        assert await keys_used() == {b"2026-11"}

        here.key_file.write_text(key_lines(KEY, newer))  # first: every upstream knows it
        await asyncio.sleep(1.1)
        gateway_file.write_text(key_lines(newer, KEY))  # then: the gateway signs with it
        assert (await hang_up("reloaded"))["changed"] == ["proof keys"]
        used = set[bytes]()
        while used != {b"2026-12"}:  # a worker is told, and not waited for
            used = await keys_used()

        gateway_file.write_text("2026-13 short\n")
        refused = await hang_up("reload_refused")
        assert "proof_key_file: expected on each line an id" in json.dumps(refused["faults"])
        assert await keys_used() == {b"2026-12"}


async def test_a_gateway_whose_key_file_cannot_be_used_does_not_start(
    fresh_dsn: str, serve: Serve, tmp_path: Path
) -> None:
    configuration = tmp_path / "fencegate.toml"
    configuration.write_text(
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[[route]]\npath = "/v1/*"\nrole = "ledger"\n'
        f'target = "http://127.0.0.1:1"\nproof_key_file = "{tmp_path}/none"\n'
    )
    gateway = serve("--config", str(configuration), "--migrate")
    assert await asyncio.to_thread(gateway.ends) == 78
    assert f"[[route]] 1 proof_key_file: cannot read {tmp_path}/none" in "".join(gateway.err)
