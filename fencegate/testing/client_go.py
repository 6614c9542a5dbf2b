"""A contender for a Lease by the documented rules of client-go, for tests where no Go program can be had."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import aiohttp

from fencegate.election.kubernetes_records import written


class ClientGo:
    """A contender by the documented rules of client-go's leaderelection over a LeaseLock."""

    def __init__(
        self, url: str, identity: str, clock: Callable[[], float], seconds: int = 15, name: str = "ledger"
    ) -> None:
        self.identity = identity
        self._clock = clock
        self._seconds = seconds
        self._collection = f"{url}/apis/coordination.k8s.io/v1/namespaces/default/leases"
        self._name = name
        self._lease: dict[str, Any] | None = None
        self._observed: dict[str, Any] | None = None
        self._observed_at = 0.0
        self.conflicts = 0

    @property
    def leads(self) -> bool:
        return (self._observed or {}).get("holderIdentity") == self.identity

    async def _send(self, method: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        url = self._collection if method == "POST" else f"{self._collection}/{self._name}"
        async with aiohttp.ClientSession() as session, session.request(method, url, json=body) as response:
            return response.status, await response.json()

    def _record(self) -> dict[str, Any]:
        now = written(datetime.datetime.now(datetime.UTC))
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._seconds,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }

    def _observe(self, spec: dict[str, Any]) -> None:
        self._observed, self._observed_at = copy.deepcopy(spec), self._clock()

    def _valid(self) -> bool:
        assert self._observed is not None
        return self._observed_at + (self._observed.get("leaseDurationSeconds") or 0) > self._clock()

    async def _write(self, spec: dict[str, Any]) -> bool:
        assert self._lease is not None
        body = copy.deepcopy(self._lease)
        body["spec"] = spec  # the metadata, annotations and all, goes back as it was read
        code, answer = await self._send("PUT", body)
        if code != 200:
            self.conflicts += code == 409
            return False
        self._lease = answer
        self._observe(answer["spec"])
        return True

    async def try_acquire_or_renew(self) -> bool:
        record = self._record()
        if self.leads and self._valid() and self._observed:
            kept = {name: self._observed[name] for name in ("acquireTime", "leaseTransitions")}
            if await self._write({**record, **kept}):
                return True
        code, found = await self._send("GET")
        if code == 404:
            metadata = {"name": self._name, "namespace": "default"}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": record}
            code, answer = await self._send("POST", lease)
            if code != 201:
                return False
            self._lease = answer
            self._observe(answer["spec"])
            return True
        self._lease = found
        old = found["spec"]
        if old != self._observed:
            self._observe(old)
        if old.get("holderIdentity") and self._valid() and not self.leads:
            return False
        if self.leads:
            record |= {"acquireTime": old["acquireTime"], "leaseTransitions": old["leaseTransitions"]}
        else:
            record["leaseTransitions"] = (old.get("leaseTransitions") or 0) + 1
        return await self._write(record)

    async def release(self) -> bool:
        assert self._observed is not None
        kept = {"leaseTransitions": self._observed["leaseTransitions"]}
        return await self._write({**self._record(), **kept, "holderIdentity": "", "leaseDurationSeconds": 1})
