"""The Lease election against a small server of the documented API: conflicts, faults, and a client-go contender."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from fencegate.election.elector import Elector
from fencegate.election.follower import Follower
from fencegate.election.kubernetes import KubernetesElection
from fencegate.election.kubernetes_api import KubernetesAccess, in_cluster
from fencegate.election.kubernetes_records import TERM, lease_name
from fencegate.leadership.words import State
from fencegate.lease import Candidate, ElectionUnavailable, Held, LeaseLost, LeaseTimings, SealRecord, Won
from fencegate.observations import Observation
from fencegate.testing.client_go import ClientGo
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.kubernetes_api import KubernetesApi, status
from fencegate.testing.memory_store import MemoryStore

LIMIT = 15.0
TIMINGS = LeaseTimings(15.0, 10.0, 2.0, 1.0)
EU, US = Candidate("gw-1", "eu", "https://eu.example"), Candidate("gw-9", "us", "https://us.example")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    api = KubernetesApi()
    await api.start()
    yield api
    await api.close()


@pytest_asyncio.fixture
async def make(server: KubernetesApi, clock: HandClock) -> AsyncIterator[Any]:
    made: list[KubernetesElection] = []

    def new(**options: Any) -> KubernetesElection:
        access = options.pop("access", KubernetesAccess([server.url], "default"))
        timings = options.pop("timings", TIMINGS)
        made.append(KubernetesElection(access, timings, clock=clock, **options))
        return made[-1]

    yield new
    for election in made:
        await election.close()


async def lead(election: KubernetesElection, candidate: Candidate = EU) -> int:
    won = await election.acquire("ledger", candidate, LIMIT)
    assert isinstance(won, Won)
    await election.renew("ledger", won.token, candidate, active=True, deadline=LIMIT)
    return won.token


# -- contending with client-go --------------------------------------------------------------------------


async def test_a_go_controller_waits_for_our_lease_and_takes_it_when_we_stop(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    ours, go = make(), ClientGo(server.url, "go_1", clock)
    token = await lead(ours)
    for _ in range(5):
        assert not await go.try_acquire_or_renew()
        clock.now += 10
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert not await go.try_acquire_or_renew()
    clock.now += 14.9
    assert not await go.try_acquire_or_renew()
    clock.now += 0.2
    assert await go.try_acquire_or_renew()
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert server.leases["default", "ledger"]["spec"]["leaseTransitions"] == 1


async def test_we_wait_for_a_go_controllers_lease_and_take_it_when_it_stops(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    ours, go = make(timings=LeaseTimings(2.0, 1.2, 0.3, 0.2)), ClientGo(server.url, "go_1", clock)
    assert await go.try_acquire_or_renew()
    version = server.version
    for _ in range(5):
        held = await ours.acquire("ledger", EU, LIMIT)
        assert isinstance(held, Held)
        assert held.term is not None
        assert (held.term.node, held.term.active, held.term.lease_duration) == ("go_1", False, 15)
        clock.now += 10  # five of our own leases, less than one of the holder's
        assert await go.try_acquire_or_renew()
    assert isinstance(await ours.acquire("ledger", EU, LIMIT), Held)
    clock.now += 15
    won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.token == server.version > version
    assert won.predecessor_sealed is None
    assert not await go.try_acquire_or_renew()


async def test_what_one_gives_back_the_other_takes_at_once(server: KubernetesApi, make: Any, clock: HandClock) -> None:
    ours, go = make(), ClientGo(server.url, "go_1", clock)
    token = await lead(ours)
    assert await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert await go.try_acquire_or_renew()
    assert await go.release()
    won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    # Our seal still stands in the annotations, but the Go controller's unsealed term came after it.
    assert won.predecessor_sealed is None
    assert won.token > token


async def test_tokens_grow_over_every_change_of_hands_and_are_never_shown_for_a_foreign_term(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    ours, theirs, reader = make(), make(), make()
    go = ClientGo(server.url, "go_1", clock)
    tokens = []
    for election, candidate in ((ours, EU), (theirs, US), (ours, EU)):
        tokens.append(await lead(election, candidate))
        await election.release("ledger", tokens[-1], SealRecord(tokens[-1], candidate.region), LIMIT)
        assert await go.try_acquire_or_renew()
        term = await reader.read("ledger", LIMIT)
        assert term is not None
        assert (term.node, term.active) == ("go_1", False)
        assert await go.release()
    assert tokens == sorted(set(tokens))


async def test_both_at_once_never_lead_together(server: KubernetesApi, make: Any, clock: HandClock) -> None:
    contenders = [ClientGo(server.url, f"go_{n}", clock) for n in range(3)]
    elections = [make() for _ in range(3)]
    for _ in range(6):
        outcomes = await asyncio.gather(
            *(go.try_acquire_or_renew() for go in contenders),
            *(election.acquire("ledger", EU, LIMIT) for election in elections),
        )
        assert sum(outcome is True or isinstance(outcome, Won) for outcome in outcomes) <= 1
        clock.now += 16
        elections = [make() for _ in range(3)]
        contenders = [ClientGo(server.url, f"go_{n}", clock) for n in range(3)]


# -- following a foreign holder -------------------------------------------------------------------------


async def test_following_gives_a_go_controllers_term_one_number_that_all_readers_share(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    go = ClientGo(server.url, "go_1", clock)
    assert await go.try_acquire_or_renew()
    readers = [make(name_foreign_terms=True) for _ in range(3)]
    terms = await asyncio.gather(*(reader.read("ledger", LIMIT) for reader in readers))
    (token,) = {term.token for term in terms}
    assert all(term.active and term.node == "go_1" for term in terms)
    # The controller's next renewal is refused once, reads anew and goes through: it keeps leading.
    assert await go.try_acquire_or_renew()
    assert go.conflicts == 1
    assert await go.try_acquire_or_renew()
    assert go.conflicts == 1
    term = await readers[0].read("ledger", LIMIT)
    assert (term.token, term.active) == (token, True)
    assert await go.release()
    assert await readers[0].read("ledger", LIMIT) is None
    other = ClientGo(server.url, "go_2", clock)
    assert await other.try_acquire_or_renew()
    assert (await readers[1].read("ledger", LIMIT)).token > token


async def test_a_follower_raises_the_fence_to_a_go_controllers_term(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    store = MemoryStore(["ledger"], clock, mode="token")
    seen: list[Observation] = []
    follower = Follower("ledger", make(name_foreign_terms=True), store, TIMINGS, seen.append)
    go = ClientGo(server.url, "go_1", clock)
    assert await go.try_acquire_or_renew()
    await follower.look()
    row = await store.read("ledger")
    assert row is not None
    assert row.max_token_seen == follower.token > 0
    assert TERM in server.leases["default", "ledger"]["metadata"]["annotations"]


async def test_campaigning_readers_never_write(server: KubernetesApi, make: Any, clock: HandClock) -> None:
    assert await ClientGo(server.url, "go_1", clock).try_acquire_or_renew()
    version = server.version
    await make().read("ledger", LIMIT)
    assert server.version == version


# -- tokens ---------------------------------------------------------------------------------------------


async def test_the_token_is_the_version_of_the_winning_write(server: KubernetesApi, make: Any) -> None:
    won = await make().acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert str(won.token) == server.leases["default", "ledger"]["metadata"]["resourceVersion"]


@pytest.mark.parametrize("labelled", [False, True])
async def test_a_win_whose_answer_is_lost_is_found_again_with_one_token(
    server: KubernetesApi, make: Any, labelled: bool
) -> None:
    ours, reader = make(), make()
    server.muffled = 1
    with pytest.raises(ElectionUnavailable):
        await ours.acquire("ledger", EU, 0.3)
    won_at = server.version
    if labelled:
        server.label("ledger", "team", "a")
    won = await ours.acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won_at <= won.token <= server.version
    await ours.renew("ledger", won.token, EU, active=True, deadline=LIMIT)
    assert await ours.acquire("ledger", EU, LIMIT) == won
    assert (await reader.read("ledger", LIMIT)).token == won.token


async def test_a_seal_is_not_forgotten_where_the_answer_to_the_win_is_lost(server: KubernetesApi, make: Any) -> None:
    first, second = make(), make()
    token = await lead(first)
    await first.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    server.muffled = 1
    with pytest.raises(ElectionUnavailable):
        await second.acquire("ledger", US, 0.3)
    won = await second.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.predecessor_sealed == SealRecord(token, "eu")


async def test_a_win_whose_connection_was_cut_is_found_within_the_same_call(server: KubernetesApi, make: Any) -> None:
    server.losing = 1
    won = await make().acquire("ledger", EU, LIMIT)
    assert isinstance(won, Won)
    assert won.token == server.version


@pytest.mark.parametrize("spelled", ["v1-{}", "{}.0", "0x{}", "9223372036854775808"])
async def test_versions_that_are_no_numbers_are_refused(server: KubernetesApi, make: Any, spelled: str) -> None:
    server.version_text = spelled.format
    with pytest.raises(ElectionUnavailable, match="use another election"):
        await make().probe(LIMIT)
    with pytest.raises(ElectionUnavailable, match="use another election"):
        await make().acquire("ledger", EU, LIMIT)


async def test_a_number_is_probed_and_passes(make: Any) -> None:
    await make().probe(LIMIT)


# -- signs of life --------------------------------------------------------------------------------------


async def test_a_label_is_no_sign_of_life_and_does_not_end_a_term(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    server.label("ledger", "team", "a")
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    await rival.acquire("ledger", US, LIMIT)
    for colour in ("red", "blue", "green"):
        server.label("ledger", "colour", colour)
        clock.now += 5.1
        outcome = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(outcome, Won)
    assert server.leases["default", "ledger"]["metadata"]["labels"] == {"team": "a", "colour": "green"}


async def test_a_renewal_whose_answer_is_lost_counts_and_the_next_goes_on(server: KubernetesApi, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    for _ in range(3):
        server.losing = 1
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)  # found by its second try
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


# Field case 6: apache/artemis#6409.
async def test_a_holder_whose_lease_is_deleted_loses_and_is_still_waited_for(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Held)
    server.remove("ledger")
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert ("default", "ledger") not in server.leases
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    assert not await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.token > token
    assert won.predecessor_sealed is None


async def test_a_lease_that_was_deleted_and_that_a_rebase_made_anew_opens_nothing_early(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    rival = make()
    await lead(make())
    assert isinstance(await rival.acquire("ledger", US, LIMIT), Held)
    server.remove("ledger")
    await make().rebase("ledger", 10**6, "ops", LIMIT)
    assert await rival.acquire("ledger", US, LIMIT) == Held(None)
    clock.now += 15.1
    won = await rival.acquire("ledger", US, LIMIT)
    assert isinstance(won, Won)
    assert won.token > 10**6


async def test_a_renewal_that_created_a_deleted_lease_anew_is_a_loss(server: KubernetesApi, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    server.remove("ledger")
    server.checks_uids = False
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert ("default", "ledger") in server.leases


async def test_a_renewal_that_is_applied_late_changes_nothing(
    server: KubernetesApi, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, sent = make(), []
    token = await lead(ours)
    update = ours.api.update

    async def recorded(role: str, raw: Any, deadline: float) -> Any:
        sent.append(raw)
        return await update(role, raw, deadline)

    monkeypatch.setattr(ours.api, "update", recorded)
    for _ in range(2):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert len(sent) == 2
    version = server.version
    for raw in sent:
        assert await update("ledger", raw, LIMIT) is None
    assert server.version == version


async def test_a_deleted_and_created_lease_is_not_renewed_by_the_holder_before(
    server: KubernetesApi, make: Any
) -> None:
    ours, rival = make(), make()
    token = await lead(ours)
    server.remove("ledger")
    newer = await lead(rival, US)
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    assert (await rival.read("ledger", LIMIT)).token == newer > token


async def test_a_restored_etcd_shows_a_lower_token(server: KubernetesApi, make: Any, clock: HandClock) -> None:
    ours = make()
    old = server.snapshot()
    token = await lead(ours)
    server.restore(old)
    with pytest.raises(LeaseLost):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    lower = await lead(make(), US)
    assert lower <= token  # what the fence calls token_regressed or superseded


async def test_release_by_a_new_life_of_the_process_finds_the_term_by_its_token(
    server: KubernetesApi, make: Any
) -> None:
    token = await lead(make())
    reborn = make()
    assert not await reborn.release("ledger", token - 1, SealRecord(token - 1, "eu"), LIMIT)
    assert await reborn.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert await reborn.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    assert server.leases["default", "ledger"]["spec"]["holderIdentity"] == ""


async def test_a_release_whose_answer_is_lost_is_known_by_its_seal(server: KubernetesApi, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    server.losing = 1
    assert await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)


async def test_a_lease_that_the_control_plane_gives_out_is_left_alone(
    server: KubernetesApi, make: Any, clock: HandClock
) -> None:
    token = await lead(make())
    server.leases["default", "ledger"]["spec"]["strategy"] = "OldestEmulationVersion"
    rival = make()
    await rival.acquire("ledger", US, LIMIT)
    clock.now += 16
    with pytest.raises(ElectionUnavailable, match="control plane"):
        await rival.acquire("ledger", US, LIMIT)
    assert token


# -- a server that fails --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "message", "said", "cause"),
    [
        (403, "Forbidden", "exceeded quota", "exceeded quota.*service account", "refused"),
        (401, "Unauthorized", "Unauthorized", "token_file", "refused"),
        (422, "Invalid", "spec is bad", "spec is bad", "refused"),
        (409, "Strange", "what", "what", "refused"),
        (404, "NotFound", 'namespaces "x" not found', "HTTP 404|namespace", "refused"),
    ],
)
async def test_a_refusal_is_told_at_once_and_changes_nothing(
    server: KubernetesApi, make: Any, code: int, reason: str, message: str, said: str, cause: str
) -> None:
    ours = make()
    token = await lead(ours)
    for call in (
        lambda: ours.renew("ledger", token, EU, active=True, deadline=LIMIT),
        lambda: ours.acquire("ledger", EU, LIMIT),
        lambda: ours.read("ledger", LIMIT),
        lambda: ours.release("ledger", token, SealRecord(token, "eu"), LIMIT),
        lambda: ours.probe(LIMIT),
    ):
        server.refusals.append(status(code, reason, message, kind="namespaces"))
        with pytest.raises(ElectionUnavailable, match=said) as refused:
            await call()
        assert refused.value.cause == cause
    assert not server.refusals
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [(500, "etcdserver: request timed out", "quorum"), (503, "overloaded", "refused"), (429, "too many", "refused")],
)
async def test_a_passing_failure_is_tried_again_and_a_lasting_one_is_told(
    server: KubernetesApi, make: Any, code: int, message: str, cause: str
) -> None:
    ours = make()
    token = await lead(ours)
    server.refusals.extend(status(code, "InternalError", message) for _ in range(2))
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
    server.refusals.extend(status(code, "InternalError", message) for _ in range(100))
    with pytest.raises(ElectionUnavailable, match=message) as failed:
        await ours.renew("ledger", token, EU, active=True, deadline=1.5)
    assert failed.value.cause == cause


async def test_an_answer_that_is_none_of_an_api_servers_never_means_that_nobody_leads(
    server: KubernetesApi, make: Any
) -> None:
    from aiohttp import web

    for answer in (
        web.Response(status=404, text="<html>not here</html>"),
        web.Response(status=200, text="{}"),
        web.json_response({"kind": "Lease", "metadata": {"name": "other", "uid": "u"}}),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
    ):
        server.refusals.append(answer)
        with pytest.raises(ElectionUnavailable):
            await make().read("ledger", LIMIT)


async def test_a_frozen_endpoint_leaves_time_for_the_next(server: KubernetesApi, make: Any) -> None:
    frozen = KubernetesApi()
    frozen.hanging = True
    await frozen.start()
    try:
        access = KubernetesAccess([frozen.url, server.url], "default")
        election = make(access=access)
        assert isinstance(await election.acquire("ledger", EU, 4.0), Won)
        assert election.api.http.endpoint == server.url
    finally:
        await frozen.close()


async def test_a_slow_server_ends_a_renewal_at_its_deadline(server: KubernetesApi, make: Any) -> None:
    ours = make()
    token = await lead(ours)
    server.delay = 20.0
    began = asyncio.get_running_loop().time()
    with pytest.raises(ElectionUnavailable) as failed:
        await ours.renew("ledger", token, EU, active=True, deadline=1.0)
    assert asyncio.get_running_loop().time() - began < 5.0
    assert failed.value.cause == "timeout"
    server.delay = 0.0
    await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)


async def test_a_lease_cannot_be_created_past_the_quota_or_in_no_namespace(server: KubernetesApi, make: Any) -> None:
    server.quota = 0
    with pytest.raises(ElectionUnavailable, match="quota"):
        await make().acquire("ledger", EU, LIMIT)
    with pytest.raises(ElectionUnavailable, match="namespace exist"):
        await make(access=KubernetesAccess([server.url], "nowhere")).acquire("ledger", EU, LIMIT)


async def test_every_verb_that_is_forbidden_is_named(server: KubernetesApi, make: Any) -> None:
    for verb in ("get", "create"):
        server.forbidden = {verb}
        with pytest.raises(ElectionUnavailable, match="get, list, watch, create and update"):
            await make().acquire("ledger", EU, LIMIT)


# -- watching -------------------------------------------------------------------------------------------


async def test_a_watch_outlives_bookmarks_and_gives_no_hint_for_renewals(server: KubernetesApi, make: Any) -> None:
    server.bookmark_period = 0.05
    ours, watcher = make(), make()
    token = await lead(ours)
    hints = watcher.changes("ledger")
    async with asyncio.timeout(LIMIT):
        await anext(hints)  # the state as it is
    waiting = asyncio.ensure_future(anext(hints))
    for _ in range(3):
        await ours.renew("ledger", token, EU, active=True, deadline=LIMIT)
        await asyncio.sleep(0.1)
    assert not waiting.done()
    await ours.release("ledger", token, SealRecord(token, "eu"), LIMIT)
    async with asyncio.timeout(LIMIT):
        await waiting
    gone = asyncio.ensure_future(anext(hints))
    server.remove("ledger")
    async with asyncio.timeout(LIMIT):
        await gone
    await hints.aclose()


async def test_a_watch_that_is_gone_or_refused_ends(server: KubernetesApi, make: Any) -> None:
    await lead(make())
    server.forbidden = {"watch"}
    assert [hint async for hint in make().changes("ledger")] == []
    server.forbidden = set()
    watcher = make(access=KubernetesAccess(["http://127.0.0.1:1"], "default"))
    assert [hint async for hint in watcher.changes("ledger")] == []


async def test_the_server_says_410_gone_to_a_watch_from_a_compacted_version(server: KubernetesApi, make: Any) -> None:
    await lead(make())
    server.compact()
    url = f"{server.url}/apis/coordination.k8s.io/v1/namespaces/default/leases"
    query = {"watch": "1", "resourceVersion": "1000"}
    async with aiohttp.ClientSession() as session, session.get(url, params=query) as response:
        assert b'"code":410' in await response.content.readline()


# -- who we are -----------------------------------------------------------------------------------------


async def test_a_rotated_token_is_read_anew(make: Any, tmp_path: Path) -> None:
    guarded = KubernetesApi(token="first")
    await guarded.start()
    file = tmp_path / "token"
    file.write_text("first\n")
    try:
        election = make(access=KubernetesAccess([guarded.url], "default", str(file)))
        token = await lead(election)
        guarded.token = "second"
        with pytest.raises(ElectionUnavailable, match="token_file"):
            await election.renew("ledger", token, EU, active=True, deadline=LIMIT)
        file.write_text("second")
        await election.renew("ledger", token, EU, active=True, deadline=LIMIT)
        for content in ("", "two words", "\u00e9"):
            file.write_text(content, encoding="utf-8")
            with pytest.raises(ElectionUnavailable, match="token file"):
                await election.read("ledger", 0.2)
        file.unlink()
        with pytest.raises(ElectionUnavailable, match="the token file: cannot read"):
            await election.read("ledger", 0.2)
        assert [hint async for hint in election.changes("ledger")] == []
    finally:
        await guarded.close()


def test_a_pod_finds_its_server_by_its_service_account(tmp_path: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ValueError, match=r"set election\.endpoints"):
        in_cluster({}, tmp_path)
    with pytest.raises(ValueError, match="automountServiceAccountToken"):
        in_cluster(environment, tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("ledgers\n")
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ValueError, match="cannot use"):
        in_cluster(environment, tmp_path)
    (tmp_path / "ca.crt").write_text(a_certificate())
    access = in_cluster(environment, tmp_path)
    assert (access.endpoints, access.namespace) == (["https://10.0.0.1:443"], "ledgers")
    assert access.token_file == str(tmp_path / "token")
    assert access.tls is not None
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    environment["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert in_cluster(environment, tmp_path).endpoints == ["https://[fd00::1]:443"]


def a_certificate() -> str:
    """Any authority that the machine trusts."""
    context = ssl.create_default_context()
    return ssl.DER_cert_to_PEM_cert(context.get_ca_certs(binary_form=True)[0])


def test_nonsense_is_refused() -> None:
    for access in (KubernetesAccess([], "default"), KubernetesAccess(["h:1"], "d"), KubernetesAccess(["http://h"], "")):
        with pytest.raises(ValueError, match="election"):
            KubernetesElection(access, TIMINGS)


async def test_roles_that_are_no_names_have_their_own_lease(server: KubernetesApi, make: Any) -> None:
    assert isinstance(await make().acquire("Ledger/EU", EU, LIMIT), Won)
    assert ("default", lease_name("Ledger/EU")) in server.leases


async def test_electors_lead_one_after_the_other_and_hand_over_with_a_seal() -> None:
    server, timings = KubernetesApi(), LeaseTimings(2.0, 1.2, 0.3, 0.2)
    await server.start()
    seen: list[Observation] = []
    electors, backends, runs = [], [], []
    for candidate in (EU, US):
        backends.append(KubernetesElection(KubernetesAccess([server.url], "default"), timings))
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
