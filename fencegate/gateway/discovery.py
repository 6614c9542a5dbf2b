"""Discovery: ``GET /.well-known/fencegate/leader/{role}`` says who leads, without a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import unquote_to_bytes

from fencegate.errors import Refusal, problem
from fencegate.fence import Verdict
from fencegate.gateway.admission import Places, Presented, leader_of, refusal_for, successor_of
from fencegate.gateway.caller import Callers
from fencegate.gateway.replies import leader_document, read_reply
from fencegate.gateway.request import Refused, Reply, Request, refused
from fencegate.gateway.routes import RouteTable
from fencegate.lease import LeadershipView

PREFIX: Final = "/.well-known/fencegate/leader/"


def role_asked(path: str) -> str:
    """The role in the path: percent-decoded once, slashes and encoded slashes alike."""
    return unquote_to_bytes(path[len(PREFIX) :].encode("utf-8", "surrogateescape")).decode("utf-8", "replace")


def discover(
    request: Request, routes: RouteTable, view: LeadershipView, places: Places, callers: Callers | None = None
) -> Reply:
    """200 ``{role, leader, token, token_text, region}``.

    Raises ``unknown_role``, ``no_leader`` or ``fence_unavailable``.

    A role with grants has one here for a caller that may write: such an answer is that caller's alone.
    Raises ``request_malformed`` then where the caller is named unclearly.
    """
    if request.method not in ("GET", "HEAD"):
        allow: dict[str, object] = {"allow": "GET, HEAD"}
        raise Refused(Refusal(problem("method_not_allowed"), "Discovery is only read.", extra=allow))
    role = role_asked(request.path)
    family = routes.family_of(role)
    if family is None:
        raise refused("unknown_role", "No role of this name is configured here.")
    observed = view.observed(role)
    leader = leader_of(observed)
    if leader is None:
        refusal = refusal_for(Verdict.NOT_LEADING, Presented(role, None), None, observed, places)
        raise Refused(refusal)
    if leader.lease_expires_in_ms is not None:
        leader = replace(leader, lease_expires_in_ms=max(0, leader.lease_expires_in_ms - round(observed.age * 1000)))
    document: dict[str, object] = {
        "role": role,
        "leader": leader_document(leader),
        "token": leader.token,
        "token_text": str(leader.token),
        "region": places.region,
    }
    successor = successor_of(observed, places)
    if successor is not None:
        document["incoming"] = leader_document(successor)
    granting = routes.granting_of(family)
    if granting is None:
        return read_reply(places.region, document, cache=b"max-age=1")
    caller = "" if callers is None else callers.of(request)
    if routes.admits(family, caller):
        document.update(granting.handed_to(caller, role, leader.token))
    return read_reply(places.region, document, cache=b"private, no-store")
