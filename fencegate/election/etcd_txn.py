"""What a transaction with etcd is made of, in the words of its JSON gateway, and what its answer says."""

from __future__ import annotations

from typing import Any

from fencegate.election.etcd_gateway import Json, encode
from fencegate.election.etcd_records import KeyValue, Names
from fencegate.election.strange_answers import reading
from fencegate.lease import ElectionUnavailable

_SHOWN = 120
"""Bytes of a key, behind the line's own name, that a message shows."""


class TxnAnswer:
    """``succeeded``: the comparisons held.

    Raises :class:`~fencegate.lease.ElectionUnavailable` for what is no answer to a transaction.
    """

    def __init__(self, raw: Json) -> None:
        with reading("etcd"):
            self.succeeded = raw.get("succeeded", False) is True
            self.revision = int(raw["header"]["revision"])
            responses: list[Any] = raw.get("responses", [])
            ranges = [response["response_range"] for response in responses if "response_range" in response]
            self._found = [[KeyValue.of(found) for found in part.get("kvs", [])] for part in ranges]

    def found(self, count: int) -> list[KeyValue | None]:
        """What each read found first; there were ``count`` of them. Raises as the constructor."""
        if len(self._found) != count:
            raise ElectionUnavailable(f"etcd: {count} reads in a transaction got {len(self._found)} answers", "refused")
        return [found[0] if found else None for found in self._found]


def first(names: Names) -> Json:
    """The key that holds the role."""
    line = {"key": encode(names.line), "range_end": encode(names.line_end), "limit": 1}
    return {"request_range": {**line, "sort_order": "ASCEND", "sort_target": "CREATE"}}


def holder(names: Names, found: KeyValue | None) -> KeyValue | None:
    """What :func:`first` found. Raises :class:`~fencegate.lease.ElectionUnavailable` for a key of another election."""
    if found is not None and not names.has(found.key):
        key = found.key[: len(names.line) + _SHOWN].decode("utf-8", "replace")
        raise ElectionUnavailable(
            f"etcd: {key!r} is in the line of the role {names.role!r}: some other election has a prefix below "
            f"{names.prefix}; give it one that does not begin with that",
            "refused",
        )
    return found


def get(key: bytes) -> Json:
    return {"request_range": {"key": encode(key)}}


def put(key: bytes, value: bytes, lease: int = 0) -> Json:
    return {"request_put": {"key": encode(key), "value": encode(value), "lease": lease}}


def delete(key: bytes) -> Json:
    return {"request_delete_range": {"key": encode(key)}}


def created(key: bytes, revision: int) -> Json:
    return {"key": encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": revision}


def modified(key: bytes, revision: int) -> Json:
    return {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
