"""The clients of docs/other-clients.md in curl, requests, Go and Java: what they send, and what they say came of it."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fencegate.testing.compiled_programs import go_program, java_program
from fencegate.testing.scripted_gate import Accept, Foreign, Half, Raw, Refuse, ScriptedGate, Step

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "other_clients"
APPLIED, NOT_APPLIED, NOT_KNOWN = 0, 1, 75
CREATED = Accept({"seq": 1}, max_seen=42)

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Client:
    command: tuple[str, ...]

    async def write(self, *origins: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *self.command, "ledger", "/v1/entries", "pay-1", '{"amount": 12}', *origins,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), 90)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@pytest.fixture(scope="module", params=["curl", "requests", "go", "java"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    if request.param == "requests":
        return Client((sys.executable, str(EXAMPLES / "with_requests.py")))
    if request.param == "java":
        return Client(java_program(EXAMPLES / "java" / "Write.java", tmp_path_factory.mktemp("java")))
    if request.param == "go":
        return Client(go_program(EXAMPLES / "go" / "main.go", tmp_path_factory.mktemp("go")))
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    return Client(("sh", str(EXAMPLES / "write.sh")))


@pytest.fixture
async def gate() -> AsyncIterator[ScriptedGate]:
    async with ScriptedGate() as made:
        made.leads(token=42)
        yield made


async def test_it_stamps_the_discovered_token_and_prints_the_answer(client: Client, gate: ScriptedGate) -> None:
    gate.play(CREATED)
    code, out, _ = await client.write(gate.url)
    assert (code, out.strip()) == (APPLIED, '{"seq":1}')
    (sent,) = gate.writes
    assert (sent.method, sent.path, sent.body) == ("POST", "/v1/entries", b'{"amount": 12}')
    assert (sent.header("X-Fencing-Token"), sent.header("Idempotency-Key")) == ("42", "pay-1")


@pytest.mark.parametrize(
    "first",
    [
        Refuse("overloaded", retry_after=1),
        Refuse("stale_token", max_seen=43),
        Refuse("outcome_unknown"),
        Foreign(502),
        Foreign(200),
        Foreign(302, {"Location": "/elsewhere"}),
        Half(CREATED, missing=3),
        Raw(b""),
    ],
    ids=["overloaded", "stale", "unknown", "foreign", "foreign-ok", "redirect", "half", "dropped"],
)
async def test_what_may_be_tried_again_is_under_the_same_key(client: Client, gate: ScriptedGate, first: Step) -> None:
    gate.play(first, CREATED)
    code, out, err = await client.write(gate.url)
    assert (code, out.strip()) == (APPLIED, '{"seq":1}'), err
    assert [sent.path for sent in gate.writes] == ["/v1/entries"] * 2
    assert [sent.header("Idempotency-Key") for sent in gate.writes] == ["pay-1", "pay-1"]


async def test_what_is_refused_for_good_is_sent_once(client: Client, gate: ScriptedGate) -> None:
    gate.play(Refuse("token_not_issued"))
    code, out, _ = await client.write(gate.url)
    assert (code, out, len(gate.writes)) == (NOT_APPLIED, "", 1)


async def test_a_refusal_after_a_lost_answer_leaves_it_unknown(client: Client, gate: ScriptedGate) -> None:
    gate.play(Raw(b""), Refuse("token_not_issued"))
    code, _, _ = await client.write(gate.url)
    assert (code, len(gate.writes)) == (NOT_KNOWN, 2)


async def test_an_upstreams_own_refusal_is_printed_and_is_no_success(client: Client, gate: ScriptedGate) -> None:
    gate.play(Accept({"error": "no funds"}, status=402))
    code, out, _ = await client.write(gate.url)
    assert (code, out.strip(), len(gate.writes)) == (NOT_APPLIED, '{"error":"no funds"}', 1)


async def test_a_leader_that_is_not_in_the_list_is_never_sent_to_and_is_named(
    client: Client, gate: ScriptedGate
) -> None:
    async with ScriptedGate(otherwise=CREATED) as other:
        gate.leads(token=42, url=other.url)
        code, _, err = await client.write(gate.url)
        assert (code, gate.writes, other.writes) == (NOT_APPLIED, [], [])
        assert f"not one of the origins given: {other.url}" in err


async def test_a_leader_in_the_list_is_found_through_any_gateway(client: Client, gate: ScriptedGate) -> None:
    async with ScriptedGate(otherwise=CREATED) as other:
        gate.leads(token=42, url=other.url)
        code, _, err = await client.write("http://127.0.0.1:9", gate.url, other.url)
        assert (code, len(gate.writes), len(other.writes)) == (APPLIED, 0, 1), err
