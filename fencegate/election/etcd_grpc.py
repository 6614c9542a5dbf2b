"""The second transport to etcd: the stubs of the ``etcd3`` package over gRPC, instead of the JSON gateway.

Only the stubs: that package's own client knows one endpoint and waits for ever by default. There is one channel
per endpoint, each call has a limit, and nothing of it blocks the event loop. The calls are those of
:class:`~fencegate.election.etcd_gateway.EtcdGateway`, whose rotation, retries and authentication are used as they
are: a body in JSON and a message of protobuf are two spellings of one thing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from fencegate.access.client_tls import ClientTls
from fencegate.access.refusals import advice_on_text
from fencegate.election.etcd_gateway import TRANSIENT, EtcdGateway, EtcdRefused, Json
from fencegate.lease import ElectionUnavailable

_VARIABLE: Final = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
# The package's generated code is too old for protobuf's C implementation, and protobuf chooses when first imported.
if "google.protobuf" not in sys.modules:
    os.environ.setdefault(_VARIABLE, "python")

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import grpc
        from etcd3 import etcdrpc
        from google.protobuf import json_format
except ImportError as error:
    raise ImportError("client = \"etcd3\" needs the package etcd3: pip install 'fencegate[etcd3]'") from error
except TypeError as error:
    raise ImportError(
        f"the package etcd3 needs {_VARIABLE}=python in the environment of this process: another library imported"
        " protobuf before, or the variable is set to something else"
    ) from error

_LONGEST: Final = 60.0
"""Seconds after which gRPC itself ends a call, whatever became of the one who waits for it."""

_PATIENCE: Final = 0.25
"""Seconds in which a member that is well has answered."""

_OF_ITS_OWN: Final = [("grpc.use_local_subchannel_pool", 1)]
"""Channels to one address share a connection otherwise: a new one would begin with what the last one was left for."""

_CALLS: Final[dict[str, tuple[Any, str, Any]]] = {
    "/v3/kv/range": (etcdrpc.KVStub, "Range", etcdrpc.RangeRequest),
    "/v3/kv/put": (etcdrpc.KVStub, "Put", etcdrpc.PutRequest),
    "/v3/kv/txn": (etcdrpc.KVStub, "Txn", etcdrpc.TxnRequest),
    "/v3/lease/grant": (etcdrpc.LeaseStub, "LeaseGrant", etcdrpc.LeaseGrantRequest),
    "/v3/lease/revoke": (etcdrpc.LeaseStub, "LeaseRevoke", etcdrpc.LeaseRevokeRequest),
    "/v3/cluster/member/list": (etcdrpc.ClusterStub, "MemberList", etcdrpc.MemberListRequest),
    "/v3/maintenance/status": (etcdrpc.MaintenanceStub, "Status", etcdrpc.StatusRequest),
    "/v3/auth/authenticate": (etcdrpc.AuthStub, "Authenticate", etcdrpc.AuthenticateRequest),
}
_KEEPALIVE: Final = "/v3/lease/keepalive"


@dataclass(slots=True)
class _Watch:
    """A watch under way in a thread of its own, which ends with the call."""

    loop: asyncio.AbstractEventLoop
    call: Any
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    keys: set[bytes] = field(default_factory=set)
    """Those that changed, until they are taken."""
    ended: bool = False

    def follow(self) -> None:
        try:
            for answer in self.call:
                if answer.canceled:
                    break
                if answer.events:
                    self._tell({event.kv.key for event in answer.events}, False)
        except grpc.RpcError:
            pass
        finally:
            self._tell(set(), True)

    def _tell(self, keys: set[bytes], ended: bool) -> None:
        def note() -> None:
            self.keys |= keys
            self.ended = self.ended or ended
            self.changed.set()

        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            self.loop.call_soon_threadsafe(note)


class EtcdGrpc(EtcdGateway):
    """Calls to an etcd cluster over gRPC. Takes and raises what :class:`EtcdGateway` does."""

    def __init__(
        self,
        endpoints: list[str],
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(endpoints, username=username, password=password, tls=tls)
        self._channels: dict[str, grpc.Channel] = {}

    def only(self, endpoint: str) -> EtcdGrpc:
        return EtcdGrpc([endpoint], username=self._username, password=self._password, tls=self.tls)

    async def watch(self, key: bytes, range_end: bytes) -> AsyncIterator[set[bytes]]:
        endpoint = self.endpoint
        try:
            async with asyncio.timeout(5):
                headers = await self._auth_headers(endpoint, 5)
        except (TimeoutError, ElectionUnavailable, EtcdRefused):
            return
        try:
            stub = etcdrpc.WatchStub(self._channel(endpoint))
        except ElectionUnavailable:
            return
        create = etcdrpc.WatchCreateRequest(key=key, range_end=range_end)
        stop = threading.Event()

        def requests() -> Iterator[Any]:
            yield etcdrpc.WatchRequest(create_request=create)
            stop.wait()  # the watch ends when the requests do

        metadata = (("hasleader", "true"), *_metadata(headers))
        call = stub.Watch(requests(), metadata=metadata)
        watch = _Watch(asyncio.get_running_loop(), call)
        threading.Thread(target=watch.follow, name="etcd3: watch", daemon=True).start()
        try:
            while True:
                await watch.changed.wait()
                watch.changed.clear()
                if watch.ended:
                    return
                keys, watch.keys = watch.keys, set()
                yield keys
        finally:
            stop.set()
            call.cancel()

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    # -- one attempt --------------------------------------------------------------------------------

    async def _post(self, endpoint: str, path: str, body: Json, headers: dict[str, str]) -> Json:
        try:
            if path == _KEEPALIVE:
                answer = await self._keepalive(endpoint, body, headers)
                return {"result": json_format.MessageToDict(answer, preserving_proto_field_name=True)}
            stub, method, kind = _CALLS[path]
            request = json_format.ParseDict(body, kind())
            channel = self._channel(endpoint)
            send = getattr(stub(channel), method)
            with self._leaving(channel):
                answer = await _outcome(send.future(request, timeout=_LONGEST, metadata=_metadata(headers)))
        except grpc.RpcError as error:
            raise self._refused(endpoint, error) from error
        found: Json = json_format.MessageToDict(answer, preserving_proto_field_name=True)
        return found

    async def _keepalive(self, endpoint: str, body: Json, headers: dict[str, str]) -> Any:
        """One sign of life: a stream of one request. Its thread ends with the call, which ends with our waiting."""
        request = json_format.ParseDict(body, etcdrpc.LeaseKeepAliveRequest())
        channel = self._channel(endpoint)
        stub = etcdrpc.LeaseStub(channel)
        call = stub.LeaseKeepAlive(iter([request]), timeout=_LONGEST, metadata=_metadata(headers))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def settle(outcome: Any) -> None:
            if not answer.done():
                if isinstance(outcome, BaseException):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

        def receive() -> None:
            try:
                outcome: Any = next(call)
            except StopIteration:
                outcome = ElectionUnavailable(f"{endpoint}: the keepalive ended unanswered", "connection")
            except grpc.RpcError as error:
                outcome = error
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, outcome)

        threading.Thread(target=receive, name="etcd3: keepalive", daemon=True).start()
        try:
            with self._leaving(channel):
                return await answer
        finally:
            call.cancel()

    @contextlib.contextmanager
    def _leaving(self, channel: grpc.Channel) -> Iterator[None]:
        """Whoever waited in vain leaves the channel: gRPC keeps a dead connection until the kernel gives it up.

        Not who did not wait: everybody's calls go by that channel, and would fail with it.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        except asyncio.CancelledError:
            if loop.time() - began < _PATIENCE:
                raise
            for endpoint, known in list(self._channels.items()):
                if known is channel:
                    self._channels.pop(endpoint).close()
            raise

    def _refused(self, endpoint: str, error: Any) -> Exception:
        code, message = int(error.code().value[0]), self._quoted(str(error.details() or ""))
        if code == 14 and endpoint in self._channels:
            # gRPC waits longer and longer before it connects again: ours is to decide when.
            self._channels.pop(endpoint).close()
        if code in TRANSIENT:
            return ElectionUnavailable(f"{endpoint}: {advice_on_text(message)}", TRANSIENT[code])
        return EtcdRefused(code, message)

    def _channel(self, endpoint: str) -> grpc.Channel:
        if self._closed:
            raise ElectionUnavailable("the election was closed", "refused")
        channel = self._channels.get(endpoint)
        if channel is None:
            address = urlsplit(endpoint).netloc
            if endpoint.startswith("https:"):
                channel = _secure_channel(address, self.tls)
            else:
                channel = grpc.insecure_channel(address, _OF_ITS_OWN)
            self._channels[endpoint] = channel
        return channel


def _secure_channel(address: str, tls: ssl.SSLContext | None) -> grpc.Channel:
    """By the files as they are now: gRPC takes no ``ssl.SSLContext``, and never looks at them again."""
    if not isinstance(tls, ClientTls):
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(), _OF_ITS_OWN)
    files = tls.contents
    options = [*_OF_ITS_OWN, *([("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else [])]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(files.ca, files.key, files.cert), options)


async def _outcome(call: Any) -> Any:
    """The result of a gRPC future; cancelling us cancels the call."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell(_call: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(ended.set)

    call.add_done_callback(tell)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        call.cancel()
        raise
    return call.result()


def _metadata(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return (("token", headers["Authorization"]),) if "Authorization" in headers else ()
