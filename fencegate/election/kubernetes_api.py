"""The Lease API of Kubernetes over aiohttp: four verbs, every write conditional, and where to find the server.

Reads name no ``resourceVersion``, which Kubernetes answers with the most recent state, proved against the quorum of
its etcd; they never come out of a cache of unknown age. Permissions needed, on ``leases`` of the group
``coordination.k8s.io``: get, list, watch, create, update.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from fencegate.access.client_tls import ClientFiles, ClientTls
from fencegate.election.http_endpoints import BROKEN_STREAM, Answer, HttpEndpoints, secret_of
from fencegate.election.kubernetes_records import Json, Lease, lease_name
from fencegate.errors import ConfigurationError
from fencegate.lease import Cause, ElectionUnavailable

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_QUORUM_SIGNS: Final = ("etcdserver", "no leader")
_WATCH_SECONDS: Final = 300
_SILENCE: Final = 120.0
"""Bookmarks come about once a minute: a watch without any for longer is taken for lost."""


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """Where the API server is and who we are. ``token_file`` is read anew for each request: such tokens rotate."""

    endpoints: list[str]
    namespace: str
    token_file: str | None = None
    tls: ssl.SSLContext | None = None


def in_cluster(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> KubernetesAccess:
    """The access that a pod is given by its service account. Raises ``ValueError`` saying what is missing."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ValueError(
            "no endpoints are set, and this is no pod (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are "
            "missing): set election.endpoints, election.namespace and election.token_file"
        )
    token, ca, namespace = directory / "token", directory / "ca.crt", directory / "namespace"
    for file in (token, ca, namespace):
        if not file.is_file():
            raise ValueError(f"{file} is missing: is automountServiceAccountToken off for this pod?")
    try:
        tls = ClientTls(ClientFiles("the pod's service account", ca=str(ca)))
    except ConfigurationError as error:
        raise ValueError("; ".join(error.faults)) from None
    address = f"[{host}]" if ":" in host else host
    return KubernetesAccess([f"https://{address}:{port}"], namespace.read_text().strip(), str(token), tls)


class LeaseApi:
    """Leases of one namespace. Raises ``ValueError`` for a bad endpoint or an empty namespace."""

    def __init__(self, access: KubernetesAccess) -> None:
        if not access.namespace:
            raise ValueError("election namespace: name the namespace of the Leases")
        self._token_file = access.token_file
        self._namespace = access.namespace
        self.http = HttpEndpoints(
            "kubernetes",
            access.endpoints,
            example="https://kubernetes.default.svc",
            judge=_judge,
            credentials=self._credentials,
            tls=access.tls,
        )
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(access.namespace, safe='')}/leases"

    async def get(self, role: str, deadline: float) -> Lease | None:
        """The Lease of ``role`` as the quorum has it now, or ``None``."""
        answer = await self.http.call("GET", self._of(role), deadline)
        if _reason(answer) == "NotFound":
            return None
        return _lease(answer, role)

    async def create(self, role: str, raw: Json, deadline: float) -> Lease | None:
        """The Lease as created; ``None`` where one is there already."""
        answer = await self.http.call("POST", self._path, deadline, body=raw)
        if _reason(answer) == "AlreadyExists":
            return None
        return _lease(answer, role)

    async def update(self, role: str, raw: Json, deadline: float) -> Lease | None:
        """The Lease as written; ``None`` where it is no longer the version and object that ``raw`` was made from."""
        answer = await self.http.call("PUT", self._of(role), deadline, body=raw)
        if _reason(answer) in ("Conflict", "NotFound"):
            return None
        lease = _lease(answer, role)
        # A PUT to a deleted Lease may create a new one, which is not ours.
        return lease if lease.uid == raw["metadata"].get("uid") else None

    async def watch(self, role: str) -> AsyncIterator[Lease | None]:
        """Each version that the server tells of, the present one first; ``None`` for a deletion. Ends with the link."""
        query = {
            "watch": "1",
            "fieldSelector": f"metadata.name={lease_name(role)}",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with self.http.stream(self._path, query, silence=_SILENCE) as response:
                async for line in response.content:
                    event = orjson.loads(line) if response.status == 200 else None
                    match event:
                        case {"type": "ADDED" | "MODIFIED", "object": {} as found}:
                            yield Lease(found)
                        case {"type": "DELETED"}:
                            yield None
                        case {"type": "BOOKMARK"}:
                            continue
                        case _:  # such as 410 Gone: the caller begins anew
                            return
        except (*BROKEN_STREAM, ElectionUnavailable):
            return

    async def probe(self, deadline: float) -> str:
        """The list's resourceVersion. Raises :class:`~fencegate.lease.ElectionUnavailable` saying what is wrong."""
        answer = await self.http.call("GET", self._path, deadline, query={"limit": "1"})
        _reason(answer)
        found = answer.json
        if answer.status != 200 or not isinstance(found, dict) or found.get("kind") != "LeaseList":
            raise _strange(answer)
        return str(found.get("metadata", {}).get("resourceVersion", ""))

    async def close(self) -> None:
        await self.http.close()

    def _of(self, role: str) -> str:
        return f"{self._path}/{lease_name(role)}"

    def _credentials(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {secret_of(self._token_file, 'kubernetes')}"}


def _judge(endpoint: str, answer: Answer) -> None:
    if answer.status != 429 and answer.status < 500:
        return
    message = _message(answer)
    cause: Cause = "quorum" if any(sign in message for sign in _QUORUM_SIGNS) else "refused"
    raise ElectionUnavailable(f"{endpoint}: HTTP {answer.status} {message}".rstrip(), cause)


def _reason(answer: Answer) -> str:
    """Why the server said no, "" where it did not. Raises where no further try can help."""
    if answer.status in (200, 201):
        return ""
    found = answer.json
    if not isinstance(found, dict) or found.get("kind") != "Status":
        raise _strange(answer)
    reason, message = str(found.get("reason") or ""), _message(answer)
    if reason in ("Conflict", "AlreadyExists") and answer.status == 409:
        return reason
    if reason == "NotFound" and answer.status == 404:
        details: Any = found.get("details")
        if isinstance(details, dict) and details.get("kind") == "leases":
            return reason
        raise ElectionUnavailable(f"kubernetes: {message} (does the namespace exist?)", "refused")
    hints = {
        401: "is election.token_file the token of a service account that exists?",
        403: "the service account needs get, list, watch, create and update on leases.coordination.k8s.io",
    }
    hint = hints.get(answer.status)
    raise ElectionUnavailable(
        f"kubernetes: HTTP {answer.status} {answer.quoted(reason)}: {message}" + (f" ({hint})" if hint else ""),
        "refused",
    )


def _lease(answer: Answer, role: str) -> Lease:
    found = answer.json
    if not isinstance(found, dict) or answer.status not in (200, 201) or found.get("kind") != "Lease":
        raise _strange(answer)
    lease = Lease(found)
    if lease.metadata.get("name") != lease_name(role) or not lease.uid:
        raise ElectionUnavailable("kubernetes: the answer is another Lease than the one asked for", "refused")
    return lease


def _message(answer: Answer) -> str:
    found = answer.json
    return answer.quoted(str(found.get("message") or "")) if isinstance(found, dict) else answer.text


def _strange(answer: Answer) -> ElectionUnavailable:
    return ElectionUnavailable(
        f"kubernetes: HTTP {answer.status}, not as an API server answers: {_message(answer)}", "refused"
    )
