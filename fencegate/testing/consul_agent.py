"""A small server of Consul's documented HTTP API, for tests where no Consul can be had: sessions, KV, transactions.

What it keeps: one index for the whole store, moved by every write that changes something; sessions with a TTL that is
a lower bound (they end after twice of it, as Consul's do), invalidated with their behavior and with a lock-delay on
what they held; ``lock`` and ``acquire`` that count LockIndex; transactions that are applied whole or rolled back (409);
blocking queries; ``?consistent`` reads. A server that was deposed unawares cannot answer those, while it goes on
answering plain reads from the past and renewing sessions to no effect. It is no cluster: one process, all in memory.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from aiohttp import web

from fencegate.testing.faulty_http import FaultyServer

Json = dict[str, Any]

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TTL_MULTIPLIER: Final = 2
_LONGEST_TTL: Final = 86400.0
_LONGEST_LOCK_DELAY: Final = 60.0


def seconds(text: str) -> float:
    """A duration as Go prints one, of a single unit. Raises ``ValueError``."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"invalid duration {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(slots=True)
class _Session:
    id: str
    name: str
    ttl: float
    lock_delay: float
    behavior: str
    ends: float
    created: int


class _RolledBack(Exception):
    pass


class ConsulAgent(FaultyServer):
    """``token``: the one ACL token that may do anything; ``None`` lets everybody.

    ``clock`` runs TTLs and lock-delays, in seconds.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        session_ttl_min: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        first_index: int = 100,
    ) -> None:
        super().__init__()
        self.token = token
        self.index = first_index
        self.keys: dict[str, Json] = {}
        self.sessions: dict[str, _Session] = {}
        self.leaderless = False
        """Nothing is answered but 500."""
        self.deposed = False
        """This server thinks that it leads, and does not."""
        self._session_ttl_min = session_ttl_min
        self._clock = clock
        self._blocked: dict[str, float] = {}
        self._changed = asyncio.Event()

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_put("/v1/session/create", self._create_session)
        router.add_put("/v1/session/renew/{id}", self._renew_session)
        router.add_put("/v1/session/destroy/{id}", self._destroy_session)
        router.add_get("/v1/kv/{key:.+}", self._get, allow_head=False)
        router.add_put("/v1/kv/{key:.+}", self._put)
        router.add_delete("/v1/kv/{key:.+}", self._delete)
        router.add_put("/v1/txn", self._txn)
        router.add_get("/v1/status/leader", self._leader, allow_head=False)

    # -- what a test does behind the API ------------------------------------------------------------

    def invalidate(self, session: str) -> None:
        """End a session: what it held is released or deleted, and blocked for its lock-delay."""
        ended = self.sessions.pop(session)
        self.index += 1
        for key, entry in list(self.keys.items()):
            if entry.get("Session") != session:
                continue
            if ended.lock_delay > 0:
                self._blocked[key] = self._clock() + ended.lock_delay
            if ended.behavior == "delete":
                del self.keys[key]
            else:
                del entry["Session"]
                entry["ModifyIndex"] = self.index
        self._tell()

    def snapshot(self) -> tuple[int, dict[str, Json], dict[str, _Session]]:
        return self.index, copy.deepcopy(self.keys), copy.deepcopy(self.sessions)

    def restore(self, snapshot: tuple[int, dict[str, Json], dict[str, _Session]]) -> None:
        """As ``consul snapshot restore``: the data goes back, and here the index with it; lock-delays are forgotten."""
        self.index, self.keys, self.sessions = snapshot[0], copy.deepcopy(snapshot[1]), copy.deepcopy(snapshot[2])
        self._blocked.clear()
        self._tell()

    def remove(self, key: str) -> None:
        """As ``consul kv delete``."""
        del self.keys[key]
        self.index += 1
        self._tell()

    def expire(self) -> None:
        """End every session whose time is over."""
        for session in list(self.sessions.values()):
            if session.ttl and session.ends <= self._clock():
                self.invalidate(session.id)

    # -- sessions -----------------------------------------------------------------------------------

    async def _create_session(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        if refused is not None:
            return refused
        body = orjson.loads(await request.read() or b"{}")
        try:
            ttl = seconds(body["TTL"]) if body.get("TTL") else 0.0
            delay = seconds(body["LockDelay"]) if "LockDelay" in body else 15.0
        except ValueError as error:
            return web.Response(status=400, text=f"Request decode failed: {error}")
        if ttl and not self._session_ttl_min <= ttl <= _LONGEST_TTL:
            floor = f"{self._session_ttl_min:g}s"
            return web.Response(status=400, text=f"Invalid Session TTL '{ttl:g}', must be between [{floor}=24h0m0s]")
        behavior = body.get("Behavior") or "release"
        if behavior not in ("release", "delete"):
            return web.Response(status=400, text=f"Invalid Behavior setting '{behavior}'")
        self.index += 1
        id_ = str(uuid.uuid4())
        self.sessions[id_] = _Session(
            id_, body.get("Name", ""), ttl, min(delay, _LONGEST_LOCK_DELAY), behavior, self._end_of(ttl), self.index
        )
        self._tell()
        return web.json_response({"ID": id_})

    async def _renew_session(self, request: web.Request) -> web.StreamResponse:
        if self.deposed:  # answered from its own memory; the timer that counts runs elsewhere
            return web.json_response([{"ID": request.match_info["id"]}])
        refused = self._refused(request)
        if refused is not None:
            return refused
        session = self.sessions.get(request.match_info["id"])
        if session is None:
            return web.Response(status=404, text=f"Session id '{request.match_info['id']}' not found")
        session.ends = self._end_of(session.ttl)
        return web.json_response([{"ID": session.id, "Name": session.name, "TTL": f"{session.ttl:g}s"}])

    async def _destroy_session(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        if refused is not None:
            return refused
        if request.match_info["id"] in self.sessions:
            self.invalidate(request.match_info["id"])
        return web.json_response(True)

    def _end_of(self, ttl: float) -> float:
        return self._clock() + ttl * _TTL_MULTIPLIER

    # -- keys ---------------------------------------------------------------------------------------

    async def _get(self, request: web.Request) -> web.StreamResponse:
        consistent = "consistent" in request.query
        refused = None if self.deposed and not consistent else self._refused(request)
        if refused is not None:
            return refused
        key, asked = request.match_info["key"], int(request.query.get("index", "0"))
        if asked:
            ends = time.monotonic() + seconds(request.query.get("wait", "5m"))
            while self._index_of(key) <= asked and time.monotonic() < ends and not self._closing.is_set():
                changed = self._changed
                try:
                    async with asyncio.timeout(0.1):
                        await changed.wait()
                except TimeoutError:
                    self.expire()
                if self.index < asked:
                    break
        if "recurse" in request.query:
            found = [entry for name, entry in sorted(self.keys.items()) if name.startswith(key)]
            headers = {"X-Consul-Index": str(self.index)}
            return web.json_response(found, headers=headers) if found else web.Response(status=404, headers=headers)
        entry = self.keys.get(key)
        headers = {"X-Consul-Index": str(self._index_of(key)), "X-Consul-Knownleader": "true"}
        if entry is None:
            return web.Response(status=404, headers=headers)
        return web.json_response([entry], headers=headers)

    def _index_of(self, key: str) -> int:
        return int(self.keys[key]["ModifyIndex"]) if key in self.keys else self.index

    async def _put(self, request: web.Request) -> web.StreamResponse:
        operation: Json = {"Verb": "set", "Key": request.match_info["key"]}
        if "acquire" in request.query:
            operation |= {"Verb": "lock", "Session": request.query["acquire"]}
        elif "release" in request.query:
            operation |= {"Verb": "unlock", "Session": request.query["release"]}
        elif "cas" in request.query:
            operation |= {"Verb": "cas", "Index": int(request.query["cas"])}
        raw = await request.read()
        operation["Value"] = base64.b64encode(raw).decode()
        refused = self._refused(request)
        if refused is not None:
            return refused
        _, errors = self._apply([operation])
        if errors and "invalid session" in errors[0]["What"]:
            return web.Response(status=500, text=errors[0]["What"])
        return web.json_response(not errors)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        if refused is not None:
            return refused
        self._apply([{"Verb": "delete", "Key": request.match_info["key"]}])
        return web.json_response(True)

    async def _txn(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refused = self._refused(request)
        if refused is not None:
            return refused
        results, errors = self._apply([operation["KV"] for operation in body])
        answer = {"Results": [{"KV": result} for result in results] or None, "Errors": errors or None}
        return web.json_response(answer, status=409 if errors else 200)

    async def _leader(self, request: web.Request) -> web.StreamResponse:
        return web.json_response("" if self.leaderless else "10.0.0.1:8300")

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.token is not None and request.headers.get("X-Consul-Token") != self.token:
            return web.Response(status=403, text="Permission denied: token lacks permission 'key:write'")
        if self.leaderless:
            return web.Response(status=500, text="No cluster leader")
        if self.deposed:
            return web.Response(status=500, text="rpc error making call: leadership lost while committing log")
        self.expire()
        return None

    # -- transactions -------------------------------------------------------------------------------

    def _apply(self, operations: list[Json]) -> tuple[list[Json], list[Json]]:
        """All or nothing, under one new index. The entries of the results have no values, but for ``get``."""
        index, keys, results, errors = self.index + 1, copy.deepcopy(self.keys), [], []
        for number, operation in enumerate(operations):
            try:
                result = self._step(keys, operation, index)
            except _RolledBack as error:
                errors.append({"OpIndex": number, "What": str(error)})
                continue
            if result is not None:
                shown = result if operation["Verb"] == "get" else {**result, "Value": None}
                results.append(copy.deepcopy(shown))
        if errors:
            return [], errors
        if keys != self.keys:
            self.keys, self.index = keys, index
            self._tell()
        return results, []

    def _step(self, keys: dict[str, Json], operation: Json, index: int) -> Json | None:
        verb, key = operation["Verb"], operation["Key"]
        entry, session = keys.get(key), operation.get("Session", "")
        held_by = (entry or {}).get("Session", "")
        modified = entry["ModifyIndex"] if entry else 0
        match verb:
            case "check-not-exists":
                return self._must(entry is None, f'key "{key}" exists', None)
            case "get":
                return self._must(entry is not None, f'key "{key}" doesn\'t exist', entry)
            case "check-index":
                fault = f'current modify index {modified} does not match {operation["Index"]} for key "{key}"'
                return self._must(entry is not None and modified == operation["Index"], fault, entry)
            case "check-session":
                self._must(entry is not None, f'failed to check session, key "{key}" doesn\'t exist', None)
                fault = f'failed session check for key "{key}", current session "{held_by}" != "{session}"'
                return self._must(held_by == session, fault, entry)
            case "delete":
                keys.pop(key, None)
                return None
            case "set":
                return self._write(keys, key, operation, index)
            case "cas":
                fault = f'failed to set key "{key}", index is stale'
                self._must(modified == operation["Index"], fault, None)
                return self._write(keys, key, operation, index)
            case "lock":
                free = self._blocked.get(key, 0.0) <= self._clock()
                self._must(free, f'failed to lock key "{key}" due to lock delay', None)
                self._must(session in self.sessions, f'failed to lock key "{key}": invalid session "{session}"', None)
                self._must(held_by in ("", session), f'failed to lock key "{key}", lock is already held', None)
                locks = (entry or {}).get("LockIndex", 0) + (held_by != session)
                return self._write(keys, key, operation, index, Session=session, LockIndex=locks)
            case "unlock":
                fault = f'failed to unlock key "{key}", lock isn\'t held, or is held by another session'
                self._must(bool(session) and held_by == session, fault, None)
                return self._write(keys, key, operation, index, Session="")
        raise _RolledBack(f"unknown verb {verb!r}")

    def _must(self, holds: bool, fault: str, result: Json | None) -> Json | None:
        if not holds:
            raise _RolledBack(fault)
        return result

    def _write(self, keys: dict[str, Json], key: str, operation: Json, index: int, **more: Any) -> Json:
        before = keys.get(key)
        after = {"LockIndex": 0, "Flags": 0, "CreateIndex": index, **(before or {}), "Key": key, **more}
        after["Value"] = operation.get("Value")
        if not after.get("Session"):
            after.pop("Session", None)
        if after != before:  # a write that changes nothing moves no index
            after["ModifyIndex"] = index
        keys[key] = after
        return after

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
