"""The proof that goes with a forwarded write: an upstream that reads it sees what the gate let through, and no more."""

from __future__ import annotations

import time
from ipaddress import ip_network

import pytest

from fencegate.gateway.caller import Callers
from fencegate.proof import COVERED_BODY, LIFETIME, Passage, ProofRefused, Stamp, digest_of, verify
from fencegate.testing.raw_http import assert_accepted, assert_refusal, chunked, request
from fencegate.testing.recording_upstream import Recorded
from fencegate.testing.wire_world import HTTP, PROOF_KEY, World, WorldFactory


def stamp_of(sent: Recorded, path: bytes) -> Stamp:
    """What the proof of this request says. Fails where it was not made for it."""
    [proof] = sent.values("X-Fencing-Proof")

    def value(name: str) -> bytes | None:
        found = sent.values(name)
        assert len(found) <= 1
        return found[0].encode("latin-1") if found else None

    passage = Passage(
        sent.method,
        path,
        sent.target.partition("?")[2].encode("latin-1"),
        value("X-Fencing-Token"),
        value("X-Fencing-Max-Seen"),
        value("X-Fencing-Timeout-Ms"),
        value("Idempotency-Key"),
        value("X-Fencing-Caller"),
    )
    return verify([PROOF_KEY], proof.encode(), passage, time.time(), 0.5)


async def test_a_forwarded_write_carries_a_proof_of_what_was_let_through(world: World) -> None:
    message = request("PUT", "/proved/a%20b;v=%C3%A9?c=d&e", key='"k-1"', body=b'{"amount":1}')
    assert_accepted(await world.ask(message))
    [sent] = world.upstream.requests
    stamp = stamp_of(sent, "/base/proved/a b;v=é".encode())
    assert (stamp.role, stamp.mode, stamp.body) == ("web", "enforce", digest_of(b'{"amount":1}'))
    assert abs(stamp.issued / 1000 - time.time()) < 5
    assert stamp.expires == stamp.issued + LIFETIME * 1000
    assert sent.values("Idempotency-Key") == ['"k-1"']


async def test_each_proof_is_another_one_and_holds_for_its_own_request_alone(world: World) -> None:
    for path in ("/proved/one", "/proved/one", "/proved/two"):
        assert_accepted(await world.ask(request("POST", path)))
    one, again, two = world.upstream.requests
    assert stamp_of(one, b"/base/proved/one").nonce != stamp_of(again, b"/base/proved/one").nonce
    with pytest.raises(ProofRefused):
        stamp_of(two, b"/base/proved/one")


# Field case A6: dadrus/heimdall#653, boringproxy/boringproxy#124.
@pytest.mark.parametrize("name", ["X-Fencing-Proof", "x_fencing_proof", "X-FENCING_PROOF"])
@pytest.mark.parametrize("path", ["/proved/thing", HTTP.path])
async def test_a_clients_own_proof_never_reaches_the_upstream(world: World, name: str, path: str) -> None:
    assert_accepted(await world.ask(request("POST", path, (name, "v=1;key=mine"))))
    read = b"GET %b HTTP/1.1\r\nHost: gate.example\r\n%b: v=1;key=mine\r\n\r\n" % (path.encode(), name.encode())
    assert (await world.ask(read)).status == 200
    write, got = world.upstream.requests
    folded = [key for key, _ in write.headers if key.lower().replace("_", "-") == "x-fencing-proof"]
    assert folded == (["X-Fencing-Proof"] if path.startswith("/proved") else [])
    assert not [key for key, _ in got.headers if "proof" in key.lower()]
    assert not any("mine" in value for _, value in write.headers)


async def test_no_client_can_have_the_proof_taken_off_behind_the_gate(world: World) -> None:
    answer = await world.ask(request("POST", "/proved/thing", ("Connection", "X-Fencing-Proof")))
    assert_refusal(answer, "request_malformed")
    assert world.upstream.requests == []


async def test_a_body_is_covered_where_all_of_it_was_in_memory(world: World) -> None:
    large = b"x" * (COVERED_BODY + 1)
    for message in (
        request("POST", "/proved/a", body=b""),
        request("POST", "/proved/a", body=large),
        request("POST", "/proved/a", ("Transfer-Encoding", "chunked"), body=chunked(b"some", b"more")),
    ):
        assert_accepted(await world.ask(message))
    empty, streamed, in_chunks = world.upstream.requests
    assert stamp_of(empty, b"/base/proved/a").body == digest_of(b"")
    assert stamp_of(streamed, b"/base/proved/a").body in (None, digest_of(large))
    assert stamp_of(in_chunks, b"/base/proved/a").body == digest_of(b"somemore")
    assert (streamed.body[:10], in_chunks.body) == (large[:10], b"somemore")


async def test_a_write_that_is_only_observed_says_so(world: World) -> None:
    stale = request("POST", "/watched-proved/a", token="41")
    assert (await world.ask(stale)).status == 200
    [sent] = world.upstream.requests
    assert stamp_of(sent, b"/watched-proved/a").mode == "observe"


async def test_the_caller_whom_the_gateway_names_is_covered(new_world: WorldFactory) -> None:
    callers = Callers(header="X-Forwarded-User", proxies=[ip_network("127.0.0.0/8")])
    async with new_world(callers=callers) as world:
        named = request("POST", "/proved/a", ("X-Forwarded-User", "alice"), ("X-Fencing-Caller", "mallory"))
        assert_accepted(await world.ask(named))
        [sent] = world.upstream.requests
    assert sent.values("X-Fencing-Caller") == ["alice"]
    stamp_of(sent, b"/base/proved/a")
    sent.headers = [(name, "mallory" if name == "X-Fencing-Caller" else value) for name, value in sent.headers]
    with pytest.raises(ProofRefused):
        stamp_of(sent, b"/base/proved/a")


async def test_a_refused_write_gets_no_proof_and_goes_nowhere(world: World) -> None:
    assert_refusal(await world.ask(request("POST", "/proved/a", token="41")), "stale_token")
    assert world.upstream.requests == []
