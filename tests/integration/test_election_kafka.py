"""Following Kafka's active controller, against a small server of the documented protocol: no Kafka can be had."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fencegate.election.kafka import KafkaSource
from fencegate.election.kafka_wire import API_VERSION, TOPIC, question
from fencegate.lease import ElectionUnavailable, LeaseTimings
from fencegate.testing.kafka_quorum import KafkaQuorum
from fencegate.testing.tcp_server import TcpServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin.cluster import DescribeQuorumResponse

TIMINGS = LeaseTimings(3.0, 2.4, 0.3, 0.1)
LIMIT = 15.0


@pytest_asyncio.fixture
async def quorum() -> AsyncIterator[KafkaQuorum]:
    quorum = KafkaQuorum()
    await quorum.start()
    yield quorum
    await quorum.close()


async def test_the_stand_ins_answers_are_read_by_another_codec(quorum: KafkaQuorum) -> None:
    host, _, port = quorum.brokers[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(question(9))
    length = int.from_bytes(await reader.readexactly(4))
    found = DescribeQuorumResponse.decode(await reader.readexactly(length), version=API_VERSION, header=True)
    writer.transport.abort()

    (topic,) = found.topics
    (partition,) = topic.partitions
    assert (topic.topic_name, partition.leader_id, partition.leader_epoch) == (TOPIC, 1, 1)
    assert {voter.replica_id for voter in partition.current_voters} == {1, 2, 3}


async def test_a_controller_that_was_deposed_and_does_not_know_it_is_not_believed(quorum: KafkaQuorum) -> None:
    quorum.cut_off(1)
    quorum.elect(2)
    quorum.send_broker(1, 2)
    assert quorum.epoch == 2

    misled = KafkaSource(quorum.brokers[:1], TIMINGS)
    with pytest.raises(ElectionUnavailable, match="no leader that a majority of the voters follows"):
        await misled.read("ledger", LIMIT)

    both = KafkaSource(quorum.brokers[:2], TIMINGS)
    term = await both.read("ledger", LIMIT)
    assert term is not None
    assert (term.token, term.node) == (2, "controller-2")

    quorum.rejoin(1)
    again = await misled.read("ledger", LIMIT)
    assert again is not None
    assert again.token == 2
    await misled.close()
    await both.close()


async def test_an_election_in_the_midst_of_a_read_begins_it_anew(quorum: KafkaQuorum) -> None:
    source = KafkaSource(quorum.brokers, TIMINGS)
    reading = asyncio.create_task(source.read("ledger", LIMIT))
    await asyncio.sleep(0.05)
    quorum.elect(3)

    term = await reading
    assert term is not None
    assert term.token == 2
    await source.close()


@pytest.mark.parametrize(
    ("code", "said"), [(41, "not the active controller"), (31, "may not describe the cluster"), (35, "Kafka 3.3")]
)
async def test_what_a_broker_refuses_is_told_in_words(quorum: KafkaQuorum, code: int, said: str) -> None:
    quorum.error = code
    source = KafkaSource(quorum.brokers, TIMINGS)
    with pytest.raises(ElectionUnavailable, match=said):
        await source.read("ledger", LIMIT)
    await source.close()


async def test_without_a_leader_nobody_is_named(quorum: KafkaQuorum) -> None:
    source = KafkaSource(quorum.brokers, TIMINGS)
    quorum.depose()
    with pytest.raises(ElectionUnavailable):
        await source.read("ledger", LIMIT)
    quorum.elect(-1)
    assert await source.read("ledger", LIMIT) is None
    await source.close()


@pytest.mark.parametrize(
    "sent", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x04abcd", b"\xff\xff\xff\xff", b""]
)
async def test_what_is_no_kafka_is_told_so(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(sent)
        await writer.drain()
        writer.close()

    server = TcpServer(serve)
    await server.start()
    source = KafkaSource([server.address], TIMINGS)
    with pytest.raises(ElectionUnavailable):
        await source.read("ledger", LIMIT)
    await source.close()
    await server.close()


@pytest.mark.parametrize("endpoint", ["kafka-1", "kafka://k:9092", "k:x", ":9092"])
def test_a_bad_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        KafkaSource([endpoint], TIMINGS)
