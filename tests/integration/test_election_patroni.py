"""Following a real Patroni cluster: what makes its token grow, and how it is told from another cluster."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fencegate.election.etcd_gateway import EtcdGateway, encode
from fencegate.election.patroni import PatroniSource
from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.process import afinish
from fencegate.lease import ElectionUnavailable, LeaseTimings, Term
from fencegate.testing.patroni_pair import PatroniPair
from fencegate.testing.waiting import until

TIMINGS = LeaseTimings(6.0, 4.0, 0.5, 0.5)
LIMIT = 15.0


@pytest_asyncio.fixture
async def gateway(etcd: EmbeddedEtcd) -> AsyncIterator[EtcdGateway]:
    gateway = EtcdGateway(etcd.endpoints)
    yield gateway
    await gateway.close()


def origins(pair: PatroniPair) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in pair.members.values()]


async def leads(source: PatroniSource) -> Term:
    """The term; a member that has just changed its part says for a moment that nobody leads."""
    async with asyncio.timeout(LIMIT):
        while (term := await source.read("ledger", LIMIT)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return term


async def test_the_same_member_again_under_a_new_key_is_a_new_term_although_its_timeline_stays(
    patroni: PatroniPair, etcd: EmbeddedEtcd, gateway: EtcdGateway
) -> None:
    await patroni.until_whole()
    source = PatroniSource(origins(patroni), etcd.endpoints, patroni.scope, TIMINGS)
    before = await leads(source)

    await gateway.call("/v3/kv/deleterange", {"key": encode(f"/service/{patroni.scope}/leader")}, LIMIT)

    assert await source.read("ledger", LIMIT) is None or (await leads(source)).token > before.token
    await afinish(until(lambda: patroni.leader() is not None, "a leader", 90))
    assert (await leads(source)).token > before.token
    await source.close()


@pytest.mark.timeout(180)
async def test_kill_9_of_the_leader_makes_the_token_grow(patroni: PatroniPair, etcd: EmbeddedEtcd) -> None:
    await patroni.until_whole()
    source = PatroniSource(origins(patroni), etcd.endpoints, patroni.scope, TIMINGS)
    before = await leads(source)

    patroni.kill(before.node)
    await patroni.until_another_leads(before.node)

    after = await leads(source)
    assert after.token > before.token
    assert after.node != before.node
    await patroni.revive(before.node)
    assert (await leads(source)).token == after.token
    await source.close()


async def test_another_clusters_etcd_is_told_from_this_ones(
    patroni: PatroniPair, etcd: EmbeddedEtcd, gateway: EtcdGateway
) -> None:
    """The same scope elsewhere: say, staging's etcd with production's members."""
    namespace = f"/other-{uuid.uuid4().hex}"
    for name, value in (("initialize", "7000000000000000001"), ("leader", "pg-9")):
        key = encode(f"{namespace}/{patroni.scope}/{name}")
        await gateway.call("/v3/kv/put", {"key": key, "value": encode(value)}, LIMIT)

    source = PatroniSource(origins(patroni), etcd.endpoints, patroni.scope, TIMINGS, namespace=namespace)
    with pytest.raises(ElectionUnavailable, match=r"election\.endpoints and election\.dcs are of different clusters"):
        await source.read("ledger", LIMIT)
    await source.close()


async def test_a_cluster_that_was_never_set_up_has_no_leader(patroni: PatroniPair, etcd: EmbeddedEtcd) -> None:
    source = PatroniSource(origins(patroni), etcd.endpoints, "unheard-of", TIMINGS)
    assert await source.read("ledger", LIMIT) is None
    await source.close()


async def test_until_a_member_has_confirmed_the_etcd_nobody_is_believed(
    patroni: PatroniPair, etcd: EmbeddedEtcd
) -> None:
    source = PatroniSource(["http://127.0.0.1:1"], etcd.endpoints, patroni.scope, TIMINGS)
    with pytest.raises(ElectionUnavailable):
        await source.read("ledger", LIMIT)
    await source.close()
    # An etcd server is no Patroni either.
    source = PatroniSource(etcd.endpoints[:1], etcd.endpoints, patroni.scope, TIMINGS)
    with pytest.raises(ElectionUnavailable, match="not as Patroni does"):
        await source.read("ledger", LIMIT)
    await source.close()
