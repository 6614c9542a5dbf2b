"""What arbitrary bytes must not do to each reader of bytes from outside. A target raises what broke.

Each takes any bytes. What a reader is documented to raise is caught here; anything else is a finding.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import orjson

from fencegate.client.answers import origin_of, read_answer
from fencegate.client.discovery import read_discovery
from fencegate.config.layers import Flag
from fencegate.config.parsing import parse
from fencegate.election import consul_records, etcd_records, kubernetes_records, zookeeper_records
from fencegate.errors import PROBLEMS, ConfigurationError
from fencegate.gameday.fork import meaning
from fencegate.gateway.header_lines import Fields, read_fields
from fencegate.gateway.hop_headers import end_to_end_request, end_to_end_response
from fencegate.gateway.request import Refused, check_framing, check_method
from fencegate.gateway.request_bytes import Chunked, Malformed, Sized, read_head
from fencegate.grant import Grant, GrantRefused
from fencegate.grant import sign as sign_grant
from fencegate.grant import verify as verify_grant
from fencegate.key_ring import SharedKey, parse_keys
from fencegate.proof import Passage, ProofRefused, Stamp, sign, verify
from fencegate.tokens import MAX_TOKEN, MalformedKey, MalformedToken, parse_idempotency_key, parse_token
from fuzz.edges import Edges, check
from fuzz.elections import NAMES, Elections
from fuzz.sdk import Sdk

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}


def target(check: Target) -> Target:
    TARGETS[check.__name__] = check
    return check


@target
def request(data: bytes) -> None:
    """A head is taken or refused; its body comes out the same however it is cut into pieces."""
    end = data.find(b"\r\n\r\n") + 4
    if end < 4:
        end = len(data)
    try:
        head, key = read_head(data[:end])
        check_method(head.line.method)
        length = check_framing(head.fields, head.line.http_1_0)
    except (Malformed, Refused):
        return
    assert b"\n" not in head.line.target
    assert all(b"\r" not in name + value and b"\n" not in name + value for name, value in head.headers)
    # Each edge reads the lines in its own way; what they say must be the same.
    assert _said(read_fields(head.headers)) == _said(head.fields)
    assert key is None or not head.fields.key
    end_to_end_request(head.headers, head.fields)
    rest = data[end:]
    whole = _body(length, [rest])
    assert whole == _body(length, [rest[at : at + 1] for at in range(len(rest))])
    half = len(rest) // 2
    assert whole == _body(length, [rest[:half], rest[half:]])


def _said(fields: Fields) -> dict[str, object]:
    """What the lines say, without their size, and without what was found out of them since."""
    return {name: value for name, value in vars(fields).items() if name != "size" and not name.startswith("known_")}


def _body(length: int | None, pieces: list[bytes]) -> tuple[bytes, bytes | None, bool]:
    """The body, what follows it (``None`` while it goes on), and whether it was malformed."""
    framing = Chunked() if length is None else Sized(length)
    body, after = b"", b"" if length == 0 else None
    for piece in pieces:
        if after is not None:
            after += piece
            continue
        try:
            parts, after = framing.feed(piece)
        except Malformed:
            return b"", None, True
        body += b"".join(parts)
    return body, after, False


@target
def token(data: bytes) -> None:
    """A token is the canonical text of an int64 above 0, or malformed; a key likewise prints as it came."""
    text = data.decode("latin-1")
    try:
        found = parse_token(text)
        assert 0 < found <= MAX_TOKEN
        assert str(int(found)) == text
    except MalformedToken:
        pass
    try:
        key = parse_idempotency_key(text)
        assert key.isprintable()
        assert key.isascii()
    except MalformedKey:
        pass


_KEY = SharedKey("2026-11", b"a-secret-that-no-fuzzer-comes-by.")
_PASSAGE = Passage("POST", b"/v1/entries", b"a=b", b"42", b"42", b"30000", b"pay-1")
_SIGNED = sign(_KEY, Stamp(1_796_000_000_000, 1_796_000_010_000, "0" * 16, "ledger"), _PASSAGE)


@target
def proof(data: bytes) -> None:
    """Nothing is a proof but what the key's holder has signed; a file of keys has each id once, or a fault."""
    taken = False
    with suppress(ProofRefused):
        verify([_KEY], data, _PASSAGE, 1_796_000_000.0, 5.0)
        taken = True
    assert taken == (data == _SIGNED)
    with suppress(ValueError):
        keys = parse_keys(data.decode("utf-8", "replace"))
        assert len({key.id for key in keys}) == len(keys) > 0


_GRANT = sign_grant(_KEY, Grant("ledger", 42, "CN=billing", 1_796_000_000_000, 1_796_000_300_000)).encode()


@target
def grant(data: bytes) -> None:
    """Nothing is a grant but what the key's holder has signed."""
    taken = False
    with suppress(GrantRefused):
        verify_grant([_KEY], data, "ledger", 42, "CN=billing", 1_796_000_000.0)
        taken = True
    assert taken == (data == _GRANT)


@target
def answer(data: bytes) -> None:
    """The SDK reads any answer without an exception, and takes no hint that is not an origin."""
    head, _, body = data.partition(b"\n\n")
    lines = [tuple(line.partition(b":")[::2]) for line in head.split(b"\n")]
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]
    status = 100 + (data[0] if data else 0) * 2 % 500
    read = read_answer(status, headers, body)
    assert read.applied in ("yes", "no", "unknown")
    assert read.leader is None or origin_of(read.leader) == read.leader
    assert read.retry_after is None or 0 <= read.retry_after < 10**10
    if read.applied == "no":
        assert status >= 400
        assert read.outcome not in PROBLEMS or PROBLEMS[read.outcome].applied == "no"
    end_to_end_response([(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers])


@target
def discovery(data: bytes) -> None:
    """A discovery document names an int64 token and an origin, or nothing."""
    found = read_discovery("https://asked.example", data)
    if found is not None:
        assert 0 < found.token <= MAX_TOKEN
        assert found.leader is None or origin_of(found.leader) == found.leader


@target
def configuration(data: bytes) -> None:
    """A file, variables and flags are a configuration, or a list of faults that each say where and about what."""
    text, *more = data.decode("utf-8", "replace").split("\n--\n")
    variables = dict(line.partition("=")[::2] for line in (more[0] if more else "").splitlines())
    environment = {f"FENCEGATE_{name}": value for name, value in variables.items()}
    flags = [Flag("--data", "listen.data", line) for line in (more[1] if len(more) > 1 else "").splitlines()]
    faults = [": "]
    try:
        parse(file=("fuzz.toml", text), environment=environment, flags=flags)
    except ConfigurationError as error:
        faults = error.faults
    assert faults
    assert all(": " in fault and fault.isprintable() and len(fault) < 2000 for fault in faults), faults


@target
def etcd(data: bytes) -> None:
    """Whatever stands under our keys in etcd: a term is shown, a seal is believed only whole."""
    found = etcd_records.KeyValue(b"k", data, 7, 8, 9)
    term = etcd_records.term_of("ledger", found, 7, 15.0)
    assert term.token == 7
    assert term.lease_duration > 0
    sealed = etcd_records.seal_of(found)
    assert sealed is None or type(sealed.token) is int
    assert etcd_records.last_claimed(found) >= 0 or data.strip().startswith(b"-")
    etcd_records.candidate_of(found)


@target
def consul(data: bytes) -> None:
    """Whatever stands under our key in Consul."""
    raw = {"ModifyIndex": 9, "LockIndex": 1, "Session": "s", "Value": base64.b64encode(data).decode()}
    for session in ("s", ""):
        entry = consul_records.Entry.of({**raw, "Session": session})
        for value in (entry.token, entry.sealed, entry.predecessor, entry.sign, entry.renewals):
            assert value is not None or value is None
        assert entry.lease_duration >= 0
        consul_records.term_of("ledger", entry, 1.0)
    with suppress(ValueError):
        consul_records.Entry.of(_object(data))


@target
def kubernetes(data: bytes) -> None:
    """Whatever an API server calls a Lease."""
    lease = kubernetes_records.Lease(_object(data))
    assert lease.duration >= 0
    assert lease.token is None or lease.token > 0
    _ = (lease.uid, lease.holder, lease.transitions, lease.sign, lease.record, lease.sealed)
    try:
        version = lease.resource_version
    except MalformedToken:
        return
    assert 0 < version <= MAX_TOKEN
    kubernetes_records.term_of("ledger", lease, 1.0)


@target
def zookeeper(data: bytes) -> None:
    """Whatever a node of ours in ZooKeeper holds: a whole record, or refused by ``ValueError``."""
    try:
        record = zookeeper_records.decode(data)
    except ValueError:
        return
    assert record.token > 0
    assert record.lease_duration > 0
    assert zookeeper_records.decode(record.encode()) == record


@target
def decision(data: bytes) -> None:
    """Any JSON that the ledger took can be compared."""
    try:
        assert meaning(data) == meaning(data)
    except ValueError:
        return  # no JSON: the ledger's column takes nothing else


@target
def edges(data: bytes) -> None:
    """Both HTTP edges make the same of the same bytes, in one piece or in several; see :mod:`fuzz.edges`."""
    pieces, message = 1 + (data[0] if data else 0) % 5, data[1:]
    check(message, *_edges().said(message, pieces))


@target
def sdk(data: bytes) -> None:
    """The SDK against a gateway that answers so; see :mod:`fuzz.sdk`."""
    _sdk().check(data)


def _election(name: str) -> Target:
    def election(data: bytes) -> None:
        _elections().check(name, data)

    return election


for _name in NAMES:
    TARGETS[f"election-{_name}"] = _election(_name)

_edges, _sdk, _elections = cache(Edges), cache(Sdk), cache(Elections)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)  # as the product reads it
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
