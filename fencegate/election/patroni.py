"""Follows the leader of a Patroni cluster. Why the number is etcd's and not Patroni's: see DESIGN.md beside this file.

The token is the create revision of Patroni's leader key, read from the etcd that Patroni keeps it in, through
the quorum. Patroni's own REST API is asked one thing only: whether that etcd is its own.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any, Final

from fencegate.election.etcd_gateway import EtcdGateway, EtcdRefused, Json, encode
from fencegate.election.etcd_records import KeyValue
from fencegate.election.followed_cluster import FollowedCluster
from fencegate.election.http_endpoints import Answer, HttpEndpoints
from fencegate.election.strange_answers import reading
from fencegate.lease import ElectionUnavailable, LeaseTimings, Term

DEFAULT_NAMESPACE: Final = "/service"


class PatroniSource(FollowedCluster):
    """The leader of the cluster (Patroni's ``scope``) called ``cluster``, kept in etcd v3 under ``namespace``.

    ``members`` are origins of Patroni's REST API, ``dcs`` those of etcd, whose ``username`` and ``password``
    these are. Raises ``ValueError`` for a bad one.
    """

    name = "patroni"

    def __init__(
        self,
        members: list[str],
        dcs: list[str],
        cluster: str,
        timings: LeaseTimings,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(timings)
        self._etcd = EtcdGateway(dcs, username=username, password=password, tls=tls)
        self._members = HttpEndpoints(
            self.name, members, example="http://pg-1:8008", judge=_judge, credentials=dict, tls=tls
        )
        self._cluster = cluster
        self._base = f"/{namespace.strip('/')}/{cluster}"
        self._confirmed = ""
        """The system identifier of the database that etcd and Patroni were found to agree on."""

    async def leader(self, limit: float) -> Term | None:
        """``None`` where no member holds the leader key, or the cluster was never set up.

        Raises :class:`~fencegate.lease.ElectionUnavailable`, also where this etcd is not the one of these members.
        """
        key, database = await self._look(limit / 2)
        if key is None or not key.value or database is None:
            return None
        await self._confirm(database.value.decode("utf-8", "replace"), limit / 2)
        return self.term(key.create_revision, key.value.decode("utf-8", "replace"))

    async def hints(self) -> AsyncIterator[None]:
        key = self._key("leader")
        async for _ in self._etcd.watch(key, key + b"\0"):
            yield

    async def hang_up(self) -> None:
        await self._etcd.close()
        await self._members.close()

    async def _look(self, limit: float) -> tuple[KeyValue | None, KeyValue | None]:
        """The leader key and the database's identity, at one moment and through the quorum."""
        body: Json = {
            "success": [{"request_range": {"key": encode(self._key(name))}} for name in ("leader", "initialize")]
        }
        try:
            answer = await self._etcd.call("/v3/kv/txn", body, limit)
        except EtcdRefused as error:
            raise ElectionUnavailable(f"patroni: {error}", "refused") from error
        with reading("etcd"):
            ranges: list[Any] = [part.get("response_range", {}).get("kvs", []) for part in answer.get("responses", [])]
            leader, database = (KeyValue.of(found[0]) if found else None for found in ranges)
            return leader, database

    async def _confirm(self, database: str, limit: float) -> None:
        """Once per database: a member says that it runs this one. The identity survives every failover."""
        if database == self._confirmed:
            return
        answer = (await self._members.call("GET", "/patroni", limit)).json
        with reading("patroni"):
            scope, found = answer["patroni"]["scope"], str(answer["database_system_identifier"])
        if (scope, found) != (self._cluster, database):
            raise ElectionUnavailable(
                f"patroni: a member says that it is of cluster {scope!r} with database {found}, and etcd says "
                f"{self._cluster!r} with {database}: election.endpoints and election.dcs are of different clusters",
                "refused",
            )
        self._confirmed = database

    def _key(self, name: str) -> bytes:
        return f"{self._base}/{name}".encode()


def _judge(endpoint: str, answer: Answer) -> None:
    """A member that cannot tell its database's identity, since it only starts, is no witness."""
    found = answer.json
    told = isinstance(found, dict) and isinstance(found.get("patroni"), dict) and "scope" in found["patroni"]
    if not told:
        raise ElectionUnavailable(f"{endpoint} answered HTTP {answer.status}, not as Patroni does", "refused")
    if not found.get("database_system_identifier"):
        raise ElectionUnavailable(f"{endpoint}: its database does not run yet", "refused")
