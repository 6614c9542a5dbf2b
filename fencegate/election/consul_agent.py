"""The parts of Consul's HTTP API that an election needs, over aiohttp: sessions, one key, transactions.

Reads say ``?consistent``: Consul's leader confirms with a quorum that it still leads before it answers. Every write
but a session's is a transaction that compares first, so that it may be sent twice.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from fencegate.election.consul_records import Entry, Json
from fencegate.election.http_endpoints import Answer, HttpEndpoints, secret_of
from fencegate.lease import Cause, ElectionUnavailable

_WAIT: Final = 55
"""Seconds of one blocking query; Consul adds up to a sixteenth of it."""
_WAIT_LIMIT: Final = _WAIT * 1.2 + 5
_QUERY_SPACING: Final = 0.05
_POLL_SPACING: Final = 1.0
_QUORUM_SIGNS: Final = ("No cluster leader", "leadership", "not the leader", "rpc error", "raft")
_INDEX: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Txn:
    """A transaction's outcome. ``results`` are its entries, without values; ``why`` says why it was rolled back."""

    done: bool
    results: list[Json]
    why: str = ""


Behavior = Literal["release", "delete"]
"""What becomes of a session's keys when it ends."""


class ConsulAgent:
    """Raises ``ValueError`` for a bad endpoint. ``token_file`` holds an ACL token and is read anew for each request."""

    def __init__(
        self, endpoints: list[str], *, token_file: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._token_file = token_file
        self.http = HttpEndpoints(
            "consul",
            endpoints,
            example="http://127.0.0.1:8500",
            judge=_judge,
            credentials=self._credentials,
            tls=tls,
        )

    async def entry(self, key: str, deadline: float) -> Entry | None:
        """The key as the quorum has it now, or ``None``."""
        answer = await self.http.call("GET", _path(key), deadline, query={"consistent": ""})
        return _entry(answer)

    async def entries_under(self, prefix: str, deadline: float) -> list[Entry]:
        """Every key that begins with ``prefix``, as the quorum has them now."""
        return _entries(await self.http.call("GET", _path(prefix), deadline, query={"recurse": "", "consistent": ""}))

    async def create_session(
        self,
        name: str,
        ttl: int,
        lock_delay: int,
        deadline: float,
        *,
        behavior: Literal["release", "delete"] = "release",
    ) -> str:
        """A session of ``ttl`` seconds that no health check ends; what it held is released or deleted, and blocked
        for ``lock_delay`` seconds, when it is invalidated."""
        body = {
            "Name": name,
            "TTL": f"{ttl}s",
            "LockDelay": f"{lock_delay}s",
            "Behavior": behavior,
            # Without this, the agent's node check would end the session whenever gossip loses sight of the node.
            "NodeChecks": [],
            "Checks": [],
        }
        answer = await self.http.call("PUT", "/v1/session/create", deadline, body=body)
        found = answer.json
        if answer.status != 200 or not isinstance(found, dict) or not found.get("ID"):
            raise _refused(answer)
        return str(found["ID"])

    async def renew_session(self, session: str, deadline: float) -> bool:
        """False where the session is gone. Keeps it alive; proves nothing (see DESIGN.md)."""
        answer = await self.http.call("PUT", f"/v1/session/renew/{quote(session, safe='')}", deadline)
        if answer.status == 404:
            return False
        if answer.status != 200:
            raise _refused(answer)
        return True

    async def destroy_session(self, session: str, deadline: float) -> None:
        answer = await self.http.call("PUT", f"/v1/session/destroy/{quote(session, safe='')}", deadline)
        if answer.status != 200:
            raise _refused(answer)

    async def transact(self, operations: list[Json], deadline: float) -> Txn:
        """All of ``operations`` on keys, or none. It goes through Consul's log: success is a linearizable proof."""
        body = [{"KV": operation} for operation in operations]
        answer = await self.http.call("PUT", "/v1/txn", deadline, body=body)
        found = answer.json
        if not isinstance(found, dict) or answer.status not in (200, 409):
            raise _refused(answer)
        errors = found.get("Errors") or []
        if answer.status == 409 or errors:
            why = "; ".join(str(error.get("What", "")) for error in errors if isinstance(error, dict))
            if "Permission denied" in why:
                raise ElectionUnavailable(f"consul: {why} (the token needs key:write on this key)", "refused")
            return Txn(False, [], why)
        return Txn(True, [result["KV"] for result in found.get("Results") or [] if "KV" in result])

    async def watch(self, key: str) -> AsyncIterator[Entry | None]:
        """The key at each turn of a blocking query, the present one first. Ends when a query fails."""
        index = 0
        while True:
            query = {"index": str(index), "wait": f"{_WAIT}s"} if index else {}
            try:
                answer = await self.http.ask_once(_path(key), query, _WAIT_LIMIT)
                entry = _entry(answer)
            except ElectionUnavailable:
                return
            yield entry
            reported = int(answer.headers["x-consul-index"])
            # An index that went back (a restored snapshot), or is 0, begins anew: waiting for it could be for ever.
            index = reported if reported >= index else 0
            await asyncio.sleep(_QUERY_SPACING if index else _POLL_SPACING)

    async def probe(self, deadline: float) -> None:
        """Raises :class:`~fencegate.lease.ElectionUnavailable` where there is no leader, or this is no Consul."""
        answer = await self.http.call("GET", "/v1/status/leader", deadline)
        if answer.status != 200 or not isinstance(answer.json, str):
            raise _refused(answer)
        if not answer.json:
            raise ElectionUnavailable("consul: no cluster leader", "quorum")

    async def close(self) -> None:
        await self.http.close()

    def _credentials(self) -> dict[str, str]:
        return {"X-Consul-Token": secret_of(self._token_file, "consul")} if self._token_file else {}


def _path(key: str) -> str:
    # The escapes in a key are part of it, so they are escaped once more in a path.
    return f"/v1/kv/{quote(key, safe='/')}"


def _entry(answer: Answer) -> Entry | None:
    """The entry in an answer; ``None`` only where Consul itself says that there is none."""
    found = _entries(answer)
    if len(found) > 1:
        raise _refused(answer)
    return found[0] if found else None


def _entries(answer: Answer) -> list[Entry]:
    if answer.status not in (200, 404):
        raise _refused(answer)
    if not _INDEX.fullmatch(answer.headers.get("x-consul-index", "")):
        raise _refused(answer)
    if answer.status == 404:
        return []
    found: Any = answer.json
    if not isinstance(found, list) or not found or not all(isinstance(raw, dict) for raw in found):
        raise _refused(answer)
    try:
        return [Entry.of(raw) for raw in found]
    except ValueError as error:
        raise ElectionUnavailable(f"consul: {error}", "refused") from None


def _judge(endpoint: str, answer: Answer) -> None:
    if answer.status != 429 and answer.status < 500:
        return
    cause: Cause = "quorum" if any(sign in answer.text for sign in _QUORUM_SIGNS) else "refused"
    raise ElectionUnavailable(f"{endpoint}: HTTP {answer.status} {answer.text}".rstrip(), cause)


def _refused(answer: Answer) -> ElectionUnavailable:
    hints = {
        403: " (the ACL token needs key:write on the election's prefix and session:write on the agent's node)",
        404: " (is this a Consul agent?)",
    }
    return ElectionUnavailable(
        f"consul: HTTP {answer.status} {answer.text}".rstrip() + hints.get(answer.status, ""), "refused"
    )
