"""Target ``function``: the user's own SQL function, run in the fenced transaction."""

from __future__ import annotations

from functools import partial
from typing import Final

import orjson

from fencegate.fence import Effect, WriteResult
from fencegate.gateway.exchange import Exchange, operation_digest
from fencegate.gateway.replies import JSON_TYPE, accepted_headers
from fencegate.gateway.request import Refused, Reply
from fencegate.gateway.targets.stored import read_json, submit, write_of

_PASSING_CLASSES: Final = frozenset({"40", "53", "55", "57"})
"""SQLSTATE classes that say "not now" and nothing about the write: rollback, resources, locks, shutdown."""


async def write(exchange: Exchange) -> Reply:
    """Calls the function with the body: 200 with its result, 422 with its exception."""
    _check_query(exchange)
    body = await read_json(exchange)
    request = exchange.request
    context: dict[str, object] = {
        "role": exchange.role,
        "token": exchange.token or 0,
        "idempotency_key": exchange.key or None,
        "caller": exchange.caller or None,
        "method": request.method,
        "path": request.path,
        "query": request.query,
    }
    send = partial(exchange.around.store.call, exchange.route.argument)
    payload = operation_digest(request)
    payload.update(body)
    result = await submit(exchange, write_of(exchange, body, payload.digest(), context), send)
    if result.effect is Effect.REJECTED:
        raise _rejected(exchange, result)
    replayed = result.effect is Effect.REPLAYED
    region = exchange.around.places.region
    headers = [JSON_TYPE, *accepted_headers(region, result.max_token_seen, replayed=replayed)]
    return Reply(result.status or 200, headers, result.answer if result.answer is not None else b"null")


def _check_query(exchange: Exchange) -> None:
    """A function is told the query as text, in JSON."""
    try:
        exchange.request.query.encode()
    except UnicodeEncodeError:
        detail = "The query is not UTF-8; its bytes must be percent-encoded."
        raise exchange.refused("request_malformed", detail) from None


def _rejected(exchange: Exchange, result: WriteResult) -> Refused:
    told = orjson.loads(result.answer) if result.answer else {}
    members = {name: value for name, value in told.items() if value is not None} if isinstance(told, dict) else {}
    sqlstate = str(members.get("sqlstate", ""))
    message = str(members.get("message", "no message"))
    if sqlstate[:2] in _PASSING_CLASSES:
        detail = f"The store could not run the function now (SQLSTATE {sqlstate}): {message}"
        return exchange.refused(
            "fence_unavailable", detail, max_seen=result.max_token_seen, extra={"sqlstate": sqlstate}
        )
    extra: dict[str, object] = {"sqlstate": sqlstate, "message": message}
    if "hint" in members:
        extra["hint"] = members["hint"]
    if "detail" in members:
        extra["sql_detail"] = members["detail"]
    detail = f"The function refused the write: {message}"
    return exchange.refused("rejected_by_function", detail, max_seen=result.max_token_seen, extra=extra)
