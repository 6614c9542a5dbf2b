"""Malformed tokens, their header's twins, and keys: refused at every target, written nowhere, echoed never."""

from __future__ import annotations

import pytest

from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, request
from fencegate.testing.wire_world import HTTP, LEDGER, TARGETS, Target, World

MALFORMED: list[bytes] = [
    b"",
    b"+42",
    b"-42",
    b"-1",
    b"0",
    b"00",
    b"042",
    b"007",
    b"4 2",
    b"42 42",
    b"42,43",
    b"42, 42",
    b"42;a=b",
    b"42;",
    b"4_2",
    b"1_000",
    b"0x2a",
    b"0b1",
    b"0o52",
    b"42.0",
    b"42.",
    b".42",
    b"4.2e1",
    b"1e3",
    b'"42"',
    b"'42'",
    b"(42)",
    b"42L",
    b"42n",
    b"42%",
    b"%34%32",
    b"forty-two",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"9223372036854775808",
    b"18446744073709551615",
    b"99999999999999999999",
    b"9" * 5000,
    "４２".encode(),  # full-width digits
    "४२".encode(),  # Devanagari digits
    "٤٢".encode(),  # Arabic-Indic digits
    "4²".encode(),
    b"4\xb2",  # superscript two in Latin-1
    b"\xa042",  # a no-break space in Latin-1
    "\u00a042".encode(),
    "42\u200b".encode(),
    b"\xef\xbb\xbf42",
    b"Bearer 42",
    b"token=42",
    b"42\xff",
]

TWINS = ["X_Fencing_Token", "x_fencing-token", "X-Fencing_Token", "x_FENCING_TOKEN"]


# Field case A5: pallets/werkzeug#2716, pallets/werkzeug#3235, aio-libs/aiohttp#12794.
@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_no_malformed_token_is_taken_and_none_is_echoed(world: World, target: Target) -> None:
    async with Line.to(world.port) as line:
        for value in MALFORMED:
            answer = await line.ask(request("POST", target.path, token=value))
            document = assert_refusal(answer, "token_malformed")
            assert "presented_token" not in document
            if len(value) > 6:
                assert value not in answer.body
    assert await world.effects(target) == 0


# Field case 87: kubernetes-sigs/gateway-api#765, hasura/graphql-engine#6290.
# Field case A3: kubernetes-sigs/gateway-api#765.
@pytest.mark.parametrize("target", TARGETS, ids=str)
async def test_two_token_lines_are_malformed_even_if_equal(world: World, target: Target) -> None:
    for second in ("42", "43", "41", ""):
        message = request("POST", target.path, ("X-Fencing-Token", second))
        assert_refusal(await world.ask(message), "token_malformed")
    assert await world.effects(target) == 0


# Field case A4: benoitc/gunicorn#2799, cherrypy/cheroot#17, caddyserver/caddy#7808, apache/httpd#558.
@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", TWINS)
async def test_a_header_that_folds_into_the_token_is_malformed(world: World, target: Target, name: str) -> None:
    assert_refusal(await world.ask(request("POST", target.path, (name, "42"))), "token_malformed")
    assert_refusal(await world.ask(request("POST", target.path, (name, "42"), token=None)), "token_malformed")
    assert await world.effects(target) == 0


@pytest.mark.parametrize("control", [b"\0", b"\x0b", b"\x0c", b"\x7f", b"\x01"], ids=repr)
async def test_a_control_character_in_the_token_never_passes(world: World, control: bytes) -> None:
    async with Line.to(world.port) as line:
        answer = await line.ask(request("POST", LEDGER.path, token=b"4" + control + b"2"))
    assert answer.status == 400
    assert await world.effects(LEDGER) == 0


async def test_the_space_that_http_allows_around_a_value_is_not_part_of_the_token(world: World) -> None:
    assert_accepted(await world.ask(request("POST", LEDGER.path, token=b" \t 42 \t")))


async def test_the_header_name_is_read_without_case(world: World) -> None:
    assert_accepted(await world.ask(request("POST", LEDGER.path, ("x-fEnCiNg-ToKeN", "42"), token=None)))


@pytest.mark.parametrize("key", ['"', '"open', '""', '"a";p=1', "a b", "k" * 256, '"' + "k" * 256 + '"', "é"])
async def test_a_malformed_key_is_refused(world: World, key: str) -> None:
    assert_refusal(await world.ask(request("POST", LEDGER.path, key=key)), "idempotency_key_malformed")
    assert await world.effects(LEDGER) == 0


async def test_two_key_lines_and_a_folding_twin_are_refused(world: World) -> None:
    for name in ("Idempotency-Key", "Idempotency_Key"):
        message = request("POST", LEDGER.path, (name, "k"), key="k")
        assert_refusal(await world.ask(message), "idempotency_key_malformed")


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.5", "1e3", "01", "1 000", "99999999999", "soon"])
async def test_a_malformed_budget_is_refused(world: World, value: str) -> None:
    message = request("POST", LEDGER.path, ("X-Fencing-Timeout-Ms", value))
    assert_refusal(await world.ask(message), "request_malformed")


async def test_reads_need_no_token_and_reach_the_upstream_unfenced(world: World) -> None:
    await world.stage.seal("web")
    for method in ("GET", "HEAD", "OPTIONS"):
        answer = await world.ask(request(method, HTTP.path, token=None, body=None))
        assert answer.status == 200
        assert answer.one("X-Fencing-Outcome") is None
        assert answer.one("Fencegate-Origin") == "upstream"
        assert not world.upstream.requests[-1].values("X-Fencing-Token")
