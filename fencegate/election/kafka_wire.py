"""The one question of Kafka's protocol that we ask: DescribeQuorum (API key 55, version 1), as bytes and as values.

By the published message definitions: DescribeQuorumRequest.json and DescribeQuorumResponse.json, RequestHeader
version 2, ResponseHeader version 1. Version 1 came with Kafka 3.3 and says when each voter fetched last.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

API_KEY: Final = 55
API_VERSION: Final = 1
TOPIC: Final = "__cluster_metadata"
_CLIENT: Final = b"fencegate"
_LONGEST: Final = 10_000
"""Items of one list, topics or replicas: more are no quorum, but an answer of something else."""


class NotKafka(Exception):
    """The bytes are not the answer to what was asked."""


class KafkaRefused(Exception):
    """The server understood and said no. ``code`` is one of Kafka's error codes."""

    def __init__(self, code: int) -> None:
        super().__init__(f"error {code}{_MEANS.get(code, '')}")


_MEANS: Final = {
    3: ": it has no KRaft metadata log (is it a cluster on ZooKeeper?)",
    6: ": it is not the active controller",
    29: ": the topic __cluster_metadata may not be described",
    31: ": this client may not describe the cluster",
    35: ": it does not know this version of DescribeQuorum; Kafka 3.3 or newer is needed",
    41: ": it is not the active controller",
}


@dataclass(frozen=True, slots=True)
class Quorum:
    """What a controller that believes to lead says: ``leader`` is -1 where it knows of none.

    ``voters``: by replica id, when it last fetched, in ms on the *leader's* clock, -1 for the leader itself or where
    it is not known. Nothing is done with these but comparing two answers of the same leader.
    """

    leader: int
    epoch: int
    voters: dict[int, int] = field(default_factory=dict)


def question(correlation: int) -> bytes:
    """The request as it is sent, its length in front."""
    header = struct.pack(">hhih", API_KEY, API_VERSION, correlation, len(_CLIENT)) + _CLIENT + b"\0"
    topic = TOPIC.encode()
    partition = struct.pack(">i", 0) + b"\0"
    body = b"\2" + varint(len(topic) + 1) + topic + b"\2" + partition + b"\0" + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def answer_of(data: bytes, correlation: int) -> Quorum:
    """The quorum in a response without its length. Raises :class:`NotKafka` or :class:`KafkaRefused`."""
    read = _Reader(data)
    try:
        if read.number(">i") != correlation:
            raise NotKafka("the answer is to another question")
        read.skip_tags()
        _succeed(read.number(">h"))
        found = None
        for _ in range(read.count()):
            topic = read.text()
            for _ in range(read.count()):
                index, code = read.number(">i"), read.number(">h")
                quorum = _quorum(read)
                if (topic, index) == (TOPIC, 0):
                    _succeed(code)
                    found = quorum
            read.skip_tags()
    except (struct.error, UnicodeDecodeError) as error:
        raise NotKafka(f"the answer is cut short or garbled: {error}") from None
    if found is None:
        raise NotKafka("the answer says nothing of the metadata log")
    return found


def _quorum(read: _Reader) -> Quorum:
    leader, epoch, _ = read.number(">i"), read.number(">i"), read.number(">q")
    voters, _ = read.replicas(), read.replicas()
    read.skip_tags()
    return Quorum(leader, epoch, voters)


def _succeed(code: int) -> None:
    if code:
        raise KafkaRefused(code)


def varint(number: int) -> bytes:
    """An unsigned number of seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.number(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise NotKafka("a number without an end")

    def count(self) -> int:
        """Items of a compact array: their number plus one, 0 for none at all."""
        found = self.varint() - 1
        if found > _LONGEST:
            raise NotKafka(f"a list of {found} items")
        return max(0, found)

    def raw(self, length: int) -> bytes:
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise NotKafka("the answer is cut short")
        self._at += length
        return found

    def text(self) -> str:
        return self.raw(max(0, self.varint() - 1)).decode()

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.raw(self.varint())

    def replicas(self) -> dict[int, int]:
        """By replica id, when it last fetched."""
        found = {}
        for _ in range(self.count()):
            replica, _, fetched, _ = (self.number(form) for form in (">i", ">q", ">q", ">q"))
            self.skip_tags()
            found[replica] = fetched
        return found


class Witnesses:
    """Whether a majority of the voters followed one leader in one epoch, after the first answer came.

    A voter has one fetch under way at a time. The first one that a leader hears after our first question may have been
    sent before it; the second cannot: it was sent after the first was answered. So two changes of its time
    of the last fetch make a voter a witness. One that fetches in this epoch has voted in no later one.
    """

    def __init__(self, first: Quorum) -> None:
        self._last = first
        self._fetches = dict.fromkeys(first.voters, 0)

    def hear(self, quorum: Quorum) -> bool:
        """Takes the next answer. False where it is of another term, or another set of voters: begin anew with it."""
        before = self._last
        if (quorum.leader, quorum.epoch, set(quorum.voters)) != (before.leader, before.epoch, set(before.voters)):
            return False
        for voter, fetched in quorum.voters.items():
            self._fetches[voter] += fetched != before.voters[voter]
        self._last = quorum
        return True

    @property
    def enough(self) -> bool:
        agreeing = [voter for voter, fetches in self._fetches.items() if voter == self._last.leader or fetches >= 2]
        return len(agreeing) > len(self._fetches) / 2
