"""The async client: discovers the leader, stamps its token, and retries by the wire contract.

The decisions are those of :mod:`fencegate.client.machine`; this module only does them: it waits, asks and sends.
"""

from __future__ import annotations

import asyncio
import random
import ssl as tls
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, TypedDict, Unpack

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from fencegate import __version__
from fencegate.client import machine
from fencegate.client.answers import Answer, Lost
from fencegate.client.discovery import Leaders
from fencegate.client.exchange import DOCUMENT_LIMIT, Reply, send_once
from fencegate.client.failures import FencedError, LeadershipLost, OutcomeUnknown, error_of
from fencegate.client.machine import Done, Fail, Found, Nobody, Operation, Rediscover, Send
from fencegate.client.policy import Policy, RetryBudget
from fencegate.client.request import (
    Response,
    Wanted,
    checked_deadline,
    checked_grant,
    checked_settings,
    checked_token,
    response_of,
    stamped,
    wanted,
)
from fencegate.client.tries import traced_try
from fencegate.telemetry.tracing import Tracing

USER_AGENT = f"fencegate-python/{__version__}"
_OF_GRANTS = frozenset({"grant_required", "grant_invalid", "grant_expired"})
_NEWS = frozenset({"stale_token", "not_leader", "no_leader", "draining", "token_not_issued"})
"""Refusals after which the leader that was known is asked for anew."""


class Options(TypedDict, total=False):
    """The further arguments of :meth:`FencedClient.post` and its like, as in :meth:`FencedClient.request`."""

    data: bytes | None
    params: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    idempotency_key: str | bool | None
    token: int | None
    grant: str | Callable[[], str] | None
    deadline: float | None


class Pin(Protocol):
    """A term whose token a client is bound to. ``lost`` is set when the term is over."""

    token: int
    lost: asyncio.Event

    def check(self) -> None:
        """Raise :class:`LeadershipLost` if the term is over."""
        ...

    def remaining(self) -> float:
        """Seconds for which the term surely lasts."""
        ...

    def grant(self) -> str | None:
        """What goes with the token now, where gateways ask for a grant."""
        ...

    def unsettled(self) -> None:
        """A write ended here without being known to have ended: it may be under way for as long as the term lasts."""
        ...

    def over(self, code: str) -> LeadershipLost:
        """A gateway says that the term is over: mark it, and give the exception to raise."""
        ...


class FencedClient:
    """Writes to the leader of one role, through any of its gateways. Use it as ``async with``.

    ``urls`` are the origins that may ever be sent to: a hint or a discovery that names another one is not
    followed. ``deadline`` is the seconds for a whole operation, retries and waits included; ``try_timeout``
    those for one try; ``discovery_timeout`` those for asking one gateway who leads; ``leader_max_age`` how long
    the answer is used unrefused. ``retry_ratio`` and ``retry_burst`` bound the retries of all operations together.
    ``session``: an aiohttp session of your own; it stays open, and its middlewares are not used. ``ssl``: as in
    aiohttp. ``tracing``: a span for each try, such as by ``fencegate.telemetry.otel.OpenTelemetry()``.

    Raises :class:`fencegate.errors.ConfigurationError` for settings that make no sense.
    """

    def __init__(
        self,
        urls: Sequence[str],
        role: str,
        *,
        deadline: float = 30.0,
        try_timeout: float = 10.0,
        discovery_timeout: float = 2.0,
        leader_max_age: float = 60.0,
        retry_ratio: float = 0.1,
        retry_burst: float = 10.0,
        max_tries: int = 20,
        backoff_base: float = 0.1,
        backoff_cap: float = 2.0,
        retry_after_cap: float = 15.0,
        max_answer_bytes: int = 64 * 1024 * 1024,
        session: aiohttp.ClientSession | None = None,
        ssl: tls.SSLContext | bool | None = None,
        tracing: Tracing | None = None,
        _pin: Pin | None = None,
    ) -> None:
        origins = checked_settings(
            urls,
            role,
            {
                "deadline": deadline,
                "try_timeout": try_timeout,
                "discovery_timeout": discovery_timeout,
                "max_tries": max_tries,
                "backoff_base": backoff_base,
                "backoff_cap": backoff_cap,
                "retry_after_cap": retry_after_cap,
                "max_answer_bytes": max_answer_bytes,
            },
        )
        self.role = role
        self._deadline = deadline
        self._discovery_timeout = discovery_timeout
        self._policy = Policy(origins, try_timeout, max_tries, 2, backoff_base, backoff_cap, retry_after_cap)
        self._budget = RetryBudget(max(0.0, retry_ratio), max(0.0, retry_burst), max(0.0, retry_burst))
        self._max_answer = max_answer_bytes
        self._leaders = Leaders(role, origins, self._ask, leader_max_age)
        self._session, self._own_session = session, session is None
        self._ssl: tls.SSLContext | bool = True if ssl is None else ssl
        self._tracing = tracing
        self._pin = _pin
        self._closed = False
        self.in_flight = 0
        """Operations under way."""

    async def __aenter__(self) -> Self:
        self._closed = False
        if self._own_session:
            # A short keep-alive: a connection that the other side has just dropped makes a try's outcome unknown.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=5.0), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the client. Operations under way raise; those whose outcome is open raise :class:`OutcomeUnknown`."""
        self._closed = True
        await self._leaders.close()
        if self._own_session and self._session is not None:
            await self._session.close()

    async def post(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``POST``: see :meth:`request`."""
        return await self.request("POST", path, json=json, **options)

    async def put(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``PUT``: see :meth:`request`."""
        return await self.request("PUT", path, json=json, **options)

    async def patch(self, path: str, *, json: object = None, **options: Unpack[Options]) -> Response:
        """``PATCH``: see :meth:`request`."""
        return await self.request("PATCH", path, json=json, **options)

    async def delete(self, path: str, **options: Unpack[Options]) -> Response:
        """``DELETE``: see :meth:`request`."""
        return await self.request("DELETE", path, **options)

    async def get(self, path: str, **options: Unpack[Options]) -> Response:
        """A read, at the leader where one is known, else at any gateway: see :meth:`request`."""
        return await self.request("GET", path, **options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | bool | None = None,
        token: int | None = None,
        grant: str | Callable[[], str] | None = None,
        deadline: float | None = None,
    ) -> Response:
        """One logical operation: sent until it is answered, refused for good, or out of time (``deadline``, seconds).

        ``idempotency_key``: ``None`` makes one for this write and keeps it over all tries; ``False`` sends none,
        and then a lost answer is never followed by a second try. ``token`` is a term of your own: it is presented
        as it is and never replaced; ``grant`` goes with it where gateways ask for one, and a function is called for
        each try. Returns the target's answer, whatever its status. Raises a :class:`FencedError`, and ``ValueError`` or
        ``TypeError`` for a request that cannot be sent.
        """
        want = wanted(
            method, path, json=json, data=data, params=params, headers=headers, idempotency_key=idempotency_key
        )
        if self._pin is not None and token is not None:
            raise ValueError("the client of a term presents that term's token and no other; leave token out")
        grants = checked_grant(token, grant) if self._pin is None else self._pin.grant
        limit = self._deadline if deadline is None else checked_deadline(deadline)
        pinned = checked_token(token if self._pin is None else self._pin.token)
        self._budget = self._budget.earned()
        self.in_flight += 1
        try:
            return await _Running(self, want, self._operation(want, pinned, limit), grants).run()
        except (asyncio.CancelledError, OutcomeUnknown):
            if self._pin is not None and not want.read:
                self._pin.unsettled()
            raise
        finally:
            self.in_flight -= 1

    def _operation(self, want: Wanted, pinned: int | None, limit: float) -> Operation:
        known = self._leaders.known()
        deadline = _now() + limit
        if pinned is not None and not want.read:
            origin = None if known is None else known.origin
            return Operation(deadline, origin, pinned, want.key, pinned=True)
        if known is None:
            return Operation(deadline, key=want.key, read=want.read)
        return Operation(deadline, known.origin, known.token, want.key, read=want.read, grant=known.grant)

    async def _exchange(
        self, origin: str, want: Wanted, headers: CIMultiDict[str], limit: float, answer_limit: int
    ) -> tuple[Answer | Lost, Reply | None]:
        if self._session is None:
            raise RuntimeError("the client is not open: use it as 'async with FencedClient(...) as client'")
        headers.setdefault("User-Agent", USER_AGENT)
        return await send_once(
            self._session,
            want.method,
            URL(origin + want.path),
            headers=headers,
            body=want.body,
            limit=limit,
            answer_limit=answer_limit,
            ssl=self._ssl,
        )

    async def _ask(self, origin: str, path: str) -> tuple[Answer | Lost, Reply | None]:
        question = Wanted("GET", path, {}, None, None)
        headers = CIMultiDict({"Accept": "application/json"})
        return await self._exchange(origin, question, headers, self._discovery_timeout, DOCUMENT_LIMIT)


class _Running:
    """One operation being driven: does what the machine decides until it says Done or Fail."""

    def __init__(
        self, client: FencedClient, want: Wanted, operation: Operation, grants: Callable[[], str | None] | None
    ) -> None:
        self._client = client
        self._grants = grants
        self._want = want
        self._operation = operation
        self._detail = ""
        self._timed_out = False
        self._answer: Answer | None = None
        self._reply: Reply | None = None

    async def run(self) -> Response:
        decision: machine.Decision = machine.begin(self._client._policy, self._operation, _now())
        while True:
            if isinstance(decision, Fail):
                raise self._error(decision)
            if isinstance(decision, Done):
                return self._done()
            self._operation = decision.operation
            await self._wait_until(decision.not_before)
            decision = self._stopped() or await self._do(decision)
            if isinstance(decision, Send):
                # In the same step as the decision, so that no other operation decides on the same budget.
                self._client._budget = self._client._budget.spent(decision.cost)

    async def _do(self, decision: Send | Rediscover) -> machine.Decision:
        if isinstance(decision, Send):
            return await self._send(decision.operation)
        return await self._discover(decision.operation)

    async def _send(self, operation: Operation) -> machine.Decision:
        client, want, started = self._client, self._want, _now()
        late = machine.expired(operation, started)
        if late is not None or operation.origin is None:
            return late or machine.given_up(operation, machine.UNREACHABLE)
        origin = operation.origin
        if operation.pinned and self._grants is not None:
            try:
                operation = replace(operation, grant=self._grants())
            except Exception:
                if not operation.unknown:
                    raise
                return machine.given_up(operation, "no_grant")
        limit = min(client._policy.try_timeout, operation.deadline - started)
        if client._pin is not None and not want.read:
            limit = max(0.001, min(limit, client._pin.remaining()))
        headers = stamped(want, operation, limit)
        if client._tracing is None:
            answer, self._reply = await client._exchange(origin, want, headers, limit, client._max_answer)
        else:
            with traced_try(client._tracing, want, operation, client.role, headers) as tell:
                answer, self._reply = await client._exchange(origin, want, headers, limit, client._max_answer)
                tell(answer)
        self._operation = replace(operation, tries=operation.tries + 1)
        self._note(answer, operation)
        return machine.observe(client._policy, operation, answer, **self._circumstances())

    async def _discover(self, operation: Operation) -> machine.Decision:
        floor = max(operation.floor, operation.token or 0)
        result: Found | Nobody = await self._client._leaders.find(floor, operation.deadline)
        if isinstance(result, Nobody) and result.code:
            self._detail = result.detail
        return machine.found(self._client._policy, operation, result, **self._circumstances())

    def _circumstances(self) -> dict[str, float]:
        return {"now": _now(), "jitter": random.random(), "budget": self._client._budget.left}

    def _note(self, answer: Answer | Lost, sent: Operation) -> None:
        leaders = self._client._leaders
        self._detail = answer.detail
        self._timed_out = self._timed_out or (isinstance(answer, Lost) and answer.timed_out)
        if isinstance(answer, Lost):
            self._answer = None
            if not answer.sent:
                leaders.forget(sent.origin, sent.token)
            return
        self._answer = answer
        if sent.read or sent.origin is None or sent.token is None or answer.outcome is None:
            return
        if answer.applied == "yes":
            leaders.learn(sent.origin, sent.token, None if sent.pinned else sent.grant)
        elif answer.outcome in _OF_GRANTS:
            leaders.forget_grant(sent.origin, sent.token, sent.grant)
        elif answer.outcome in _NEWS:
            leaders.forget(sent.origin, sent.token)

    def _done(self) -> Response:
        if self._answer is None or self._reply is None:
            raise RuntimeError("done without an answer")
        return response_of(self._operation, self._answer, self._reply, self._operation.tries)

    async def _wait_until(self, instant: float) -> None:
        delay, pin = instant - _now(), self._client._pin
        if delay <= 0:
            return
        if pin is None:
            await asyncio.sleep(delay)
            return
        try:
            await asyncio.wait_for(pin.lost.wait(), delay)
        except TimeoutError:
            return

    def _stopped(self) -> Fail | None:
        """The reasons to end between two tries. A term that is over raises, unless a try may have been applied."""
        if self._client._closed:
            return machine.given_up(self._operation, "client_closed")
        pin = self._client._pin
        if pin is not None and not self._want.read:
            try:
                pin.check()
            except LeadershipLost as lost:
                if not self._operation.unknown:
                    raise
                self._detail = str(lost)
                return machine.given_up(self._operation, "leadership_lost")
        return None

    def _error(self, fail: Fail) -> FencedError | LeadershipLost:
        error = error_of(fail, self._client.role, self._detail, timed_out=self._timed_out)
        pin = self._client._pin
        if pin is not None and fail.superseded:
            lost = pin.over(fail.operation.code)
            lost.__cause__ = error
            return error if isinstance(error, OutcomeUnknown) else lost
        return error


def _now() -> float:
    return asyncio.get_running_loop().time()
