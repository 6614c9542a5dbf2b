"""The election over real ZooKeeper: members that freeze and die, sessions that end, nodes that others remove."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from fencegate.election.zookeeper import ZookeeperElection
from fencegate.election.zookeeper_calls import ZookeeperCalls
from fencegate.election.zookeeper_followed import ZookeeperFollowed
from fencegate.election.zookeeper_line import Line
from fencegate.election.zookeeper_link import LinkLost, ZookeeperLink
from fencegate.election.zookeeper_records import Names, decode
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from fencegate.errors import Unavailable
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.testing.background import watch_under_way

TIMINGS = LeaseTimings(12, 8, 1, 0.5)
"""A follower of the tests' ensemble gives a silent leader up after 2.5 s; then the others elect, on a busy machine."""
SHORT = LeaseTimings(3, 2, 0.4, 0.2)
LIMIT = 20.0
"""Seconds that a call may take, and what is waited for: servers that are well need a thousandth of it."""
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")
DR = Candidate("gw-dr", "dr", "https://dr.example")

Join = Callable[..., ZookeeperElection]


@pytest.fixture
def prefix() -> str:
    return f"/t-{uuid.uuid4().hex}"  # no node above it is shared: the first to make one says who may use it


@pytest.fixture
async def join(zookeeper: EmbeddedZookeeper, prefix: str) -> AsyncIterator[Join]:
    made: list[ZookeeperElection] = []

    def make(timings: LeaseTimings = SHORT, **options: Any) -> ZookeeperElection:
        made.append(ZookeeperElection(zookeeper.hosts, timings, **({"prefix": prefix} | options)))
        return made[-1]

    yield make
    for election in made:
        await election.close()


@pytest.fixture
def beside(zookeeper: EmbeddedZookeeper) -> Any:
    client = KazooClient(",".join(zookeeper.hosts))
    client.start(LIMIT)
    yield client
    client.stop()
    client.close()


async def lead(election: ZookeeperElection, who: Candidate = EU) -> int:
    won = await election.acquire(ROLE, who, LIMIT)
    assert isinstance(won, Won)
    await election.renew(ROLE, won.token, who, active=True, deadline=LIMIT)
    return won.token


async def until_won(election: ZookeeperElection, who: Candidate, within: float) -> int:
    async with asyncio.timeout(within):
        while not isinstance(won := await election.acquire(ROLE, who, LIMIT), Won):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return won.token


# -- faults of the ensemble -----------------------------------------------------------------------


# Field case 24: python-zk/kazoo#2, python-zk/kazoo#116, python-zk/kazoo#374, apache/flink#11338, apache/flink#13055.
async def test_a_frozen_or_killed_member_costs_a_moment_and_not_the_term(
    make_zookeeper: Callable[..., EmbeddedZookeeper],
) -> None:
    ensemble = make_zookeeper(nodes=3)
    ensemble.start_sync()
    election = ZookeeperElection(ensemble.hosts, TIMINGS)
    try:
        token = await lead(election)
        for index, harm in ((0, ensemble.freeze), (1, ensemble.kill), (2, ensemble.freeze)):
            harm(index)
            await election.renew(ROLE, token, EU, active=True, deadline=TIMINGS.renew_deadline)
            assert isinstance(won := await election.acquire(ROLE, EU, LIMIT), Won)
            assert won.token == token
            ensemble.thaw(index)
            if harm == ensemble.kill:
                await ensemble.restart(index)
        ensemble.freeze(0)
        ensemble.freeze(1)
        for call in (election.read(ROLE, 1.5), election.renew(ROLE, token, EU, active=True, deadline=1.5)):
            began = time.monotonic()
            with pytest.raises(ElectionUnavailable):
                await call
            assert time.monotonic() - began < 3.0
        ensemble.thaw(0)
        ensemble.thaw(1)
        term = await election.read(ROLE, LIMIT)
        assert term is not None
        assert term.token == token
    finally:
        await election.close()


async def test_a_call_without_time_does_not_cost_everybody_the_link_to_a_member_that_answers(join: Join) -> None:
    election = join(TIMINGS)
    token = await lead(election)
    election.link._patience = 30  # however busy this machine is
    for left in (0.0, 1e-9, 0.001, 0.001):
        with pytest.raises(ElectionUnavailable):
            await election.renew(ROLE, token, EU, active=True, deadline=left)
        with pytest.raises(LinkLost):
            await election.link.call(lambda client: client.exists_async("/"), left / 10)
    assert election.link._handler is not None
    assert not election.link._handler._left, "no member is passed over for it"
    assert election.link.session_id, "the link is up"
    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)


async def test_what_waits_since_before_a_connection_was_made_says_nothing_of_the_member_behind_it(join: Join) -> None:
    link = join(TIMINGS).link

    async def unanswered() -> None:
        with pytest.raises(LinkLost):
            await link.call(lambda client: client.handler.async_result(), 0.5)

    await link.call(lambda client: client.exists_async("/"), LIMIT)
    assert link._handler is not None
    opened, link._handler._opened = link._handler._opened, time.monotonic() + 30  # later than it is asked
    await unanswered()
    assert not link._handler._left

    link._handler._opened = opened
    await unanswered()
    assert len(link._handler._left) == 1, "this one had its time"


# -- sessions and nodes ---------------------------------------------------------------------------


# Field case 23: apache/curator#1211, apache/curator#1169, apache/curator#1137, apache/curator#1024, apache/curator#980,
#   Netflix/curator#216, apache/druid#16528.
async def test_a_session_that_ended_is_a_lost_term_and_the_next_one_waits_out_the_lease(
    join: Join, zookeeper: EmbeddedZookeeper
) -> None:
    election, rival = join(), join()
    renewed = time.monotonic()
    token = await lead(election)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    assert election.link._client is not None
    thief = KazooClient(",".join(zookeeper.hosts), client_id=election.link._client.client_id)
    thief.start(LIMIT)
    thief.stop()  # ends the session, as its expiry would
    thief.close()

    newer = await until_won(rival, DR, LIMIT)

    assert newer > token
    assert time.monotonic() - renewed >= SHORT.lease_duration
    with pytest.raises(LeaseLost):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    outcome = await election.acquire(ROLE, EU, LIMIT)
    assert isinstance(outcome, Held)
    assert outcome.term is not None
    assert outcome.term.token == newer


async def test_an_ensemble_that_was_restored_is_used_again_and_tells_that_its_numbers_went_back(
    make_zookeeper: Callable[..., EmbeddedZookeeper], prefix: str
) -> None:
    """Its members refuse a session that has seen more than they hold, and say no more than that."""
    ensemble = make_zookeeper()
    await ensemble.start()
    election = ZookeeperElection(ensemble.hosts, SHORT, prefix=prefix)
    token = await lead(election)
    for _ in range(20):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    before = await election.issued_up_to(ROLE, LIMIT)

    ensemble.kill(0)
    shutil.rmtree(ensemble.directory / "node-0" / "data" / "version-2")
    await ensemble.restart(0)

    async def until_answered() -> int:
        while True:
            try:
                return await election.issued_up_to(ROLE, 2.0)
            except Unavailable:
                await asyncio.sleep(0.1)

    async with asyncio.timeout(LIMIT):
        assert await until_answered() < before
    with pytest.raises(LeaseLost):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert isinstance(await election.acquire(ROLE, EU, LIMIT), Won)
    await election.close()


async def test_a_node_that_an_operator_removed_is_a_lost_term_that_is_still_waited_out(
    join: Join, beside: KazooClient, prefix: str
) -> None:
    election, rival = join(), join()
    token = await lead(election)
    names = Names(prefix, ROLE)
    await asyncio.to_thread(beside.delete, decode((await asyncio.to_thread(beside.get, names.term))[0]).place)

    with pytest.raises(LeaseLost):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    assert await until_won(rival, DR, LIMIT) > token


async def test_a_record_that_an_operator_removed_opens_nothing_early(
    join: Join, beside: KazooClient, prefix: str
) -> None:
    election, rival = join(), join()
    began = time.monotonic()
    token = await lead(election)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    await asyncio.to_thread(beside.delete, Names(prefix, ROLE).term)

    with pytest.raises(LeaseLost):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert await until_won(rival, DR, LIMIT) > token
    assert time.monotonic() - began >= SHORT.lease_duration


async def test_a_record_that_nobody_can_read_is_left_to_a_person(join: Join, beside: KazooClient, prefix: str) -> None:
    election = join()
    await lead(election)
    await asyncio.to_thread(beside.set, Names(prefix, ROLE).term, b"garbage")

    with pytest.raises(ElectionUnavailable, match="not a record of a term"):
        await join().acquire(ROLE, DR, LIMIT)


async def test_parents_that_somebody_removed_are_made_again(join: Join, beside: KazooClient, prefix: str) -> None:
    election = join()
    assert await election.read(ROLE, LIMIT) is None
    await asyncio.to_thread(beside.delete, prefix, recursive=True)

    assert await election.read(ROLE, LIMIT) is None
    assert await lead(election) > 0


async def test_a_candidate_that_hangs_while_its_session_lives_blocks_nobody_for_ever(join: Join) -> None:
    holder, hung, rival = join(), join(), join()
    token = await lead(holder)
    assert isinstance(await hung.acquire(ROLE, Candidate("hung", "x", ""), LIMIT), Held)
    assert isinstance(await rival.acquire(ROLE, DR, LIMIT), Held)
    assert await holder.release(ROLE, token, SealRecord(token, "eu"), LIMIT)

    newer = await until_won(rival, DR, LIMIT)

    # The one that was passed over may not lead under its old number, and stands again.
    assert isinstance(await hung.acquire(ROLE, Candidate("hung", "x", ""), LIMIT), Held)
    await rival.release(ROLE, newer, SealRecord(newer, "dr"), LIMIT)
    assert await until_won(hung, Candidate("hung", "x", ""), LIMIT) > newer


async def test_a_join_whose_answer_was_lost_is_recognised(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    election = join()
    original = Line._join

    async def lose_the_answer(self: Line, names: Any, place: Any, candidate: Any, left: float) -> None:
        await original(self, names, place, candidate, left)
        place.path, place.token = "", 0
        raise ElectionUnavailable("lost", "connection")

    monkeypatch.setattr(Line, "_join", lose_the_answer)
    with pytest.raises(Unavailable):
        await election.acquire(ROLE, EU, LIMIT)
    monkeypatch.setattr(Line, "_join", original)

    assert isinstance(await election.acquire(ROLE, EU, LIMIT), Won)
    line = await election._line.look(Names(election._zk.prefix, ROLE), 5)
    assert len(line) == 1


async def test_a_place_that_is_given_up_while_the_link_breaks_does_not_stay_in_our_own_way(
    join: Join, beside: KazooClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, waiting = join(), join()
    await lead(holder)
    assert isinstance(await waiting.acquire(ROLE, DR, LIMIT), Held)
    await holder.rebase(ROLE, 2**44, "ops", LIMIT)
    remove, lost = ZookeeperCalls.remove, []

    async def lose_once(calls: ZookeeperCalls, path: str, left: float) -> None:
        if not lost:
            lost.append(path)
            raise LinkLost("the link broke")
        await remove(calls, path, left)

    monkeypatch.setattr(ZookeeperCalls, "remove", lose_once)
    for _ in range(2):
        assert isinstance(await waiting.acquire(ROLE, DR, LIMIT), Held)

    assert len(lost) == 1
    assert len(beside.get_children(Names(prefix, ROLE).line)) == 2


@pytest.mark.parametrize("moved_before", [False, True])
async def test_a_place_from_before_a_rebase_wins_nothing_where_both_come_at_once(
    join: Join, monkeypatch: pytest.MonkeyPatch, moved_before: bool
) -> None:
    ours, operator, above = join(), join(), 2**44
    if moved_before:
        await operator.rebase(ROLE, above, "ops", 5)
        above *= 2
    bases = ZookeeperCalls.bases

    async def overtaken(calls: ZookeeperCalls, names: Names, left: float) -> Any:
        found = await bases(calls, names, left)
        place = ours._line.place(ROLE)
        if calls is ours._zk and place and place.path:  # looked at before the role is taken, not at joining
            monkeypatch.undo()
            await operator.rebase(ROLE, above, "ops", 5)
        return found

    monkeypatch.setattr(ZookeeperCalls, "bases", overtaken)
    won = await ours.acquire(ROLE, EU, 5)
    assert isinstance(won, Held) or won.token > above
    assert await until_won(ours, EU, 10) > above


async def test_a_candidacy_that_could_not_be_withdrawn_is_taken_out_of_the_line_later(
    join: Join, beside: KazooClient, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lives on: without that, its node would stand in line for as long as this process does."""
    holder, leaver = join(), join()
    await lead(holder)
    assert isinstance(await leaver.acquire(ROLE, DR, LIMIT), Held)
    before = set(beside.get_children(Names(prefix, ROLE).line))

    async def lose(*_: Any) -> None:
        raise LinkLost("the link broke")

    with monkeypatch.context() as patch:
        patch.setattr(ZookeeperCalls, "remove", lose)
        with pytest.raises(Unavailable):
            await leaver.withdraw(ROLE, 0.3)
    assert isinstance(await leaver.acquire(ROLE, DR, LIMIT), Held)

    after = set(beside.get_children(Names(prefix, ROLE).line))
    assert (len(before), len(after), len(before & after)) == (2, 2, 1)


async def test_a_renewal_whose_answer_was_lost_costs_nothing(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    election = join()
    token = await lead(election)
    original = ZookeeperCalls.commit

    async def lose_the_answer(self: ZookeeperCalls, left: float, fill: Any) -> Any:
        await original(self, left, fill)
        raise ElectionUnavailable("lost", "connection")

    monkeypatch.setattr(ZookeeperCalls, "commit", lose_the_answer)
    with pytest.raises(Unavailable):
        await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    monkeypatch.setattr(ZookeeperCalls, "commit", original)

    await election.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert (await election.acquire(ROLE, EU, LIMIT)) == Won(token)


async def test_hints_end_when_the_link_goes_down(join: Join) -> None:
    election = join()

    async def change() -> None:
        token = await lead(election)
        await election.release(ROLE, token, SealRecord(token, "eu"), LIMIT)

    watching = await watch_under_way(election.changes(ROLE), change)
    assert election.link._handler is not None
    election.link._handler.hang_up()
    async with asyncio.timeout(LIMIT):
        await watching


# Field case A15.
async def test_a_user_keeps_its_nodes_to_itself(join: Join) -> None:
    owner, stranger = join(username="fencegate", password="a"), join(username="fencegate", password="b")
    await lead(owner)
    with pytest.raises(ElectionUnavailable, match="no permission") as caught:
        await stranger.acquire(ROLE, DR, LIMIT)
    assert caught.value.cause == "refused"


async def test_calls_that_come_at_once_share_one_session(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = [], ZookeeperLink._begin
    monkeypatch.setattr(ZookeeperLink, "_begin", lambda link: begun.append(link) or begin(link))
    elections = [join() for _ in range(5)]

    await asyncio.gather(*(election.read(f"role-{i}", LIMIT) for election in elections for i in range(4)))

    assert sorted(map(id, begun)) == sorted(id(election.link) for election in elections)


async def test_closing_leaves_no_thread_behind(join: Join) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        election = join()
        await election.probe(5)
        await election.close()
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        await asyncio.to_thread(thread.join, LIMIT)
    assert [thread for thread in left if thread.is_alive()] == []


@pytest.mark.parametrize("hosts", [[], ["zk-1"], ["http://zk-1:2181"], ["zk-1:2181/chroot"]])
def test_a_bad_address_is_refused_at_once(hosts: list[str]) -> None:
    with pytest.raises(ValueError, match="election endpoints"):
        ZookeeperElection(hosts, SHORT)


def test_a_prefix_must_name_something() -> None:
    with pytest.raises(ValueError, match="election prefix"):
        ZookeeperElection(["zk-1:2181"], SHORT, prefix="/")


# -- followed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_c_7f1c-latch-", "_c_7f1c-lock-", "7f1c__lock__"])
async def test_the_lowest_of_a_recipes_line_leads_under_its_czxid_and_other_nodes_do_not_stand_in_it(
    zookeeper: EmbeddedZookeeper, prefix: str, beside: KazooClient, name: str
) -> None:
    """As Curator's LeaderLatch and LeaderSelector, and kazoo, name their nodes."""
    source = ZookeeperFollowed(zookeeper.hosts, TIMINGS, prefix=prefix)
    assert await source.read(ROLE, LIMIT) is None
    line = f"{prefix}/{ROLE}"
    beside.create(f"{line}/somebody-elses", b"", makepath=True)
    assert await source.read(ROLE, LIMIT) is None
    first, stat = await asyncio.to_thread(
        beside.create, f"{line}/{name}", b"one", ephemeral=True, sequence=True, include_data=True
    )
    _, behind = beside.create(f"{line}/{name}", b"two", ephemeral=True, sequence=True, include_data=True)

    found = await source.read(ROLE, LIMIT)
    assert found is not None
    assert (found.token, found.node, found.active) == (stat.czxid, "one", True)
    beside.delete(first)
    found = await source.read(ROLE, LIMIT)
    assert found is not None
    assert (found.token, found.node) == (behind.czxid, "two")
    await source.close()


async def test_after_a_rebase_the_next_leader_by_the_recipe_is_above_it_and_the_present_one_keeps_its_number(
    zookeeper: EmbeddedZookeeper, prefix: str, beside: KazooClient
) -> None:
    source = ZookeeperFollowed(zookeeper.hosts, TIMINGS, prefix=prefix)
    contender = f"{prefix}/{ROLE}/x__lock__"
    first, stat = beside.create(contender, b"1", ephemeral=True, sequence=True, makepath=True, include_data=True)
    assert (await source.rebase(ROLE, 2**44, "ops", 5)).after == 2**44
    found = await source.read(ROLE, 5)
    assert found is not None
    assert found.token == stat.czxid
    beside.create(contender, b"2", ephemeral=True, sequence=True)
    beside.delete(first)
    found = await source.read(ROLE, 5)
    assert found is not None
    assert found.token > 2**44
    await source.close()


async def test_a_live_term_of_our_own_comes_before_a_recipes(
    zookeeper: EmbeddedZookeeper, prefix: str, beside: KazooClient, join: Join
) -> None:
    beside.create(f"{prefix}/{ROLE}/x__lock__", b"other", ephemeral=True, sequence=True, makepath=True)
    election = join(TIMINGS)
    token = await lead(election)
    source = ZookeeperFollowed(zookeeper.hosts, TIMINGS, prefix=prefix)

    found = await source.read(ROLE, LIMIT)

    assert found is not None
    assert (found.token, found.node) == (token, "gw-eu")
    await source.close()
