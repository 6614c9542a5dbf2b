"""Target ``ledger``: the append-only ledger built into the store. POST appends; GET reads one entry or a page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable
from hashlib import blake2b
from typing import Final
from urllib.parse import parse_qsl

import orjson

from fencegate.errors import Unavailable
from fencegate.fence import PART_BYTES, Effect, Entry, Write, WriteResult
from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.replies import JSON_TYPE, accepted_block
from fencegate.gateway.request import Reply
from fencegate.gateway.targets.stored import Sent, accepted_at_once, give, json_at_once, read_json, submit, write_of

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1000
_PART: Final = 50
"""Entries asked for at once. A page goes out part by part, so that a client that reads slowly has one part waiting."""
_PAGE_BYTES: Final = 4 * 1024 * 1024

_SEQ = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_COUNT = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


def start(exchange: Exchange) -> Pending | None:
    """The usual write, given to the store at once. ``None``: something else comes first; :func:`write` does it all."""
    if exchange.rest or not exchange.enforce or exchange.around.seen.below(exchange.role, exchange.token or 0):
        return None
    body = json_at_once(exchange)
    if body is None:
        return None
    around, given = exchange.around, _write_of(exchange, body)
    sent = _Appending(exchange, given, around.clock())
    give(exchange, around.store.send, sent)
    return sent


class _Appending(Sent):
    """A write of the ledger under way."""

    __slots__ = ()

    def go_on(self) -> Reply | None:
        result = accepted_at_once(self)
        return None if result is None else _reply(self.exchange, result)

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        return write(exchange, self)


async def write(exchange: Exchange, first: Sent | None = None) -> Reply:
    """Appends the body as one entry: 201 with its place in the ledger. ``first``: it was given to the store before."""
    if exchange.rest:
        raise exchange.refused(
            "method_not_allowed",
            "Entries of the ledger are only read; append with POST to the route.",
            extra={"allow": "GET, HEAD, OPTIONS"},
        )
    given = first.write if first is not None else _write_of(exchange, await read_json(exchange))
    return _reply(exchange, await submit(exchange, given, exchange.around.store.append, first))


def _write_of(exchange: Exchange, body: bytes) -> Write:
    # An entry is its body: the path has no part in it.
    return write_of(exchange, body, blake2b(body, digest_size=16).digest() if exchange.key else b"")


def _reply(exchange: Exchange, result: WriteResult) -> Reply:
    entry = result.entry
    if entry is None:
        raise exchange.outcome_unknown("The store gave no entry for an accepted write.", "connection")
    replayed = result.effect is Effect.REPLAYED
    accepted = accepted_block(exchange.around.places.region, result.max_token_seen, replayed)
    block = b"Content-Type: application/json\r\nLocation: %b/%d\r\n%b" % (
        exchange.request.path.encode("ascii"),  # a path that matched a route is
        entry.seq,
        accepted,
    )
    return Reply(result.status or 201, [], orjson.dumps(_place(entry)), block=block)


async def read(exchange: Exchange) -> Reply:
    """One entry (``{route}/{seq}``) or a page (``{route}?after=SEQ&limit=N``)."""
    try:
        document = await (_one(exchange, exchange.rest[0]) if exchange.rest else _page(exchange))
    except Unavailable as error:
        raise exchange.refused("fence_unavailable", f"The store cannot be read: {error}") from error
    region = exchange.around.places.region.encode()
    return Reply(200, [JSON_TYPE, (b"Cache-Control", b"no-store"), (b"X-Fencing-Region", region)], document)


async def _one(exchange: Exchange, text: str) -> bytes:
    found = None
    if _SEQ.fullmatch(text) and int(text) < 2**63:
        found = await exchange.around.store.entry(exchange.role, int(text))
    if found is None:
        raise exchange.refused("unknown_entry", "There is no entry with this sequence number.")
    return orjson.dumps(_whole(found))


async def _page(exchange: Exchange) -> bytes | AsyncIterator[bytes]:
    """The page: at once where its first part is all of it. A failure behind that breaks the answer off."""
    after, limit = _bounds(exchange)
    role = orjson.dumps(exchange.role)
    page = _Page(exchange, after, limit)
    first = b'{"role":%b,"entries":[%b' % (role, await page.part())
    return _rest(page, first) if page.goes_on else first + page.ending


async def _rest(page: _Page, first: bytes) -> AsyncIterator[bytes]:
    yield first
    while page.goes_on:
        if part := await page.part():
            yield b"," + part
    yield page.ending


class _Page:
    """Where the reading of one page stands: ``goes_on`` until ``limit`` entries or enough bytes have been read."""

    def __init__(self, exchange: Exchange, after: int, limit: int) -> None:
        self._exchange = exchange
        self._last, self._left, self._size, self._more = after, limit, 0, True

    @property
    def goes_on(self) -> bool:
        return self._more and self._left > 0 and self._size < _PAGE_BYTES

    @property
    def ending(self) -> bytes:
        return b'],"next_after":%b}' % (b"%d" % self._last if self._more else b"null")

    async def part(self) -> bytes:
        """The next entries, as the inside of a JSON array. Raises :class:`~fencegate.errors.Unavailable`."""
        wanted = min(_PART, self._left)
        found = await self._exchange.around.store.entries(self._exchange.role, self._last, wanted)
        size = sum(len(entry.body) for entry in found)
        self._more = len(found) == wanted or size >= PART_BYTES
        self._last = found[-1].seq if found else self._last
        self._left -= len(found)
        self._size += size
        return orjson.dumps([_whole(entry) for entry in found])[1:-1]


def _bounds(exchange: Exchange) -> tuple[int, int]:
    values = {"after": 0, "limit": DEFAULT_PAGE}
    for name, text in parse_qsl(exchange.request.query, keep_blank_values=True):
        if name in values:
            if not _COUNT.fullmatch(text) or int(text) >= 2**63:
                raise exchange.refused("request_malformed", f"The parameter {name} must be a whole number.")
            values[name] = int(text)
    return values["after"], min(max(values["limit"], 1), LARGEST_PAGE)


def _place(entry: Entry) -> dict[str, object]:
    return {
        "role": entry.role,
        "seq": entry.seq,
        "token": entry.token,
        "recorded_at": entry.recorded_at,
        "hash": entry.hash,
    }


def _whole(entry: Entry) -> dict[str, object]:
    key = {} if entry.key is None else {"idempotency_key": entry.key}
    caller = {} if entry.caller is None else {"caller": entry.caller}
    # The body comes last: whoever checks the chain takes its text from there.
    return {**_place(entry), **key, **caller, "body": orjson.Fragment(entry.body)}
