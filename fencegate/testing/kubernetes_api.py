"""A small server of the documented Kubernetes API, Leases only, for tests where no API server can be had.

What it keeps: one resourceVersion for the whole store, which grows over deletions; updates conditional on it and on
the ``uid`` (409), never unconditional (422); ``AlreadyExists``, ``NotFound``, unknown namespaces; the validation of a
Lease's ``spec``; a PUT to a Lease that does not exist creates it, unless it names a ``uid``; watches with bookmarks
that begin at a version, or say 410 Gone where it is compacted; bearer tokens, forbidden verbs and quotas. It is no
cluster: one process, all in memory.
"""

from __future__ import annotations

import asyncio
import copy
import re
import uuid
from typing import Any, Final

import orjson
from aiohttp import web

from fencegate.testing.faulty_http import FaultyServer

Json = dict[str, Any]

_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_ROOT: Final = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_HTTP: Final = {"NotFound": 404, "AlreadyExists": 409, "Conflict": 409, "Invalid": 422, "BadRequest": 400}


def status(code: int, reason: str, message: str, kind: str = "leases") -> web.Response:
    """An answer that says no, as the API server words it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": {"group": "coordination.k8s.io", "kind": kind},
        "code": code,
    }
    return web.json_response(body, status=code)


class _No(Exception):
    def __init__(self, reason: str, message: str, kind: str = "leases") -> None:
        super().__init__(message)
        self.answer = status(_HTTP[reason], reason, message, kind)


class KubernetesApi(FaultyServer):
    """``token``: the one bearer token that is taken; ``None`` takes every request."""

    def __init__(self, *, token: str | None = None, first_version: int = 1000) -> None:
        super().__init__()
        self.token = token
        self.forbidden: set[str] = set()
        """Verbs that the service account may not do: get, list, watch, create, update, delete."""
        self.quota: int | None = None
        """How many Leases there may be."""
        self.checks_uids = True
        """Whether a PUT that names the ``uid`` of a Lease that is gone is refused, or creates another one."""
        self.bookmark_period = 60.0
        self.version_text = str
        """How a version is printed: a server may choose otherwise."""
        self.leases: dict[tuple[str, str], Json] = {}
        self.version = first_version
        self.namespaces = {"default"}
        self._events: list[tuple[int, str, Json]] = []
        self._compacted = first_version
        self._changed = asyncio.Event()

    def routes(self, router: web.UrlDispatcher) -> None:
        router.add_get(_ROOT, self._list_or_watch, allow_head=False)
        router.add_post(_ROOT, self._create)
        router.add_get(_ROOT + "/{name}", self._get, allow_head=False)
        router.add_put(_ROOT + "/{name}", self._update)
        router.add_delete(_ROOT + "/{name}", self._delete)

    # -- what a test does behind the API ------------------------------------------------------------

    def compact(self) -> None:
        """Forget the events so far: a watch that begins at an older version gets 410 Gone."""
        self._compacted = self.version
        self._events.clear()

    def snapshot(self) -> tuple[int, dict[tuple[str, str], Json]]:
        return self.version, copy.deepcopy(self.leases)

    def restore(self, snapshot: tuple[int, dict[tuple[str, str], Json]]) -> None:
        """As a restored etcd: the objects and the version counter go back together."""
        self.version, self.leases = snapshot[0], copy.deepcopy(snapshot[1])
        self._events.clear()

    def remove(self, name: str, namespace: str = "default") -> None:
        """As ``kubectl delete lease``."""
        gone = self.leases.pop((namespace, name))
        self.version += 1
        gone["metadata"]["resourceVersion"] = self.version_text(self.version)
        self._tell("DELETED", gone)

    def label(self, name: str, key: str, value: str, namespace: str = "default") -> None:
        """As ``kubectl label``: a new version with the same ``spec``."""
        lease = copy.deepcopy(self.leases[namespace, name])
        lease["metadata"].setdefault("labels", {})[key] = value
        self._store((namespace, name), lease, "MODIFIED")

    # -- verbs --------------------------------------------------------------------------------------

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "get", lambda: self._found(request))

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, "create", lambda: self._created(request, body), code=201)

    async def _update(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._answer(request, "update", lambda: self._updated(request, body))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        def delete() -> Json:
            self._found(request)
            self.remove(request.match_info["name"], request.match_info["namespace"])
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

        return await self._answer(request, "delete", delete)

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") in ("1", "true"):
            return self._refused(request, "watch") or await self._watch(request)
        return await self._answer(request, "list", lambda: self._listed(request))

    async def _answer(self, request: web.Request, verb: str, act: Any, code: int = 200) -> web.StreamResponse:
        refused = self._refused(request, verb)
        if refused is not None:
            return refused
        try:
            body = act()
        except _No as no:
            return no.answer
        if verb == "update" and body.pop("created", False):
            code = 201
        return web.json_response(body, status=code, dumps=lambda found: orjson.dumps(found).decode())

    def _refused(self, request: web.Request, verb: str) -> web.Response | None:
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if verb in self.forbidden:
            return status(
                403, "Forbidden", f'leases.coordination.k8s.io is forbidden: User cannot {verb} resource "leases"'
            )
        return None

    # -- objects ------------------------------------------------------------------------------------

    def _key(self, request: web.Request) -> tuple[str, str]:
        return request.match_info["namespace"], request.match_info["name"]

    def _found(self, request: web.Request) -> Json:
        namespace, name = self._key(request)
        if (namespace, name) not in self.leases:
            raise _No("NotFound", f'leases.coordination.k8s.io "{name}" not found')
        return self.leases[namespace, name]

    def _listed(self, request: web.Request) -> Json:
        items = [lease for (space, _), lease in self.leases.items() if space == request.match_info["namespace"]]
        metadata = {"resourceVersion": self.version_text(self.version)}
        return {"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "items": items}

    def _created(self, request: web.Request, body: Json) -> Json:
        namespace = request.match_info["namespace"]
        name = body.get("metadata", {}).get("name", "")
        if body.get("metadata", {}).get("resourceVersion"):
            raise _No("BadRequest", "resourceVersion should not be set on objects to be created")
        self._validate(body, name)
        if namespace not in self.namespaces:
            raise _No("NotFound", f'namespaces "{namespace}" not found', "namespaces")
        if (namespace, name) in self.leases:
            raise _No("AlreadyExists", f'leases.coordination.k8s.io "{name}" already exists')
        if self.quota is not None and len(self.leases) >= self.quota:
            no = _No("Conflict", "")
            no.answer = status(403, "Forbidden", f'leases "{name}" is forbidden: exceeded quota')
            raise no
        lease = copy.deepcopy(body)
        lease["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp="2026-01-01T00:00:00Z", namespace=namespace)
        return self._store((namespace, name), lease, "ADDED")

    def _updated(self, request: web.Request, body: Json) -> Json:
        namespace, name = self._key(request)
        metadata = body.get("metadata", {})
        self._validate(body, name)
        present = self.leases.get((namespace, name))
        if present is None:
            if metadata.get("uid") and self.checks_uids:
                raise self._conflict(name, f"Precondition failed: UID in precondition: {metadata['uid']}, UID: ")
            metadata.pop("resourceVersion", None)
            return {**self._created(request, body), "created": True}
        if not metadata.get("resourceVersion"):
            raise _No("Invalid", "metadata.resourceVersion: Invalid value: must be specified for an update")
        if metadata.get("uid") not in (None, present["metadata"]["uid"]):
            raise self._conflict(name, "Precondition failed: UID in precondition is another")
        if metadata["resourceVersion"] != present["metadata"]["resourceVersion"]:
            raise self._conflict(name, "the object has been modified; please apply your changes to the latest version")
        lease = copy.deepcopy(body)
        for kept in ("uid", "creationTimestamp", "namespace"):
            lease["metadata"][kept] = present["metadata"][kept]
        if lease == present:  # nothing to write: the version stays
            return present
        return self._store((namespace, name), lease, "MODIFIED")

    def _conflict(self, name: str, why: str) -> _No:
        return _No("Conflict", f'Operation cannot be fulfilled on leases.coordination.k8s.io "{name}": {why}')

    def _validate(self, body: Json, name: str) -> None:
        if body.get("kind") != "Lease" or body.get("apiVersion") != "coordination.k8s.io/v1":
            raise _No("BadRequest", "the object provided is unrecognized")
        if body["metadata"].get("name") != name:
            raise _No("BadRequest", "the name of the object does not match the name on the URL")
        if len(name) > 253 or not _NAME.fullmatch(name):
            raise _No("Invalid", f"metadata.name: Invalid value: {name!r}")
        spec = body.get("spec", {})
        seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if seconds is not None and (type(seconds) is not int or seconds <= 0):
            raise _No("Invalid", "spec.leaseDurationSeconds: Invalid value: must be greater than 0")
        if transitions is not None and (type(transitions) is not int or transitions < 0):
            raise _No("Invalid", "spec.leaseTransitions: Invalid value: must be greater than or equal to 0")
        for field in ("acquireTime", "renewTime"):
            if spec.get(field) is not None and not _MICRO_TIME.fullmatch(spec[field]):
                raise _No("BadRequest", f"spec.{field} is no MicroTime")
        for key, value in body["metadata"].get("annotations", {}).items():
            if not isinstance(value, str):
                raise _No("BadRequest", f"annotation {key} is no string")

    def _store(self, key: tuple[str, str], lease: Json, event: str) -> Json:
        self.version += 1
        lease["metadata"]["resourceVersion"] = self.version_text(self.version)
        self.leases[key] = lease
        self._tell(event, lease)
        return copy.deepcopy(lease)

    # -- watching -----------------------------------------------------------------------------------

    def _tell(self, event: str, lease: Json) -> None:
        self._events.append((self.version, event, copy.deepcopy(lease)))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info["namespace"]
        selector = request.query.get("fieldSelector", "")
        name = selector.removeprefix("metadata.name=") if selector else None
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(event: str, found: Json) -> None:
            await response.write(orjson.dumps({"type": event, "object": found}) + b"\n")

        def meant(lease: Json) -> bool:
            metadata = lease["metadata"]
            return metadata["namespace"] == namespace and name in (None, metadata["name"])

        asked = request.query.get("resourceVersion", "")
        if asked in ("", "0"):
            since = self.version
            for lease in list(self.leases.values()):
                if meant(lease):
                    await send("ADDED", lease)
        else:
            since = int(asked)
        loop = asyncio.get_running_loop()
        told = loop.time()
        ends = told + float(request.query.get("timeoutSeconds", "1800"))
        while loop.time() < ends and not self._closing.is_set():
            changed = self._changed
            if since < self._compacted and asked not in ("", "0"):
                gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410}
                await send("ERROR", {**gone, "message": f"too old resource version: {since}"})
                return response
            for version, event, lease in [entry for entry in self._events if entry[0] > since]:
                since = version
                if meant(lease):
                    await send(event, lease)
            if request.query.get("allowWatchBookmarks") == "true" and loop.time() - told >= self.bookmark_period:
                told = loop.time()
                await send("BOOKMARK", {"kind": "Lease", "metadata": {"resourceVersion": self.version_text(since)}})
            try:
                async with asyncio.timeout(min(self.bookmark_period, 0.2)):
                    await changed.wait()
            except TimeoutError:
                continue
        return response
