"""The external authorizer over gRPC, as Envoy and Istio ask it: ``envoy.service.auth.v3.Authorization/Check``.

The same decision as ``/-/authz/{role}``, of the same code. A refusal is a ``denied_response`` with the contract's
status, headers and body. No question is ever answered with an error of gRPC or an ``error_response``: set to fail
open, Envoy would let the unfenced write through.

Three things are Envoy's own word, and what a client sends in their place is not looked at: the role, the context
extension ``role`` of Envoy's route, else the configured one; the method, where the role's route has ``method_from``;
and who calls, the principal of the client's certificate, where callers have an identity by a header. As everywhere,
that is believed of a trusted proxy's address only, which here is that of the one who asks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final
from urllib.parse import quote, unquote

from fencegate.errors import Refusal, problem
from fencegate.gateway import authz
from fencegate.gateway.admission import SOON_MS
from fencegate.gateway.app import Gateway
from fencegate.gateway.envoy_messages import OVERWRITE, STATUSES, CheckRequest, CheckResponse
from fencegate.gateway.method_override import names_a_method
from fencegate.gateway.replies import lines_of, refusal_reply
from fencegate.gateway.request import BufferedBody, Reply, Request
from fencegate.steady_clock import steady_clock
from fencegate.tokens import HEADER_CALLER, HEADER_GRANT

try:
    import grpc
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError("the gRPC authorizer needs gRPC: pip install 'fencegate[envoy]'") from error

SERVICE: Final = "envoy.service.auth.v3.Authorization"
ROLE: Final = "role"
"""The context extension that names the role."""
_PERMISSION_DENIED: Final = 7
_STATUS: Final = "X-Fencing-Status"
_TO_THE_UPSTREAM: Final = frozenset({"x-fencing-max-seen"})
_ENDS_HERE: Final = tuple(
    "".join(spelled)
    for name in (HEADER_GRANT, HEADER_CALLER)
    for spelled in product(*("-_" if character == "-" else character for character in name.lower()))
)
"""What the upstream is not told: a grant is good for whoever has it and the caller's name; and who calls is for a
gateway that forwards to say. In every spelling that some upstreams cannot tell from it."""
_log = logging.getLogger("fencegate.gateway")


class EnvoyAuthorizer:
    """The listener. :meth:`start`, then :meth:`stop`; both once.

    ``role``: for questions that name none. ``identity_header``: the one by which callers are known.
    """

    def __init__(self, gateway: Gateway, *, role: str = "", identity_header: str = "") -> None:
        self._gateway = gateway
        self._role = role
        self._identity_header = identity_header
        self._server: Any = None

    async def start(self, address: str) -> int:
        """Listen on ``host:port``, 0 for a free one; the port. Raises ``OSError``."""
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        method = grpc.unary_unary_rpc_method_handler(self._check)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Check": method}),))
        try:
            port = int(server.add_insecure_port(address))
        except RuntimeError as error:
            raise OSError(str(error)) from error
        self._server = server
        await server.start()
        return port

    async def stop(self, time_limit: float) -> None:
        """Take no more questions, let those under way be answered for ``time_limit`` s."""
        if self._server is not None:
            await self._server.stop(time_limit)

    async def _check(self, message: bytes, context: Any) -> bytes:
        # Bytes in and out: what cannot be read is refused by us, and not by gRPC with an error.
        try:
            return _bytes(await self._decided(message, host_of(context.peer())))
        except Exception:
            _log.exception("unexpected failure of a question; failing closed")
            return _bytes(self._refused("fence_unavailable", "Failed closed."))

    async def _decided(self, message: bytes, peer: str) -> Reply:
        try:
            about = CheckRequest.FromString(message).attributes
        except DecodeError:
            return self._refused("request_malformed", "The question cannot be read.")
        role = _pairs(about.context_extensions).get(ROLE) or self._role
        http = about.request.http
        # A read of that path could be carried out as a write: it is asked about as one.
        method = "POST" if names_a_method(http.path.partition("?")[2]) else http.method
        own_words = {self._method_from(role): method, self._identity_header: about.source.principal}
        own_words.pop("", None)
        return await self._gateway.handle(question(about, role, peer, own_words))

    def _refused(self, code: str, detail: str) -> Reply:
        return refusal_reply(Refusal(problem(code), detail, retry_after_ms=SOON_MS), self._gateway.region)

    def _method_from(self, role: str) -> str:
        routes = self._gateway.routes
        family = routes.family_of(role)
        declared = None if family is None else routes.authorizer_of(family)
        return "" if declared is None else declared.method_from


def question(about: Any, role: str, peer: str, own_words: Mapping[str, str]) -> Request:
    """What is asked, as the authorizer over HTTP would have been asked it. ``about``: an ``AttributeContext``.

    ``own_words``: headers that are Envoy's to set, with what it says; none where it says nothing. Lines of one name
    come joined by commas: two tokens are malformed, as they should be.
    """
    of_envoy = {_folded(name) for name in own_words}
    sent = _pairs(about.request.http.headers).items()
    lines = [line for line in sent if not line[0].startswith(":") and _folded(line[0]) not in of_envoy]
    lines += [line for line in own_words.items() if line[1]]
    return Request(
        method="POST",
        path=authz.PREFIX + quote(role, safe="/"),
        query="",
        headers=[(name.encode(), value.encode()) for name, value in lines],
        body=BufferedBody(),
        content_length=0,
        peer=peer,
        received_at=steady_clock(),
    )


def host_of(peer: str) -> str:
    """The address in gRPC's name of a peer: ``ipv4:127.0.0.1:41234``, ``ipv6:%5B::1%5D:41234``; else ``""``."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


def answer(reply: Reply) -> Any:
    """The reply as Envoy takes it: a ``CheckResponse``."""
    lines = list(lines_of(reply))
    if reply.status == 200:
        passed_on = _options(line for line in lines if line[0].lower() in _TO_THE_UPSTREAM)
        return CheckResponse(status={"code": 0}, ok_response={"headers": passed_on, "headers_to_remove": _ENDS_HERE})
    status = reply.status if reply.status in STATUSES else 403
    if status != reply.status:
        lines.append((_STATUS, str(reply.status)))
    assert isinstance(reply.body, bytes)
    return CheckResponse(
        status={"code": _PERMISSION_DENIED},
        denied_response={"status": {"code": status}, "headers": _options(lines), "body": reply.body.decode()},
    )


def _bytes(reply: Reply) -> bytes:
    return bytes(answer(reply).SerializeToString())


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def _pairs(pairs: Iterable[Any]) -> dict[str, str]:
    return {pair.key: pair.value for pair in pairs}


def _options(lines: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"header": {"key": name, "value": value}, "append_action": OVERWRITE} for name, value in lines]
