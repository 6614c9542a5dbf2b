"""The election over a real etcd cluster that is killed, frozen, cut in two and shared with etcd's own tools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from fencegate.election.etcd import EtcdElection
from fencegate.election.etcd_gateway import EtcdGateway, EtcdRefused, decode, encode
from fencegate.election.etcd_records import Names
from fencegate.election.follower import Follower
from fencegate.embedded.binaries import etcd_binary
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.errors import Unavailable
from fencegate.fence import Verdict
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.observations import Observation, TokenRegressed
from fencegate.testing.background import watch_under_way
from fencegate.testing.faulty_http import FaultyServer
from fencegate.testing.loop_lag import LoopLag
from fencegate.testing.memory_store import MemoryStore

TIMINGS = LeaseTimings(8, 5, 1, 0.5)
LIMIT = 20.0
"""Seconds that a call may take, and what is waited for: servers that are well need a thousandth of it."""
ROLE = "ledger"
EU = Candidate("gw-eu", "eu", "https://eu.example")
DR = Candidate("gw-dr", "dr", "https://dr.example")
MOST_LAG = 0.5
"""Seconds that the loop may be late on a loaded machine; a blocking call would be late by its whole limit."""


@pytest.fixture
def cluster(make_etcd: Callable[..., EmbeddedEtcd]) -> EmbeddedEtcd:
    cluster = make_etcd(unsafe_no_fsync=True)
    cluster.start_sync()
    return cluster


@pytest.fixture
async def election(cluster: EmbeddedEtcd) -> AsyncIterator[EtcdElection]:
    election = EtcdElection(cluster.endpoints, TIMINGS)
    yield election
    await election.close()


@pytest.fixture
async def shared(etcd: EmbeddedEtcd, fresh_prefix: str) -> AsyncIterator[EtcdElection]:
    """An election on the run's cluster, which stays healthy."""
    election = EtcdElection(etcd.endpoints, TIMINGS, prefix=fresh_prefix)
    yield election
    await election.close()


async def lead(election: EtcdElection, who: Candidate = EU) -> int:
    won = await election.acquire(ROLE, who, LIMIT)
    assert isinstance(won, Won)
    await election.renew(ROLE, won.token, who, active=True, deadline=LIMIT)
    return won.token


def current(cluster: EmbeddedEtcd, election: EtcdElection) -> int:
    return cluster.endpoints.index(election.gateway.endpoint)


async def timed(call: Awaitable[Any]) -> float:
    began = time.monotonic()
    await call
    return time.monotonic() - began


async def test_whoever_handed_a_role_over_that_nobody_took_waits_for_the_successor_once(
    etcd: EmbeddedEtcd, fresh_prefix: str
) -> None:
    """It stays out of the election for that time already; a second one after it would be longer than a lease."""
    timings = LeaseTimings(8, 3, 1, 0.5)
    ours = EtcdElection(etcd.endpoints, timings, prefix=fresh_prefix)
    try:
        token = await lead(ours)
        assert await ours.release(ROLE, token, SealRecord(token, "eu", "dr"), LIMIT)
        assert isinstance(await ours.acquire(ROLE, EU, LIMIT), Held)
        await asyncio.sleep(timings.hold_back)
        assert isinstance(await ours.acquire(ROLE, EU, LIMIT), Won)

        token = await lead(ours)
        assert await ours.release(ROLE, token, SealRecord(token, "eu", "dr"), LIMIT)
        await asyncio.sleep(timings.hold_back)
        assert isinstance(await ours.acquire(ROLE, EU, LIMIT), Won)
    finally:
        await ours.close()


async def test_another_election_with_a_prefix_below_ours_is_told_of_and_its_leader_taken_for_none_of_ours(
    shared: EtcdElection, etcd: EmbeddedEtcd, fresh_prefix: str
) -> None:
    below = EtcdElection(etcd.endpoints, TIMINGS, prefix=f"{fresh_prefix}{ROLE}")
    try:
        await lead(below, DR)
        why = "some other election has a prefix below"
        with pytest.raises(ElectionUnavailable, match=why):
            await shared.acquire(ROLE, EU, LIMIT)
        with pytest.raises(ElectionUnavailable, match=why):
            await shared.read(ROLE, LIMIT)
        both = await shared.read_many([ROLE, "orders"], LIMIT)
        assert isinstance(both[ROLE], ElectionUnavailable)
        assert both["orders"] is None
        assert [each.node for each in await shared.candidates(ROLE, LIMIT)] == []
        seen = await below.read(ROLE, LIMIT)
        assert seen is not None
        assert seen.node == DR.node, "whose prefix lies below is not disturbed"
    finally:
        await below.close()


async def test_who_stands_in_an_election_below_is_no_candidate_of_ours(
    shared: EtcdElection, etcd: EmbeddedEtcd, fresh_prefix: str
) -> None:
    token = await lead(shared)
    below = EtcdElection(etcd.endpoints, TIMINGS, prefix=f"{fresh_prefix}{ROLE}")
    try:
        await lead(below, DR)
        assert await shared.candidates(ROLE, LIMIT) == []
        await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)
        assert await shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    finally:
        await below.close()


# -- faults of the cluster ------------------------------------------------------------------------


async def test_a_killed_node_costs_a_moment_and_not_the_term(cluster: EmbeddedEtcd, election: EtcdElection) -> None:
    token = await lead(election)
    cluster.kill(current(cluster, election))

    async with LoopLag() as lag:
        for _ in range(5):
            await election.renew(ROLE, token, EU, active=True, deadline=5)
            await asyncio.sleep(0.2)

    assert lag.worst < MOST_LAG
    term = await election.read(ROLE, LIMIT)
    assert term is not None
    assert term.token == token


async def test_a_frozen_node_does_not_eat_the_deadline(cluster: EmbeddedEtcd, election: EtcdElection) -> None:
    token = await lead(election)
    frozen = current(cluster, election)
    cluster.freeze(frozen)

    async with LoopLag() as lag:
        first = await timed(election.renew(ROLE, token, EU, active=True, deadline=5))
        again = [await timed(election.renew(ROLE, token, EU, active=True, deadline=5)) for _ in range(3)]

    assert min(again) < first, "the frozen node was not remembered"
    assert current(cluster, election) != frozen
    assert lag.worst < MOST_LAG


# Field case 15: etcd-io/etcd#9395.
async def test_elections_of_etcd_itself_make_a_dead_leaders_lease_no_shorter(cluster: EmbeddedEtcd) -> None:
    """Each new leader of etcd gives every lease its whole time again."""
    timings = LeaseTimings(5, 3, 1, 0.5)
    dead, standing = (EtcdElection(cluster.endpoints, timings) for _ in range(2))
    token = await lead(dead)
    began = time.monotonic()
    await dead.close()

    async def hold_an_election() -> float:
        """How long after the holder's last word etcd had another leader."""
        leader = await leader_among(cluster)
        assert leader is not None
        cluster.freeze(leader)
        while await leader_among(cluster, leader) in (None, leader):
            assert time.monotonic() - began < 40
        elected = time.monotonic() - began
        cluster.thaw(leader)
        return elected

    disturbing = asyncio.create_task(hold_an_election())
    try:
        while True:
            try:
                won = await standing.acquire(ROLE, DR, 2)
            except Unavailable:
                won = None
            waited = time.monotonic() - began
            if isinstance(won, Won):
                break
            assert waited < 60
            await asyncio.sleep(0.2)
    finally:
        elected = await disturbing
        await standing.close()
    assert waited >= timings.lease_duration
    assert waited >= elected + timings.lease_duration - 2
    assert won.token > token


async def leader_among(cluster: EmbeddedEtcd, *without: int) -> int | None:
    """Which node leads etcd itself, by the word of those that are asked."""
    members, leader = {}, ""
    for index, endpoint in enumerate(cluster.endpoints):
        if index in without:
            continue
        gateway = EtcdGateway([endpoint])
        try:
            told = await gateway.call("/v3/maintenance/status", {}, 2)
        finally:
            await gateway.close()
        members[told["header"]["member_id"]] = index
        leader = told.get("leader", "")
    return members.get(leader)


# Field case 15.
@pytest.mark.parametrize("index", [0, 1, 2])
async def test_whichever_node_is_frozen_the_term_goes_on(
    cluster: EmbeddedEtcd, election: EtcdElection, index: int
) -> None:
    token = await lead(election)
    cluster.freeze(index)

    ends, failures = time.monotonic() + 2.5 * TIMINGS.lease_duration / 2, 0
    while time.monotonic() < ends:
        try:
            await election.renew(ROLE, token, EU, active=True, deadline=TIMINGS.renew_deadline)
        except Unavailable:
            failures += 1
        await asyncio.sleep(0.3)

    assert failures <= 1
    term = await election.read(ROLE, LIMIT)
    assert term is not None
    assert term.token == token


# Field case 59.
async def test_without_a_quorum_every_call_ends_at_its_deadline_and_all_is_well_after(
    cluster: EmbeddedEtcd, election: EtcdElection
) -> None:
    token = await lead(election)
    for index in (0, 1):
        cluster.freeze(index)

    calls = [
        election.renew(ROLE, token, EU, active=True, deadline=3),
        election.read(ROLE, 3),
        election.acquire(ROLE, EU, 3),
        election.release(ROLE, token, SealRecord(token, "eu"), 3),
    ]

    async def ends(call: Awaitable[Any]) -> None:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await call
        assert time.monotonic() - began < 5.5

    async with LoopLag() as lag:
        await asyncio.gather(*map(ends, calls))
    assert lag.worst < MOST_LAG

    for index in (0, 1):
        cluster.thaw(index)
    async with asyncio.timeout(20):
        while True:
            try:
                term = await election.read(ROLE, 2)
                break
            except Unavailable:
                await asyncio.sleep(0.2)
    # The release that nobody answered may have been carried out, or the lease may have run out. Never another term.
    assert term is None or term.token == token


async def test_losing_the_quorum_ends_the_watch_instead_of_silencing_it(
    cluster: EmbeddedEtcd, election: EtcdElection
) -> None:
    watching = await watch_under_way(election.changes(ROLE), lambda: lead(election))
    index = current(cluster, election)
    for other in {0, 1, 2} - {index}:
        cluster.freeze(other)

    async with asyncio.timeout(20):
        await watching


async def test_a_watch_on_a_killed_node_ends(cluster: EmbeddedEtcd, election: EtcdElection) -> None:
    watching = await watch_under_way(election.changes(ROLE), lambda: lead(election))
    cluster.kill(current(cluster, election))

    async with asyncio.timeout(LIMIT):
        await watching


# -- renewals -------------------------------------------------------------------------------------


# Field case 14: etcd-io/etcd#15247, etcd-io/etcd#12528.
async def test_every_renewal_moves_the_key_to_a_new_lease_and_keeps_its_create_revision(
    shared: EtcdElection, fresh_prefix: str
) -> None:
    token = await lead(shared)
    names, leases = Names(fresh_prefix.rstrip("/"), ROLE), set()
    for _ in range(5):
        await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)
        body = {"key": encode(names.line), "range_end": encode(names.line_end)}
        (found,) = (await shared.gateway.call("/v3/kv/range", body, LIMIT))["kvs"]
        assert int(found["create_revision"]) == token
        leases.add(found["lease"])

    assert len(leases) == 5


async def test_a_renewal_that_is_applied_late_cannot_move_the_key_back_to_its_older_lease(
    shared: EtcdElection, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await lead(shared)
    real, held = shared.gateway.call, []

    async def call(path: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        if path == "/v3/kv/txn":
            held.append(body)  # still on its way when the caller gives up
            raise ElectionUnavailable("no answer", "timeout")
        return await real(path, body, deadline)

    monkeypatch.setattr(shared.gateway, "call", call)
    with pytest.raises(Unavailable):
        await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    monkeypatch.undo()
    await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)

    late = await real("/v3/kv/txn", held[0], 5)

    assert not late.get("succeeded", False)


async def test_a_renewal_whose_answer_was_lost_is_found_to_have_succeeded(
    shared: EtcdElection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway sends a transaction again on another endpoint; the second finds the work of the first."""
    token = await lead(shared)
    real = shared.gateway.call

    async def twice(path: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        if path == "/v3/kv/txn":
            await real(path, body, deadline)
        return await real(path, body, deadline)

    monkeypatch.setattr(shared.gateway, "call", twice)
    for _ in range(3):
        await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    assert await shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT)


async def test_a_key_that_an_operator_deleted_is_a_lost_term(shared: EtcdElection, fresh_prefix: str) -> None:
    token = await lead(shared)
    names = Names(fresh_prefix.rstrip("/"), ROLE)
    body = {"key": encode(names.line), "range_end": encode(names.line_end)}
    await shared.gateway.call("/v3/kv/deleterange", body, LIMIT)

    with pytest.raises(LeaseLost, match="gone"):
        await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)

    await shared.withdraw(ROLE, LIMIT)
    assert await lead(shared) > token


# Field case 13: cagriekin/charts#327, etcd-io/etcd#12334, etcd-io/jetcd#833.
async def test_a_candidate_whose_lease_ended_unseen_stands_anew(shared: EtcdElection, etcd: EmbeddedEtcd) -> None:
    await lead(shared)
    waiting = EtcdElection(etcd.endpoints, TIMINGS, prefix=shared._prefix)
    assert isinstance(await waiting.acquire(ROLE, DR, LIMIT), Held)
    await waiting.gateway.call("/v3/lease/revoke", {"ID": waiting._line[ROLE].lease}, LIMIT)

    outcome = await waiting.acquire(ROLE, DR, LIMIT)

    assert isinstance(outcome, Held)
    assert outcome.term is not None
    await waiting.close()


async def test_a_server_that_grants_less_lease_than_asked_for_is_refused(
    shared: EtcdElection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(path: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        return {"ID": "7", "TTL": "2"}

    monkeypatch.setattr(shared.gateway, "call", call)
    with pytest.raises(Unavailable, match="granted 2 s"):
        await shared.acquire(ROLE, EU, LIMIT)


# -- together with etcd's own election ------------------------------------------------------------


async def etcdctl(etcd: EmbeddedEtcd, *arguments: str) -> asyncio.subprocess.Process:
    program = etcd_binary().parent / "etcdctl"
    return await asyncio.create_subprocess_exec(
        program,
        f"--endpoints={','.join(etcd.endpoints)}",
        *arguments,
        env={"ETCDCTL_API": "3"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_etcdctl_elect_and_fencegate_stand_in_one_line(shared: EtcdElection, etcd: EmbeddedEtcd) -> None:
    election = f"{shared._prefix}/{ROLE}"
    foreign = await etcdctl(etcd, "elect", election, "somebody else")
    try:
        assert foreign.stdout
        async with asyncio.timeout(LIMIT):
            key = (await foreign.stdout.readline()).decode().strip()
        assert key.startswith(election + "/")

        outcome = await shared.acquire(ROLE, EU, LIMIT)
        assert isinstance(outcome, Held)
        assert outcome.term is not None
        assert (outcome.term.node, outcome.term.url) == ("somebody else", "")
    finally:
        foreign.terminate()  # etcdctl gives its place up when it is asked to end
        await foreign.communicate()
    async with asyncio.timeout(20):
        won = await shared.acquire(ROLE, EU, LIMIT)
        while not isinstance(won, Won):
            await asyncio.sleep(0.2)
            won = await shared.acquire(ROLE, EU, LIMIT)
    assert won.token > outcome.term.token

    listener = await etcdctl(etcd, "elect", "--listen", election)
    try:
        assert listener.stdout
        async with asyncio.timeout(LIMIT):
            seen = (await listener.stdout.readline()).decode()
        assert seen.startswith(election + "/")
    finally:
        listener.kill()
        await listener.communicate()


async def test_etcdctl_waits_behind_fencegate_and_leads_once_the_term_was_given_back(
    shared: EtcdElection, etcd: EmbeddedEtcd
) -> None:
    election = f"{shared._prefix}/{ROLE}"
    token = await lead(shared)
    foreign = await etcdctl(etcd, "elect", election, "somebody else")
    try:
        async with asyncio.timeout(LIMIT):
            names, waiting = Names(shared._prefix, ROLE), 0
            line = {"key": encode(names.line), "range_end": encode(names.line_end), "count_only": True}
            while waiting < 2:
                waiting = int((await shared.gateway.call("/v3/kv/range", line, LIMIT)).get("count", 0))
            await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)
            assert await shared.candidates(ROLE, LIMIT) == [], (
                "nothing can be handed to a program that is not fencegate"
            )
            assert foreign.stdout

            assert await shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT)

            assert (await foreign.stdout.readline()).decode().startswith(election + "/")
        term = await shared.read(ROLE, LIMIT)
        assert term is not None
        assert (term.node, term.url, term.active) == ("somebody else", "", True)
        assert term.token > token
    finally:
        foreign.terminate()
        await foreign.communicate()


async def test_a_go_program_that_proclaims_another_text_in_its_term_is_the_same_holder(shared: EtcdElection) -> None:
    key = encode(Names(shared._prefix, ROLE).candidate(1))
    await shared.gateway.call("/v3/kv/put", {"key": key, "value": encode("starting")}, LIMIT)
    told: list[Observation] = []
    store = MemoryStore([ROLE], time.monotonic, mode="token")
    await Follower(ROLE, shared, store, TIMINGS, told.append).look()
    term = await shared.read(ROLE, LIMIT)
    assert term is not None
    token = term.token

    await shared.gateway.call("/v3/kv/put", {"key": key, "value": encode("serving at 10.0.0.7")}, LIMIT)
    again = Follower(ROLE, shared, store, TIMINGS, told.append)
    for _ in range(2):
        await again.look()

    assert again.token == token
    assert store.write(ROLE, token) is Verdict.ADMIT
    assert not any(isinstance(fact, TokenRegressed) for fact in told)


async def test_a_foreign_term_seen_between_the_sealed_one_and_ours_makes_the_seal_not_count(
    shared: EtcdElection, etcd: EmbeddedEtcd
) -> None:
    token = await lead(shared)
    assert await shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    foreign = encode(Names(shared._prefix, ROLE).candidate(1))
    await shared.gateway.call("/v3/kv/put", {"key": foreign, "value": encode("a Go program")}, LIMIT)
    assert isinstance(await shared.acquire(ROLE, EU, LIMIT), Held)
    await shared.gateway.call("/v3/kv/deleterange", {"key": foreign}, LIMIT)

    won = await shared.acquire(ROLE, EU, LIMIT)

    assert isinstance(won, Won)
    assert won.predecessor_sealed is None


# -- the base of the numbers ----------------------------------------------------------------------


async def test_a_base_that_somebody_mangled_closes_the_election_instead_of_being_guessed(shared: EtcdElection) -> None:
    token = await lead(shared)
    key = Names(shared._prefix, ROLE).base
    await shared.gateway.call("/v3/kv/put", {"key": encode(key), "value": encode("7")}, LIMIT)

    for call in (
        shared.acquire(ROLE, EU, LIMIT),
        shared.read(ROLE, LIMIT),
        shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT),
        shared.rebase(ROLE, 10**9, "ops", LIMIT),
    ):
        with pytest.raises(ElectionUnavailable, match="holds no base"):
            await call
    await shared.renew(ROLE, token, EU, active=True, deadline=LIMIT)  # a term under way has its number already


async def test_a_seal_from_before_a_rebase_does_not_speak_of_the_term_before(shared: EtcdElection) -> None:
    token = await lead(shared)
    assert await shared.release(ROLE, token, SealRecord(token, "eu"), LIMIT)
    await shared.rebase(ROLE, 10**9, "ops", LIMIT)

    won = await shared.acquire(ROLE, EU, LIMIT)

    assert isinstance(won, Won)
    assert (won.token > 10**9, won.predecessor_sealed) == (True, None)


async def test_etcdctl_stands_in_the_same_line_after_a_rebase_and_is_shown_with_the_base(
    shared: EtcdElection, etcd: EmbeddedEtcd
) -> None:
    await shared.rebase(ROLE, 10**9, "ops", LIMIT)
    foreign = await etcdctl(etcd, "elect", f"{shared._prefix}/{ROLE}", "somebody else")
    try:
        assert foreign.stdout
        async with asyncio.timeout(LIMIT):
            await foreign.stdout.readline()
        outcome = await shared.acquire(ROLE, EU, LIMIT)
        term = await shared.read(ROLE, LIMIT)
    finally:
        foreign.terminate()
        await foreign.communicate()

    assert isinstance(outcome, Held)
    assert outcome.term == term
    assert term is not None
    assert (term.node, term.token > 10**9) == ("somebody else", True)


# -- access ---------------------------------------------------------------------------------------


# Field case 98: kragniz/python-etcd3#1227, kragniz/python-etcd3#88, kragniz/python-etcd3#1107,
#   kragniz/python-etcd3#291, etcd-io/etcd#8980.
async def test_a_cluster_with_passwords_lets_in_who_knows_one(make_etcd: Callable[..., EmbeddedEtcd]) -> None:
    cluster = make_etcd(nodes=1, unsafe_no_fsync=True)
    await cluster.start()
    admin = EtcdGateway(cluster.endpoints)
    await admin.call("/v3/auth/user/add", {"name": "root", "password": "secret"}, LIMIT)
    await admin.call("/v3/auth/role/add", {"name": "root"}, LIMIT)
    await admin.call("/v3/auth/user/grant", {"user": "root", "role": "root"}, LIMIT)
    await admin.call("/v3/auth/enable", {}, LIMIT)
    await admin.close()

    good = EtcdElection(cluster.endpoints, TIMINGS, username="root", password="secret")
    token = await lead(good)
    good.gateway._auth_token = "ended.1"  # as after five minutes, or a restart of the member
    await good.renew(ROLE, token, EU, active=True, deadline=LIMIT)
    await good.close()

    for wrong in (
        EtcdElection(cluster.endpoints, TIMINGS, username="root", password="guess"),
        EtcdElection(cluster.endpoints, TIMINGS),
    ):
        for call in (wrong.acquire(ROLE, EU, 2), wrong.read(ROLE, 2), wrong.probe(2)):
            with pytest.raises(Unavailable, match="etcd"):
                await call
        await wrong.close()


async def test_what_answers_but_is_no_etcd_is_said_plainly() -> None:
    runner = web.AppRunner(web.Application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    election = EtcdElection([f"http://127.0.0.1:{runner.addresses[0][1]}"], TIMINGS)

    with pytest.raises(Unavailable, match="JSON gateway turned off"):
        await election.probe(0.5)

    await election.close()
    await runner.cleanup()


async def test_a_healthy_cluster_passes_the_probe(shared: EtcdElection) -> None:
    await shared.probe(5)


async def test_a_refusal_of_etcd_carries_its_code(shared: EtcdElection) -> None:
    with pytest.raises(EtcdRefused) as caught:
        await shared.gateway.call("/v3/lease/revoke", {"ID": "12345"}, LIMIT)

    assert caught.value.code == 5


@pytest.mark.parametrize("endpoints", [[], ["etcd-1:2379"], ["ftp://x"]])
def test_bad_endpoints_are_refused(endpoints: list[str]) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        EtcdElection(endpoints, TIMINGS)


@pytest.mark.parametrize("prefix", ["", "/", "//"])
def test_an_empty_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        EtcdElection(["http://x:1"], TIMINGS, prefix=prefix)


def test_keys_go_through_the_gateway_unharmed() -> None:
    assert decode(encode(b"\x00\xff/")) == b"\x00\xff/"
    assert decode(encode("ä")) == "ä".encode()


class _Somewhere(FaultyServer):
    """Answers as an etcd would, whatever it is asked, and keeps what it is sent."""

    def __init__(self, elsewhere: str = "") -> None:
        super().__init__()
        self.elsewhere = elsewhere
        self.sent: list[bytes] = []

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.sent.append(await request.read())
        if self.elsewhere:
            return web.Response(status=307, headers={"Location": f"{self.elsewhere}{request.path}"})
        return web.json_response({"token": "t", "header": {"revision": "7"}, "succeeded": True, "responses": [{}]})


async def test_no_redirect_takes_the_password_or_the_word_on_who_leads_to_another_server() -> None:
    stranger = _Somewhere()
    configured = _Somewhere(await stranger.start())
    gateway = EtcdGateway([await configured.start()], username="gw", password="s3cret")
    try:
        with pytest.raises(ElectionUnavailable, match="HTTP 307"):
            await gateway.call("/v3/kv/txn", {}, 1)
        assert [told async for told in gateway.watch(b"a", b"b")] == []
    finally:
        await gateway.close()
        await configured.close()
        await stranger.close()
    assert configured.sent
    assert stranger.sent == []
