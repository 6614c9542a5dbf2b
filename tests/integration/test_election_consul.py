"""The Consul election against a small server of the documented API: lost sessions, lock-delay, faults, restores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from fencegate.election.consul import ConsulElection
from fencegate.election.elector import Elector
from fencegate.election.http_endpoints import Deadline
from fencegate.leadership.words import State
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.observations import Observation
from fencegate.testing.consul_agent import ConsulAgent
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.memory_store import MemoryStore

LIMIT = 15.0
TIMINGS = LeaseTimings(15.0, 10.0, 2.0, 1.0)
EU, US = Candidate("gw-1", "eu", "https://eu.example"), Candidate("gw-9", "us", "https://us.example")
KEY = "fencegate/ledger"


@pytest_asyncio.fixture
async def server(clock: HandClock) -> AsyncIterator[ConsulAgent]:
    agent = ConsulAgent(clock=clock)
    await agent.start()
    yield agent
    await agent.close()


@pytest_asyncio.fixture
async def make(server: ConsulAgent, clock: HandClock) -> AsyncIterator[Any]:
    made: list[ConsulElection] = []

    def new(*endpoints: str, **options: Any) -> ConsulElection:
        made.append(ConsulElection(list(endpoints) or [server.url], TIMINGS, clock=clock, **options))
        return made[-1]

    yield new
    for election in made:
        await election.close()


async def lead(election: ConsulElection, candidate: Candidate = EU) -> int:
    won = await election.acquire("ledger", candidate, LIMIT)
    assert isinstance(won, Won)
    await election.renew("ledger", won.token, candidate, active=True, deadline=LIMIT)
    return won.token


async def ask(server: ConsulAgent, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.request(method, server.url + path, json=body) as response:
        found = await response.json(content_type=None) if response.content_type == "application/json" else None
        return response.status, found, dict(response.headers)


def campaigns(server: ConsulAgent) -> list[str]:
    """The sessions that would lock, without those of places in line."""
    return [session.id for session in server.sessions.values() if session.behavior == "release"]


def session_of(server: ConsulAgent) -> str:
    return str(server.keys[KEY]["Session"])


# -- sessions -------------------------------------------------------------------------------------------


async def test_the_session_asks_for_the_floor_of_its_ttl_a_lock_delay_and_no_health_check(
    server: ConsulAgent, make: Any
) -> None:
    await lead(make())
    session = server.sessions[session_of(server)]
    assert (session.ttl, session.lock_delay, session.behavior) == (15.0, 15.0, "release")
    short = ConsulElection([server.url], LeaseTimings(2.0, 1.2, 0.3, 0.2))
    await short.acquire("other", EU, LIMIT)
    assert server.sessions[str(server.keys["fencegate/other"]["Session"])].ttl == 10.0
    await short.close()


async def test_a_frozen_holder_loses_its_session_and_the_next_waits_for_the_lock_delay(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    held = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(held, Held)
    clock.now += 29.9  # over the lease, and Consul may take up to twice the TTL
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Held)
    assert await rival.read("ledger", LIMIT) is None
    clock.now += 0.2
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    assert "Session" not in server.keys[KEY]
    clock.now += 14.8
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 0.3
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.token > token
    assert won.predecessor_sealed is None
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


async def test_a_session_that_ends_early_does_not_shorten_what_the_last_renewal_promised(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    await rival.acquire("ledger", US, LIMIT)
    clock.now += 5
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    server.invalidate(session_of(server))
    server._blocked.clear()  # a leader that was restarted knows of no lock-delay
    for _ in range(3):
        assert await rival.acquire("ledger", US, LIMIT) == Held(None)
        clock.now += 4.9
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 0.4
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Won)


async def test_a_foreign_client_is_held_off_by_the_lock_delay_for_a_whole_lease(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    await lead(make())
    _, created, _ = await ask(server, "PUT", "/v1/session/create", {"TTL": "10s", "LockDelay": "0s"})
    server.invalidate(session_of(server))
    path = f"/v1/kv/{KEY}?acquire={created['ID']}"
    assert (await ask(server, "PUT", path))[1] is False
    clock.now += 14.9
    assert (await ask(server, "PUT", path))[1] is False
    clock.now += 0.2
    assert (await ask(server, "PUT", path))[1] is True


async def test_a_foreign_holder_is_waited_for_shown_and_never_active(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours = make()
    token = await lead(ours)
    await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    _, created, _ = await ask(server, "PUT", "/v1/session/create", {"LockDelay": "0s"})
    assert (await ask(server, "PUT", f"/v1/kv/{KEY}?acquire={created['ID']}"))[1] is True
    held = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(held, Held)
    assert held.term is not None
    assert held.term.active is False
    # The foreign client releases without touching the value: our old seal must not speak for its term.
    assert (await ask(server, "PUT", f"/v1/kv/{KEY}?release={created['ID']}"))[1] is True
    clock.now += 16
    won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.predecessor_sealed is None
    assert won.token > token


async def test_sessions_do_not_pile_up(server: ConsulAgent, make: Any) -> None:
    ours, rival = make(), make()
    for _ in range(5):
        token = await lead(ours)
        await rival.acquire("ledger", US, LIMIT)
        await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    await rival.withdraw("ledger", LIMIT)
    assert not server.sessions


async def test_a_candidate_that_lost_the_race_for_the_lock_withdraws_its_session(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    await lead(ours)
    server.invalidate(session_of(server))
    clock.now += 14  # the lease is over for nobody; then the lock-delay holds the rival off
    await rival.acquire("ledger", US, LIMIT)
    clock.now += 15.1
    server._blocked[KEY] = clock.now + 5
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    assert len(campaigns(server)) == 1
    await rival.withdraw("ledger", LIMIT)
    assert not server.sessions


async def test_a_session_that_ended_while_waiting_is_made_anew(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    rival = make()
    server._blocked[KEY] = clock.now + 5
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    (first,) = campaigns(server)
    server.invalidate(first)
    clock.now += 6
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Won)
    assert first not in server.sessions


async def test_a_place_in_line_that_was_lost_is_taken_anew_and_ends_with_its_session(
    server: ConsulAgent, make: Any
) -> None:
    holder, rival = make(), make()
    await lead(holder)
    await rival.acquire("ledger", US, LIMIT)
    (place,) = (session.id for session in server.sessions.values() if session.behavior == "delete")
    server.invalidate(place)
    assert await holder.candidates("ledger", LIMIT) == []

    await rival.acquire("ledger", US, LIMIT)

    assert await holder.candidates("ledger", LIMIT) == [US]
    await rival.withdraw("ledger", LIMIT)
    assert [key for key in server.keys if "/line/" in key] == []


async def test_a_place_in_line_that_could_not_be_taken_is_taken_at_the_next_turn(
    server: ConsulAgent, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, rival = make(), make()
    await lead(ours)
    transact = rival.agent.transact

    async def unanswered(operations: Any, deadline: float) -> Any:
        raise ElectionUnavailable("no answer", "timeout")

    monkeypatch.setattr(rival.agent, "transact", unanswered)
    with pytest.raises(ElectionUnavailable):
        await rival.acquire("ledger", US, LIMIT)
    monkeypatch.setattr(rival.agent, "transact", transact)
    for _ in range(2):
        assert isinstance(await rival.acquire("ledger", US, LIMIT), Held)
        assert await ours.candidates("ledger", LIMIT) == [US]
    await rival.withdraw("ledger", LIMIT)
    assert await ours.candidates("ledger", LIMIT) == []
    assert [session.behavior for session in server.sessions.values()] == ["release"], "the holder's alone"


async def test_a_role_that_is_named_like_a_place_in_line_is_not_taken_for_one(server: ConsulAgent, make: Any) -> None:
    holder, rival = make(), make()
    await lead(holder)
    assert isinstance(await rival.acquire("ledger/line/x", US, LIMIT), Won)
    assert await holder.candidates("ledger", LIMIT) == []


# -- proof ----------------------------------------------------------------------------------------------


async def test_a_deposed_server_renews_sessions_but_proves_no_term(server: ConsulAgent, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    server.deposed = True
    for call in (
        lambda: ours.renew("ledger", token, EU, active=True, deadline=0.3),
        lambda: ours.read("ledger", 0.3),
        lambda: ours.acquire("ledger", EU, 0.3),
        lambda: ours.release("ledger", token, SealRecord(token, "eu"), 0.3),
    ):
        with pytest.raises(ElectionUnavailable) as failed:
            await call()
        assert failed.value.cause == "quorum"
    server.deposed = False
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


async def test_the_token_is_the_index_of_the_lock(server: ConsulAgent, make: Any) -> None:
    won = await make().acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.token == server.keys[KEY]["ModifyIndex"]


@pytest.mark.parametrize("fault", ["losing", "muffled"])
async def test_a_win_whose_answer_is_lost_is_found_again_with_one_token(
    server: ConsulAgent, make: Any, fault: str
) -> None:
    ours, reader = make(), make()
    first = make()
    before = await lead(first)
    await first.release("ledger", before, SealRecord(before, "eu"), LIMIT)
    server._blocked.clear()
    await ours.acquire("other", EU, LIMIT)
    ours._campaigns["ledger"] = ours._campaigns.pop("other")  # a session that is there already
    ours._campaigns["ledger"].token, ours._campaigns["ledger"].entry = 0, None
    server.requests.clear()
    if fault == "losing":
        server.losing = 2  # the session's renewal, and the lock
        won = await ours.acquire("ledger", EU, LIMIT)
    else:
        server.muffled = 1
        server.refusals.clear()
        with pytest.raises(ElectionUnavailable):
            await ours.acquire("ledger", EU, 0.3)
        won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.predecessor_sealed == SealRecord(before, "eu")
    await ours.renew("ledger", won.token, EU, active=True, deadline=LIMIT)
    assert await ours.acquire("ledger", EU, LIMIT) == won
    assert (await reader.read("ledger", LIMIT)).token == won.token > before


# Field case 71: hashicorp/vault#23013.
async def test_a_renewal_that_is_applied_late_changes_nothing(
    server: ConsulAgent, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, sent = make(), []
    token = await lead(ours)
    transact = ours.agent.transact

    async def recorded(operations: Any, deadline: float) -> Any:
        sent.append(operations)
        return await transact(operations, deadline)

    monkeypatch.setattr(ours.agent, "transact", recorded)
    for _ in range(2):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert len(sent) == 2
    index = server.index
    for operations in sent:
        assert not (await transact(operations, LIMIT)).done
    assert server.index == index


async def test_a_term_that_came_and_went_before_the_lock_is_not_overlooked(
    server: ConsulAgent, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, late, other = make(), make(), make()
    token = await lead(first)
    await first.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    create = late.agent.create_session

    async def after_another_term(*arguments: Any) -> str:
        monkeypatch.undo()
        await lead(other, US)
        server.invalidate(session_of(server))
        server._blocked.clear()
        return await create(*arguments)

    monkeypatch.setattr(late.agent, "create_session", after_another_term)
    # The key is free, and its value no longer the sealed one that was judged.
    assert await late.acquire("ledger", EU, LIMIT) == Held(None)
    assert await late.acquire("ledger", EU, LIMIT) == Held(None)  # the other term's lease is not over


async def test_renewals_and_releases_whose_answers_are_lost_are_taken_for_done(server: ConsulAgent, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    for _ in range(3):
        server.losing = 2
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    server.losing = 1
    assert await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)


async def test_a_value_that_somebody_overwrote_does_not_end_a_term(server: ConsulAgent, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    await ask(server, "PUT", f"/v1/kv/{KEY}", "scribble")
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert (await ours.read("ledger", LIMIT)).token == token


async def test_a_holder_whose_key_is_deleted_loses_and_is_still_waited_for(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    await rival.acquire("ledger", US, LIMIT)
    server.remove(KEY)
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert not await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.token > token  # LockIndex has begun again at 1
    assert server.keys[KEY]["LockIndex"] == 1


async def test_a_key_that_was_deleted_and_that_a_rebase_made_anew_opens_nothing_early(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    rival = make()
    await lead(make())
    await rival.acquire("ledger", US, LIMIT)
    server.remove(KEY)
    await make().rebase("ledger", 10**6, "ops", LIMIT)
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    assert await make().acquire("ledger", US, LIMIT) == Held(None)  # who had seen no holder waits for a lease as well
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.token > 10**6


async def test_a_seal_that_was_seen_long_ago_lets_nobody_in_at_once_after_a_rebase(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert await rival.read("ledger", LIMIT) is None
    clock.now += 100
    await make().rebase("ledger", 10**6, "ops", LIMIT)
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.predecessor_sealed is None


async def test_what_somebody_scribbled_over_a_term_takes_none_of_its_time_away(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    rival = make()
    await lead(make())
    await rival.acquire("ledger", US, LIMIT)
    await ask(server, "PUT", f"/v1/kv/{KEY}", "scribble")
    server.invalidate(session_of(server))
    server._blocked.clear()  # a server that was restarted has forgotten the lock-delay
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 15.1
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Won)


async def test_a_rebase_between_the_lock_and_the_look_at_it_leaves_no_token_from_before(
    server: ConsulAgent, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, operator, above = make(), make(), 5000
    transact = ours.agent.transact

    async def then_rebased(operations: Any, deadline: float) -> Any:
        outcome = await transact(operations, deadline)
        if operations[-1]["Verb"] == "lock" and operations[-1]["Key"] == KEY:
            await operator.rebase("ledger", above, "an operator", LIMIT)
        return outcome

    monkeypatch.setattr(ours.agent, "transact", then_rebased)
    won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.token > above
    await ours.renew("ledger", won.token, EU, active=True, deadline=LIMIT)
    assert (await operator.read("ledger", LIMIT)).token == won.token


async def test_a_place_in_line_that_cannot_be_given_up_keeps_no_win_back(
    server: ConsulAgent, make: Any, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, rival = make(), make()
    await rival.acquire("ledger", US, LIMIT)
    assert isinstance(await ours.acquire("ledger", EU, LIMIT), Held)
    await rival.withdraw("ledger", LIMIT)
    server.invalidate(session_of(server))
    clock.now += 15.1

    async def unanswered(_: str, deadline: float) -> None:
        await asyncio.sleep(deadline)
        raise ElectionUnavailable("no answer", "timeout")

    monkeypatch.setattr(ours.agent, "destroy_session", unanswered)
    async with asyncio.timeout(20):
        assert isinstance(await ours.acquire("ledger", EU, 60), Won)


async def test_a_place_in_line_that_cannot_be_given_up_keeps_no_lock_that_was_won_unawares(
    server: ConsulAgent, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, ours = make(), make()
    token = await lead(first, US)
    assert isinstance(await ours.acquire("ledger", EU, LIMIT), Held)
    await first.release("ledger", token, SealRecord(token, "us"), LIMIT)
    await ours._acquire("ledger", EU, Deadline("consul", LIMIT))
    ours._campaigns["ledger"].token = 0  # as where the answer was lost
    [waits] = ours._line._places.values()
    destroy = ours.agent.destroy_session

    async def answered_for_the_other(session: str, deadline: float) -> None:
        if session == waits:
            await asyncio.sleep(deadline)
            raise ElectionUnavailable("no answer", "timeout")
        await destroy(session, deadline)

    monkeypatch.setattr(ours.agent, "destroy_session", answered_for_the_other)
    assert "Session" in server.keys[KEY]
    await ours.withdraw("ledger", 2)
    assert "Session" not in server.keys[KEY]


# Field case 34: hashicorp/consul#7939, hashicorp/consul#8474, simplesurance/grpcconsulresolver#26.
async def test_a_restored_snapshot_shows_a_lower_token(server: ConsulAgent, make: Any) -> None:
    old = server.snapshot()
    token = await lead(make())
    await ask(server, "PUT", "/v1/kv/noise", "x")
    newer = make()
    server.restore(old)
    assert (await newer.acquire("ledger", US, LIMIT)).token <= token  # the fence calls it regressed or superseded


async def test_release_by_a_new_life_of_the_process_finds_the_term_by_its_token(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    token = await lead(make())
    reborn = make()
    seal = SealRecord(token, "eu")
    assert not await reborn.release("ledger", token - 1, SealRecord(token - 1, "eu"), LIMIT)
    assert await reborn.release("ledger", token, seal, LIMIT)
    assert await reborn.release("ledger", token, seal, LIMIT)
    won = await reborn.acquire("ledger", EU, LIMIT)
    assert won.predecessor_sealed == seal


async def test_a_seal_is_left_even_where_the_session_ended_before(
    server: ConsulAgent, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    await rival.acquire("ledger", US, LIMIT)
    server.invalidate(session_of(server))
    assert await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)  # Consul's lock-delay is respected all the same
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert won.predecessor_sealed == SealRecord(token, "eu")


# -- a server that fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, "Permission denied"), "key:write.*session:write"),
        ((400, "Invalid Session TTL"), "HTTP 400"),
        ((404, "404 page not found"), "is this a Consul agent|HTTP 404"),
        ((200, "{}"), "HTTP 200"),
        ((302, ""), "HTTP 302"),
    ],
)
async def test_what_is_no_answer_of_consuls_never_means_that_nobody_leads(
    server: ConsulAgent, make: Any, answer: tuple[int, str], said: str
) -> None:
    ours = make()
    token = await lead(ours)
    for call in (
        lambda: ours.read("ledger", LIMIT),
        lambda: ours.acquire("ledger", EU, LIMIT),
        lambda: ours.release("ledger", token, SealRecord(token, "eu"), LIMIT),
        lambda: ours.probe(LIMIT),
    ):
        server.refusals.append(web.Response(status=answer[0], text=answer[1]))
        with pytest.raises(ElectionUnavailable, match=said):
            await call()
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


async def test_no_leader_is_told_as_such_and_a_passing_loss_is_tried_again(server: ConsulAgent, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    server.refusals.extend(web.Response(status=500, text="No cluster leader") for _ in range(2))
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    server.leaderless = True
    with pytest.raises(ElectionUnavailable, match="No cluster leader") as failed:
        await ours.renew("ledger", token, EU, active=True, deadline=0.3)
    assert failed.value.cause == "quorum"
    with pytest.raises(ElectionUnavailable, match="no cluster leader"):
        await ours.probe(LIMIT)
    server.leaderless = False
    await ours.probe(LIMIT)


async def test_a_frozen_agent_leaves_time_for_the_next_and_a_slow_one_ends_at_the_deadline(
    server: ConsulAgent, make: Any
) -> None:
    frozen = ConsulAgent()
    frozen.hanging = True
    await frozen.start()
    try:
        assert isinstance(await make(frozen.url, server.url).acquire("ledger", EU, 4.0), Won)
    finally:
        await frozen.close()
    server.delay = 20.0
    began = asyncio.get_running_loop().time()
    with pytest.raises(ElectionUnavailable):
        await make().read("ledger", 1.0)
    assert asyncio.get_running_loop().time() - began < 5.0


async def test_an_acl_token_is_read_anew_from_its_file(make: Any, tmp_path: Path, clock: HandClock) -> None:
    guarded = ConsulAgent(token="first", clock=clock)
    await guarded.start()
    file = tmp_path / "token"
    file.write_text("first\n")
    try:
        ours = make(guarded.url, token_file=str(file))
        token = await lead(ours)
        guarded.token = "second"
        with pytest.raises(ElectionUnavailable, match="Permission denied"):
            await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
        file.write_text("second")
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    finally:
        await guarded.close()


async def test_a_transaction_that_the_acl_forbids_says_so(server: ConsulAgent, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    denied = {"Results": None, "Errors": [{"OpIndex": 0, "What": "Permission denied"}]}
    server.refusals.append(web.json_response([{"ID": "x"}]))
    server.refusals.append(web.json_response(denied, status=409))
    with pytest.raises(ElectionUnavailable, match="key:write"):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one"):
        ConsulElection([], TIMINGS)
    with pytest.raises(ValueError, match="must begin with http"):
        ConsulElection(["h:8500"], TIMINGS)
    with pytest.raises(ValueError, match="prefix"):
        ConsulElection(["http://h"], TIMINGS, prefix="/")
    with pytest.raises(ValueError, match="at most 60 s"):
        ConsulElection(["http://h"], LeaseTimings(61.0, 40.0, 5.0, 1.0))


# -- blocking queries -----------------------------------------------------------------------------------


async def test_hints_skip_renewals_and_survive_an_index_that_goes_back(server: ConsulAgent, make: Any) -> None:
    ours, watcher = make(), make()
    old = server.snapshot()
    token = await lead(ours)
    hints = watcher.changes("ledger")
    async with asyncio.timeout(LIMIT):
        await anext(hints)
    waiting = asyncio.ensure_future(anext(hints))
    for _ in range(3):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
        await asyncio.sleep(0.1)
    assert not waiting.done()
    server.restore(old)
    async with asyncio.timeout(LIMIT):
        await waiting
    # Were the old index still waited for, nothing would come until the store had caught up with it.
    again = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0.2)
    await make().acquire("ledger", US, LIMIT)
    async with asyncio.timeout(LIMIT):
        await again
    await hints.aclose()
    queries = [path for _, path in server.requests if path.startswith(f"/v1/kv/{KEY}") and "consistent" not in path]
    assert any("index=" in path for path in queries)
    assert sum("index=" not in path for path in queries) >= 2


async def test_a_watch_ends_with_its_server(server: ConsulAgent, make: Any) -> None:
    server.leaderless = True
    assert [hint async for hint in make().changes("ledger")] == []
    assert [hint async for hint in make("http://127.0.0.1:1").changes("ledger")] == []


# -- the server itself ----------------------------------------------------------------------------------


async def test_the_server_refuses_a_ttl_below_its_floor(server: ConsulAgent, make: Any, clock: HandClock) -> None:
    assert (await ask(server, "PUT", "/v1/session/create", {"TTL": "9s"}))[0] == 400
    election = ConsulElection([server.url], LeaseTimings(2.0, 1.2, 0.3, 0.2), shortest_ttl=1)
    with pytest.raises(ElectionUnavailable, match="Invalid Session TTL"):
        await election.acquire("ledger", EU, LIMIT)
    await election.close()


async def test_the_server_deletes_what_a_session_of_that_behavior_held(server: ConsulAgent) -> None:
    _, created, _ = await ask(server, "PUT", "/v1/session/create", {"Behavior": "delete"})
    await ask(server, "PUT", f"/v1/kv/x?acquire={created['ID']}", "v")
    assert "x" in server.keys
    await ask(server, "PUT", f"/v1/session/destroy/{created['ID']}")
    assert "x" not in server.keys
    assert (await ask(server, "GET", "/v1/kv/x"))[0] == 404


async def test_a_transaction_of_the_server_is_whole_or_nothing(server: ConsulAgent) -> None:
    body = [{"KV": {"Verb": "set", "Key": "a", "Value": "MQ=="}}, {"KV": {"Verb": "get", "Key": "none"}}]
    code, found, _ = await ask(server, "PUT", "/v1/txn", body)
    assert (code, found["Errors"][0]["OpIndex"], "a" in server.keys) == (409, 1, False)
    index = server.index
    await ask(server, "PUT", "/v1/txn", body[:1])
    await ask(server, "PUT", "/v1/txn", body[:1])
    assert server.index == index + 1  # the second changed nothing


async def test_electors_lead_one_after_the_other_and_hand_over_with_a_seal() -> None:
    server, timings = ConsulAgent(session_ttl_min=1.0), LeaseTimings(2.0, 1.2, 0.3, 0.2)
    await server.start()
    seen: list[Observation] = []
    electors, backends, runs = [], [], []
    for candidate in (EU, US):
        backends.append(ConsulElection([server.url], timings, shortest_ttl=1))
        store = MemoryStore(["ledger"], time.monotonic)
        electors.append(Elector("ledger", candidate, backends[-1], store, timings, seen.append))
        runs.append(asyncio.create_task(electors[-1].run()))
        async with asyncio.timeout(10):
            while electors[0].state is not State.LEADING:
                await electors[0].changed()
    first, second = electors
    before = first.token
    assert before is not None
    assert second.token is None
    assert await first.resign("test", 5.0)
    async with asyncio.timeout(10):
        while second.state is not State.LEADING:
            await second.changed()
    assert second.token is not None
    assert second.token > before
    assert await second.stop(5.0)
    assert await first.stop(5.0)
    await asyncio.gather(*runs)
    for backend in backends:
        await backend.close()
    await server.close()
