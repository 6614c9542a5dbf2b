"""The bytes of our one question to Kafka, judged by another client's codec of the published message definitions."""

from __future__ import annotations

import struct
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.kafka_wire import (
    API_VERSION,
    TOPIC,
    KafkaRefused,
    NotKafka,
    Quorum,
    Witnesses,
    answer_of,
    question,
    varint,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its definitions in a way that is to go
    from kafka.protocol.admin.cluster import DescribeQuorumRequest, DescribeQuorumResponse

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


def answer(
    correlation: int, leader: int, epoch: int, voters: dict[int, int], *, error: int = 0, inner: int = 0
) -> bytes:
    """A response as the other codec writes it, without its length."""
    topic = DescribeQuorumResponse.TopicData
    partition = topic.PartitionData
    replica = partition.ReplicaState
    state = [
        replica(replica_id=voter, log_end_offset=7, last_fetch_timestamp=fetched, last_caught_up_timestamp=3)
        for voter, fetched in voters.items()
    ]
    response = DescribeQuorumResponse(
        error_code=error,
        topics=[
            topic(
                topic_name=TOPIC,
                partitions=[
                    partition(
                        partition_index=0,
                        error_code=inner,
                        leader_id=leader,
                        leader_epoch=epoch,
                        high_watermark=9,
                        current_voters=state,
                        observers=state[:1],
                    )
                ],
            )
        ],
        version=API_VERSION,
    )
    response.with_header(correlation_id=correlation)
    return bytes(response.encode(header=True))


def test_another_codec_reads_our_question() -> None:
    sent = question(77)
    assert struct.unpack(">i", sent[:4])[0] == len(sent) - 4
    assert struct.unpack(">hhi", sent[4:12]) == (55, API_VERSION, 77)

    found = DescribeQuorumRequest.decode(sent[4:], version=API_VERSION, header=True)

    ((topic, partitions),) = [(each.topic_name, each.partitions) for each in found.topics]
    assert topic == TOPIC
    assert [each.partition_index for each in partitions] == [0]


@given(INT32, INT32, st.dictionaries(INT32, INT64, max_size=200))
def test_we_read_what_another_codec_writes(leader: int, epoch: int, voters: dict[int, int]) -> None:
    assert answer_of(answer(5, leader, epoch, voters), 5) == Quorum(leader, epoch, voters)


def test_an_error_is_no_answer() -> None:
    for where in ({"error": 41}, {"inner": 6}):
        with pytest.raises(KafkaRefused, match="not the active controller"):
            answer_of(answer(5, 1, 1, {}, **where), 5)
    with pytest.raises(NotKafka, match="another question"):
        answer_of(answer(4, 1, 1, {}), 5)


@given(st.binary(max_size=60))
def test_garbage_is_refused_and_nothing_worse(data: bytes) -> None:
    for garbled in (data, struct.pack(">i", 5) + data):
        with pytest.raises((NotKafka, KafkaRefused)):
            answer_of(garbled, 5)


@given(st.integers(0, 150))
def test_an_answer_that_is_cut_short_is_refused(length: int) -> None:
    whole = answer(5, 1, 1, {1: -1, 2: 5, 3: 6})
    if length < len(whole) - 4:
        with pytest.raises(NotKafka):
            answer_of(whole[:length], 5)


def test_numbers_are_written_seven_bits_at_a_time() -> None:
    assert [varint(number).hex() for number in (0, 1, 127, 128, 300)] == ["00", "01", "7f", "8001", "ac02"]


# -- who witnesses ----------------------------------------------------------------------------------------


def led(*fetched: int, leader: int = 1, epoch: int = 4) -> Quorum:
    """Voters 1, 2, …; ``fetched`` is each one's time, -1 the leader's."""
    return Quorum(leader, epoch, dict(enumerate(fetched, 1)))


def test_one_fetch_may_have_been_under_way_before_we_asked_and_two_may_not() -> None:
    witnesses = Witnesses(led(-1, 10, 10))
    assert witnesses.hear(led(-1, 20, 10))
    assert not witnesses.enough
    assert witnesses.hear(led(-1, 30, 10))
    assert witnesses.enough


def test_a_minority_is_not_enough_however_often_it_fetches() -> None:
    witnesses = Witnesses(led(-1, 1, 1, 1, 1))
    for time in range(2, 20):
        assert witnesses.hear(led(-1, time, 1, 1, 1))
    assert not witnesses.enough


def test_a_controller_that_nobody_fetches_from_is_never_believed() -> None:
    witnesses = Witnesses(led(-1, 10, 10))
    for _ in range(50):
        assert witnesses.hear(led(-1, 10, 10))
    assert not witnesses.enough


def test_the_only_voter_needs_no_witness_and_none_at_all_is_no_quorum() -> None:
    assert Witnesses(led(-1)).enough
    assert not Witnesses(led()).enough


def test_a_leader_that_is_no_voter_does_not_count_itself() -> None:
    assert not Witnesses(led(1, leader=9)).enough


@pytest.mark.parametrize("other", [led(-1, 2, 2, epoch=5), led(2, -1, 2, leader=2), led(-1, 2)])
def test_another_term_or_another_set_of_voters_begins_anew(other: Quorum) -> None:
    assert not Witnesses(led(-1, 1, 1)).hear(other)
