"""Target ``ledger``: the append-only ledger built into the store. POST appends; GET reads one entry or a page."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final
from urllib.parse import parse_qsl

import orjson

from fencegate.errors import Unavailable
from fencegate.fence import Effect, Entry
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.replies import JSON_TYPE, accepted_block
from fencegate.gateway.request import Reply
from fencegate.gateway.targets.stored import read_json, submit

DEFAULT_PAGE: Final = 100
LARGEST_PAGE: Final = 1000
_SLICE: Final = 50
"""Entries fetched at once, so that a page of large entries stops early instead of filling the memory."""
_PAGE_BYTES: Final = 4 * 1024 * 1024

_SEQ = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_COUNT = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


async def write(exchange: Exchange) -> Reply:
    """Appends the body as one entry: 201 with its place in the ledger."""
    if exchange.rest:
        raise exchange.refused(
            "method_not_allowed",
            "Entries of the ledger are only read; append with POST to the route.",
            extra={"allow": "GET, HEAD, OPTIONS"},
        )
    body = await read_json(exchange)
    # An entry is its body: the path has no part in it.
    payload = blake2b(body, digest_size=16).digest() if exchange.key else b""
    result = await submit(exchange, body, exchange.around.store.append, payload=payload)
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


async def _page(exchange: Exchange) -> bytes:
    after, limit = _bounds(exchange)
    entries: list[dict[str, object]] = []
    size, last, more = 0, after, True
    while more and len(entries) < limit and size < _PAGE_BYTES:
        wanted = min(_SLICE, limit - len(entries))
        part = await exchange.around.store.entries(exchange.role, last, wanted)
        entries += (_whole(entry) for entry in part)
        size += sum(len(entry.body) for entry in part)
        last = part[-1].seq if part else last
        more = len(part) == wanted
    document = {"role": exchange.role, "entries": entries, "next_after": last if more else None}
    return orjson.dumps(document)


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
    return {**_place(entry), **key, "body": orjson.Fragment(entry.body)}
