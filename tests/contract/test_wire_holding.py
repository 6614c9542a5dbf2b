"""Routes with ``hold_ms``: a write waits for the end of a handoff or an election, and is then decided anew."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.gateway.limits import Limits
from fencegate.observations import HoldEnded, WouldRefuse, WriteHeld
from fencegate.testing.raw_http import Line, assert_accepted, assert_refusal, chunked, eventually, request
from fencegate.testing.wire_world import (
    BRIEF_HOLD,
    ELSEWHERE,
    HELD_FUNCTION,
    HELD_HTTP,
    HELD_LEDGER,
    HELD_TARGETS,
    HOLD,
    HOME,
    LEDGER,
    Target,
    World,
    WorldFactory,
)

every_target = pytest.mark.parametrize("target", HELD_TARGETS, ids=str)
either_way = pytest.mark.parametrize("target", [HELD_LEDGER, HELD_HTTP], ids=str)
"""A target in the store, and one outside of it."""
AT_ONCE = HOLD - 2.0
"""Seconds: what comes within them did not wait for the end of a hold."""
LARGE = b'{"x":"' + b"y" * 100_000 + b'"}'


async def handoff_begins(world: World, role: str) -> None:
    await world.stage.set_draining(role, True)
    world.view.lead(role, 42, "eu", HOME, draining_to="us")


async def handoff_is_undone(world: World, role: str) -> None:
    await world.stage.set_draining(role, False)
    world.view.lead(role, 42, "eu", HOME)


async def handoff_ends(world: World, role: str) -> None:
    await world.stage.seal(role)
    world.view.nobody(role)
    world.view.lead(role, 43, "us", ELSEWHERE)


async def held(world: World, count: int = 1) -> None:
    await eventually(lambda: sum(isinstance(fact, WriteHeld) for fact in world.seen) == count)


def ends(world: World) -> list[str]:
    return [fact.why for fact in world.seen if isinstance(fact, HoldEnded)]


@every_target
async def test_a_handoff_that_is_undone_was_only_a_pause_for_a_held_write(world: World, target: Target) -> None:
    await handoff_begins(world, target.role)
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path, key="k"))
        await held(world)
        assert await world.effects(target) == 0
        await handoff_is_undone(world, target.role)
        assert_accepted(await line.answer())
    assert await world.effects(target) == 1
    assert_accepted(await world.ask(request("POST", target.path, key="k")), replayed=True)
    assert ends(world) == ["news"]


@every_target
async def test_a_handoff_that_ends_sends_the_held_write_on_and_never_under_another_token(
    world: World, target: Target
) -> None:
    await handoff_begins(world, target.role)
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path))
        await held(world)
        await handoff_ends(world, target.role)
        document = assert_refusal(await line.answer(), "not_leader")
    assert (document["leader"]["url"], document["leader"]["token"]) == (ELSEWHERE, 43)
    assert document["presented_token"] == 42
    assert await world.effects(target) == 0


@either_way
async def test_at_the_successor_a_write_waits_for_the_opening_and_is_told_of_the_new_term(
    world: World, target: Target
) -> None:
    await world.stage.seal(target.role)
    world.view.lead(target.role, 43, "us", ELSEWHERE, draining_to="eu")
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path, token=43))
        await held(world)
        await world.stage.open(target.role, 44)
        world.view.lead(target.role, 44, "eu", HOME)
        document = assert_refusal(await line.answer(), "stale_token")
    assert (document["leader"]["url"], document["leader"]["token"]) == (HOME, 44)
    assert await world.effects(target) == 0


async def test_a_leader_that_writes_before_its_term_is_seen_waits_until_it_is(world: World) -> None:
    """Token mode: the write carries the token of the term that is about to open, and of no other."""
    world.view.nobody("open-held")
    async with Line.to(world.port) as line:
        await line.send(request("POST", "/open-held", token=43))
        await held(world)
        world.view.lead("open-held", 43, "eu", HOME)
        answer = await line.answer()
    assert_accepted(answer)
    assert answer.one("X-Fencing-Max-Seen") == "43"


@either_way
async def test_a_lease_that_was_renewed_late_is_seen_without_any_word_of_the_election(
    world: World, target: Target
) -> None:
    await world.stage.set_draining(target.role, True)  # The view goes on saying that we lead.
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path))
        await held(world)
        await world.stage.set_draining(target.role, False)
        assert_accepted(await line.answer(limit=AT_ONCE))


async def test_when_its_time_is_over_the_write_gets_the_very_refusal_that_it_would_have_got(world: World) -> None:
    without, brief = "ledger", "brief"
    for role in (without, brief):
        await world.stage.set_draining(role, True)
        world.view.lead(role, 42, "eu", HOME, draining_to="us")
    plain = await world.ask(request("POST", LEDGER.path))
    loop = asyncio.get_running_loop()
    began = loop.time()
    kept = await world.ask(request("POST", "/brief"))
    assert BRIEF_HOLD - 0.05 < loop.time() - began < HOLD
    assert_refusal(kept, "draining")
    left_out = {"Date", "Content-Length"}
    assert [h for h in kept.headers if h[0] not in left_out] == [h for h in plain.headers if h[0] not in left_out]
    of_its_own = {"instance", "role", "detail"}
    first, second = plain.json(), kept.json()
    assert {name: first[name] for name in first.keys() - of_its_own} == {
        name: second[name] for name in second.keys() - of_its_own
    }
    assert ends(world) == ["expired"]
    # The last look at the fence is what decides: a handoff that was undone unseen is not refused.
    async with Line.to(world.port) as line:
        await line.send(request("POST", "/brief"))
        await held(world, 2)
        await world.stage.set_draining(brief, False)
        assert_accepted(await line.answer())


async def test_the_callers_own_time_is_not_used_up(world: World) -> None:
    await handoff_begins(world, HELD_LEDGER.role)
    answer = await world.ask(request("POST", HELD_LEDGER.path, ("X-Fencing-Timeout-Ms", "2000")))
    assert_refusal(answer, "draining")
    assert ends(world) == ["expired"]


@pytest.mark.parametrize("token", [41, None, "+42", 2**63 - 1], ids=["stale", "missing", "malformed", "never issued"])
@either_way
async def test_what_cannot_become_right_is_refused_at_once(
    world: World, target: Target, token: int | str | None
) -> None:
    await handoff_begins(world, target.role)
    answer = await world.ask(request("POST", target.path, token=token), limit=AT_ONCE)
    assert answer.status >= 400
    assert not [fact for fact in world.seen if isinstance(fact, WriteHeld)]


@every_target
async def test_a_client_that_leaves_while_it_is_held_leaves_no_effect(world: World, target: Target) -> None:
    await handoff_begins(world, target.role)
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path, key="k"))
        await held(world)
    await eventually(lambda: ends(world) == ["left"])
    await handoff_is_undone(world, target.role)
    await eventually(lambda: world.gateway.in_flight == 0)
    assert await world.effects(target) == 0
    assert_accepted(await world.ask(request("POST", target.path, key="k")))
    assert await world.effects(target) == 1


@either_way
async def test_at_the_end_of_the_process_held_writes_are_answered_at_once(world: World, target: Target) -> None:
    await handoff_begins(world, target.role)
    async with Line.to(world.port) as line:
        await line.send(request("POST", target.path))
        await held(world)
        world.gateway.hold_no_more()
        assert_refusal(await line.answer(limit=AT_ONCE), "draining")
    assert ends(world) == ["stopping"]
    assert_refusal(await world.ask(request("POST", target.path), limit=AT_ONCE), "draining")


@either_way
async def test_an_upload_is_asked_for_only_after_the_hold(world: World, target: Target) -> None:
    await handoff_begins(world, target.role)
    head = request("POST", target.path, ("Expect", "100-continue"), ("Content-Length", str(len(LARGE))), body=None)
    async with Line.to(world.port) as line:
        await line.send(head)
        await held(world)
        await handoff_is_undone(world, target.role)
        async with asyncio.timeout(AT_ONCE):
            assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(LARGE)
        assert_accepted(await line.answer())
    assert await world.effects(target) == 1


async def test_an_upload_that_is_still_coming_is_not_held_since_its_clients_leaving_is_not_seen(world: World) -> None:
    await handoff_begins(world, HELD_HTTP.role)
    coming = request("POST", HELD_HTTP.path, body=LARGE)
    assert_refusal(await world.ask(coming, limit=AT_ONCE), "draining")
    small = request("POST", HELD_HTTP.path, ("Transfer-Encoding", "chunked"), body=chunked(b"abc", b"def"))
    async with Line.to(world.port) as line:
        await line.send(small)
        await held(world)
        await handoff_is_undone(world, HELD_HTTP.role)
        assert_accepted(await line.answer())
    assert [sent.body for sent in world.upstream.requests] == [b"abcdef"]


async def test_a_stored_result_is_given_again_without_a_wait(world: World) -> None:
    assert_accepted(await world.ask(request("POST", HELD_LEDGER.path, key="k")))
    await handoff_begins(world, HELD_LEDGER.role)
    assert_accepted(await world.ask(request("POST", HELD_LEDGER.path, key="k"), limit=AT_ONCE), replayed=True)


async def test_observe_mode_lets_everything_through_and_holds_nothing(world: World) -> None:
    await handoff_begins(world, "watched-held")
    assert_accepted(await world.ask(request("POST", "/watched-held"), limit=AT_ONCE))
    assert [fact.code for fact in world.seen if isinstance(fact, WouldRefuse)] == ["draining"]
    assert not [fact for fact in world.seen if isinstance(fact, WriteHeld)]


async def test_held_writes_of_one_role_leave_room_for_another_and_for_reads(new_world: WorldFactory) -> None:
    async with new_world(limits=Limits(in_flight=12)) as world:
        await handoff_begins(world, HELD_LEDGER.role)
        await handoff_begins(world, HELD_FUNCTION.role)
        answers = [asyncio.create_task(world.ask(request("POST", HELD_LEDGER.path), limit=20)) for _ in range(11)]
        await eventually(lambda: sum(task.done() for task in answers) == 5)
        waiting = [task for task in answers if not task.done()]
        for task in answers:
            if task not in waiting:
                assert_refusal(task.result(), "draining")
        other = asyncio.create_task(world.ask(request("POST", HELD_FUNCTION.path), limit=20))
        await held(world, 7)
        assert (await world.ask(request("GET", HELD_LEDGER.path, token=None))).status == 200
        await handoff_is_undone(world, HELD_LEDGER.role)
        await handoff_is_undone(world, HELD_FUNCTION.role)
        for answer in await asyncio.gather(*waiting, other):
            assert_accepted(answer)
        assert await world.effects(HELD_LEDGER) == 6
