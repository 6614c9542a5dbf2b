"""The usual exchange with an upstream, of which all is at hand whenever it is needed: it takes no task.

It goes from one answer to the next: the store's, the upstream's, and the store's again where the upstream's is kept.
Wherever something else comes of it, the coroutines of :class:`HttpTarget` take it from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import SETTLED, Admission, Effect, Verdict
from fencegate.gateway.exchange import Exchange, Pending
from fencegate.gateway.holding import reserve
from fencegate.gateway.replies import region_block
from fencegate.gateway.request import Reply
from fencegate.gateway.targets.answer_bytes import ResponseHead
from fencegate.gateway.targets.http import NO_KEY, READ_FIRST, HttpTarget
from fencegate.gateway.targets.outcomes import FROM_UPSTREAM, kept, whole
from fencegate.gateway.targets.payload import Payload
from fencegate.gateway.targets.upstream import UpstreamConnection


def start_read(target: HttpTarget, exchange: Exchange) -> Reading | None:
    """The read, sent at once. ``None``: something has to be waited for; :meth:`HttpTarget.read` does it all.

    Raises ``deadline_exceeded``.
    """
    request = exchange.request
    if request.expects_continue or not request.body.here:
        return None
    exchange.time_left()
    if (connection := target.pool.take_idle(read=True)) is None:
        return None
    return Reading(exchange, target, connection)


def start_write(target: HttpTarget, exchange: Exchange) -> Writing | None:
    """The write, put to the store at once. ``None``: something else comes first; :meth:`HttpTarget.write` does it all.

    Raises ``fence_unavailable``, or ``deadline_exceeded``.
    """
    request, around = exchange.request, exchange.around
    here = request.body.here and not request.expects_continue and (request.content_length or 0) <= READ_FIRST
    if not (here and exchange.enforce) or around.seen.below(exchange.role, exchange.token or 0):
        return None
    began = around.clock()
    limit = exchange.time_left(began)
    try:
        answer = around.store.ask(exchange.forward(limit), limit - reserve(limit))
    except (Unavailable, OutcomeUnknown) as error:
        exchange.unanswered(error)  # Raises: the fence is enforced here.
        return None
    return Writing(exchange, target, asyncio.ensure_future(answer), began)


class Reading(Pending):
    """The usual read: sent, and its answer comes in one piece."""

    __slots__ = ("_connection", "_target")

    def __init__(self, exchange: Exchange, target: HttpTarget, connection: UpstreamConnection) -> None:
        self._target, self._connection = target, connection
        body = exchange.request.body.at_once() or b""
        super().__init__(exchange, target.sent(exchange, connection, None, body, exchange.around.clock()))

    def go_on(self) -> Reply | None:
        answer, exchange, target, connection = self.answer, self.exchange, self._target, self._connection
        if answer.cancelled() or answer.exception() is not None or exchange.request.method == "HEAD":
            return None
        if (content := connection.whole_body()) is None:
            return None
        target.pool.deadlines.discard(connection)
        target.pool.release(connection)
        return whole(answer.result(), content, False, FROM_UPSTREAM + region_block(exchange.around.places.region))

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._target.read_on(exchange, True, self._connection, self.answer)


class Writing(Pending):
    """The usual write: the store was asked; then it is sent, and its answer comes in one piece; then it is settled."""

    __slots__ = ("_admission", "_began", "_connection", "_content", "_duration", "_head", "_payload", "_target")

    def __init__(self, exchange: Exchange, target: HttpTarget, answer: asyncio.Future[Admission], began: float) -> None:
        super().__init__(exchange, answer)
        self._target = target
        self._began = began
        self._connection: UpstreamConnection | None = None
        self._content: bytes | None = None

    def go_on(self) -> Reply | Pending | None:
        answer = self.answer
        if answer.cancelled() or answer.exception() is not None:
            return None
        if self._connection is None:
            return self._send(answer.result())
        return self._settle(self._connection, answer.result()) if self._content is None else self._reply(self._content)

    def _send(self, admission: Admission) -> Pending | None:
        exchange, target = self.exchange, self._target
        if admission.effect is not Effect.APPLIED or admission.verdict is not Verdict.ADMIT:
            return None
        if (connection := target.pool.take_idle()) is None:
            return None
        now = exchange.around.clock()
        exchange.around.seen.note(exchange.role, Verdict.ADMIT, admission.max_token_seen, now)
        self._admission, self._connection, self._duration = admission, connection, now - self._began
        self._payload = payload = Payload(exchange.request, exchange.route.max_body_bytes, keyed=bool(exchange.key))
        payload.take()
        target.one_more()
        self.answer = target.sent(exchange, connection, admission, payload.first, now)
        return self

    def _settle(self, connection: UpstreamConnection, head: ResponseHead) -> Reply | Pending | None:
        exchange, target = self.exchange, self._target
        if (content := connection.whole_body()) is None:
            return None
        target.pool.deadlines.discard(connection)
        self._content, self._head = content, head
        answer = kept(head, content, self._payload.digest()) if exchange.key else NO_KEY
        settled = exchange.around.store.settle(self._admission.ticket, answer)
        if settled is SETTLED:
            return self._reply(content)
        self.answer = asyncio.ensure_future(settled)
        return self

    def _reply(self, content: bytes) -> Reply:
        exchange, target, connection = self.exchange, self._target, self._connection
        assert connection is not None
        target.one_less()
        exchange.accepted(replayed=False, check_duration=self._duration)
        return target.reply(exchange, True, self._admission, connection, self._head, content)

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        connection, target = self._connection, self._target
        if connection is None:
            return target.write(exchange, self.answer, self._began)
        if self._content is not None:
            return self._not_settled(connection)
        return target.write_on(exchange, self._payload, self._admission, self._duration, connection, self.answer)

    async def _not_settled(self, connection: UpstreamConnection) -> Reply:
        """It was given up as the store was told of its answer. Raises what the store's answer raises."""
        try:
            await self.answer
            raise AssertionError("settled after all")
        finally:
            self._target.pool.release(connection)
            self._target.one_less()
