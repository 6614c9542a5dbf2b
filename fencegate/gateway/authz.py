"""The external authorizer: ``/-/authz/{role}`` says whether a write may pass; a front proxy asks, then forwards.

The level is *authorizer*: a newer term can begin between the yes and the upstream's commit. The check is the whole
contract's, and as strict as any: in the store, raising the fence where a newer term's token is proved.

Every request is judged as a write, whatever its method: proxies ask with GET. Only where the gateway's configuration
names a header (``method_from`` of the role's ``authz`` route) does that header's method count; a proxy that lets
clients send that header lets them past the fence. The question's own query is no place for it: some proxies append
the client's query to it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from typing import Final, get_args
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson

from fencegate.gateway.caller import Allowed
from fencegate.gateway.exchange import Exchange
from fencegate.gateway.header_lines import Headers, read_fields
from fencegate.gateway.method_override import carries_a_form, hides_a_method, names_a_method
from fencegate.gateway.replies import accepted_headers
from fencegate.gateway.request import SAFE_METHODS, BufferedBody, Reply, Request, refused
from fencegate.gateway.routes import Profile, Route, RouteTable
from fencegate.tokens import HEADER_TOKEN

PREFIX: Final = "/-/authz/"
TIMEOUT: Final = 5.0
"""Seconds for one decision, where no route of target ``authz`` says otherwise."""

_ORIGINAL_TARGETS: Final = frozenset(
    {b"x-forwarded-uri", b"x-original-uri", b"x-original-url", b"x-envoy-original-path"}
)
"""By which Caddy, Traefik, the ingress of nginx and Envoy tell what was asked for. Nobody is believed for one."""
_STATUS: Final = b"X-Fencing-Status"
_PROBLEM: Final = b"X-Fencing-Problem"


@dataclass(frozen=True, slots=True)
class Question:
    """Which role is asked about, and in which profile the answer is wanted."""

    role: str
    profile: Profile


def question_of(request: Request) -> Question:
    """The question in a path and a query: ``profile`` is its first parameter of that name.

    All else is the original request's, which some proxies append. Raises ``request_malformed`` for another profile.
    """
    name = request.path[len(PREFIX) :].encode("utf-8", "surrogateescape")  # the bytes as they came, text or not
    role = unquote_to_bytes(name).decode("utf-8", "replace")
    profiles = [value for name, value in parse_qsl(request.query, keep_blank_values=True) if name == "profile"]
    profile = next(iter(profiles), "pass")
    for known in get_args(Profile):
        if profile == known:
            return Question(role, known)
    raise refused("request_malformed", f"The profile is one of {', '.join(get_args(Profile))}.")


def as_write(request: Request) -> Request:
    """The request as it is judged: a write without a body. The certificate is the asking proxy's, not the caller's."""
    return replace(
        request,
        method="POST",
        query="",
        body=BufferedBody(),
        content_length=0,
        expects_continue=False,
        certificate="",
    )


def is_read(request: Request, method_from: str) -> bool:
    """Whether the header that the proxy vouches for says, on one line, that the original request is safe.

    Never of one that hides another method or asks for another protocol, as far as the proxy passes on what could; the
    body is not seen here, so that a form is enough.
    """
    if not method_from or hides_a_method(request) or carries_a_form(request.headers):
        return False
    if (request.fields or read_fields(request.headers)).upgrade or any(map(names_a_method, _queries(request))):
        return False
    wanted = method_from.lower().encode("ascii")
    values = [value for name, value in request.headers if name.lower() == wanted]
    return len(values) == 1 and values[0].decode("latin-1") in SAFE_METHODS


def _queries(request: Request) -> Iterator[str]:
    """The queries of the original request, as far as the proxy tells them in a header, or behind its own."""
    yield request.query.partition("?")[2]
    for name, value in request.headers:
        if name.lower() in _ORIGINAL_TARGETS:
            yield value.decode("latin-1").partition("?")[2]


def yes_to_a_read(region: str) -> Reply:
    """A safe request needs no token; it says nothing about a fence."""
    return Reply(200, [(b"X-Fencing-Region", region.encode())])


def route_for(family: str, table: RouteTable) -> Route:
    """The route that a decision on a role of ``family`` is made under: the declared one, or one like it.

    Without one, only the callers that every list of the role's routes has may write.
    """
    declared = table.authorizer_of(family)
    if declared is not None:
        return declared
    lists = [route.callers.patterns for route in table.routes if route.role == family and route.callers is not None]
    callers = Allowed(frozenset.intersection(*lists)) if lists else None
    granting = table.granting_of(family)
    return Route(PREFIX + family, family, "authz", timeout=TIMEOUT, callers=callers, granting=granting)


async def decide(exchange: Exchange) -> Reply:
    """200 where a write of this token may pass now. Raises the contract's refusals.

    An ``Idempotency-Key`` is looked at for its form only: what became of an operation is the upstream's to know.
    """
    exchange.key = ""
    started = exchange.around.clock()
    admission = await exchange.admitted(0)
    # Nobody here sees the write: its mark would mean nothing.
    await exchange.around.store.settle(admission.ticket, None, sent=False)
    exchange.accepted(replayed=False, check_duration=exchange.around.clock() - started - exchange.held)
    headers = accepted_headers(exchange.around.places.region, admission.max_token_seen)
    return Reply(200, [*headers, (HEADER_TOKEN.encode(), b"%d" % (exchange.token or 0))])


async def answered(question: Question, reply: Reply | Awaitable[Reply]) -> Reply:
    """The reply in the form that the proxy can take."""
    return in_profile(reply if isinstance(reply, Reply) else await reply, question.profile)


def in_profile(reply: Reply, profile: Profile) -> Reply:
    """``nginx``: every refusal is a 403, since ``auth_request`` takes no other. ``envoy``: no 5xx, which it
    would take for a broken authorizer. The real status is in ``X-Fencing-Status``; for nginx, which drops the
    body, the problem document is in ``X-Fencing-Problem`` too.
    """
    if reply.status < 300 or profile == "pass":
        return reply
    assert isinstance(reply.body, bytes)
    headers: Headers = [*reply.headers, (_STATUS, b"%d" % reply.status)]
    if profile == "nginx":
        return replace(reply, status=403, headers=[*headers, (_PROBLEM, _one_line(reply.body))])
    return replace(reply, status=409 if reply.status >= 500 else reply.status, headers=headers)


def _one_line(document: bytes) -> bytes:
    """The JSON in ASCII, as a header's value has to be."""
    return json.dumps(orjson.loads(document), separators=(",", ":")).encode("ascii")
