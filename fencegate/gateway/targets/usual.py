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


def start_read(target: HttpTarget, exchange: Exchange) -> Pending | None:
    """The read, sent at once. ``None``: something has to be waited for; :meth:`HttpTarget.read` does it all.

    Raises ``deadline_exceeded``.
    """
    request, now = exchange.request, exchange.around.clock()
    if request.expects_continue or not request.body.here:
        return None
    exchange.time_left(now)
    if (connection := target.pool.take_idle(read=True)) is None:
        return None
    reading = _Reading(exchange, target, connection)
    reading.send(now)
    return reading


def start_write(target: HttpTarget, exchange: Exchange) -> Pending | None:
    """The write, put to the store at once. ``None``: something else comes first; :meth:`HttpTarget.write` does it all.

    Raises ``fence_unavailable``, or ``deadline_exceeded``.
    """
    request, around = exchange.request, exchange.around
    here = request.body.here and not request.expects_continue and (request.content_length or 0) <= READ_FIRST
    if not (here and exchange.enforce) or around.seen.below(exchange.role, exchange.token or 0):
        return None
    now = around.clock()
    limit = exchange.time_left(now)
    writing = _Writing(exchange, target, now)
    try:
        around.store.ask(exchange.forward(limit), limit - reserve(limit), writing.go_to_upstream)
    except (Unavailable, OutcomeUnknown) as error:
        exchange.unanswered(error)  # Raises: the fence is enforced here.
    return writing


class _OnItsWay(Pending):
    """What goes on by itself. ``_failure``: why it does not, and the coroutines have to say so."""

    __slots__ = ("_failure", "_target")

    def __init__(self, exchange: Exchange, target: HttpTarget) -> None:
        super().__init__(exchange)
        self._target = target
        self._failure: Exception | None = None


class _Reading(_OnItsWay):
    """A read that was sent."""

    __slots__ = ("_connection",)

    def __init__(self, exchange: Exchange, target: HttpTarget, connection: UpstreamConnection) -> None:
        super().__init__(exchange, target)
        self._connection = connection

    def send(self, now: float) -> None:
        exchange, connection = self.exchange, self._connection
        try:
            body = exchange.request.body.at_once() or b""
            self._target.send_at_once(exchange, connection, None, body, now, self._call)
        except Exception as error:
            self._failure = error
            connection.loop.call_soon(self._call)

    def give_up(self) -> None:
        self._connection.give_up()

    def go_on(self) -> Reply | None:
        connection, pool = self._connection, self._target.pool
        head = connection.answer
        if head is None or self.exchange.request.method == "HEAD" or (content := connection.whole_body()) is None:
            return None
        pool.deadlines.discard(connection)
        pool.release(connection)
        return whole(head, content, False, FROM_UPSTREAM + region_block(self.exchange.around.places.region))

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        answer = _answer_of(self._connection, self._failure)
        return self._target.read_on(exchange, True, self._connection, answer)


class _Writing(_OnItsWay):
    """A write on its way: the store was asked; then it is sent; then its answer is kept, where it has a key."""

    __slots__ = (
        "_admission", "_began", "_connection", "_content", "_duration", "_found", "_payload", "_settled",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, target: HttpTarget, began: float) -> None:
        super().__init__(exchange, target)
        self._began = began
        self._found: Admission | BaseException | None = None
        self._connection: UpstreamConnection | None = None
        self._content: bytes | None = None
        self._settled: asyncio.Future[None] | None = None

    def give_up(self) -> None:
        if self._settled is not None:
            self._settled.cancel()
        elif self._connection is not None:
            self._connection.give_up()
        elif self._found is None:
            self._found = asyncio.CancelledError()
            asyncio.get_running_loop().call_soon(self._call)

    def go_to_upstream(self, found: Admission | Exception) -> None:
        """The store's word is there."""
        if self._found is not None:
            self._take_back(found)
            return
        self._found = found
        if not isinstance(found, Admission) or found.effect is not Effect.APPLIED or found.verdict is not Verdict.ADMIT:
            self._call()
            return
        exchange, target = self.exchange, self._target
        if (connection := target.pool.take_idle()) is None:
            self._call()
            return
        now = exchange.around.clock()
        target.one_more()
        self._admission, self._connection, self._duration = found, connection, now - self._began
        try:
            exchange.around.seen.note(exchange.role, Verdict.ADMIT, found.max_token_seen, now)
            self._payload = payload = Payload(exchange.request, exchange.route.max_body_bytes, keyed=bool(exchange.key))
            payload.take()
            target.send_at_once(exchange, connection, found, payload.first, now, self._settle)
        except Exception as error:
            self._failure = error
            self._call()

    def _settle(self) -> None:
        """The upstream's word is there."""
        exchange, connection = self.exchange, self._connection
        assert connection is not None
        if self._failure is not None:
            return  # It ended before, and the connection by that.
        try:
            if (head := connection.answer) is not None and (content := connection.whole_body()) is not None:
                self._target.pool.deadlines.discard(connection)
                answer = kept(head, content, self._payload.digest()) if exchange.key else NO_KEY
                settled = exchange.around.store.settle(self._admission.ticket, answer)
                self._content = content
                if settled is not SETTLED:
                    self._settled = asyncio.ensure_future(settled)
                    self._settled.add_done_callback(self._call)
                    return
        except Exception as error:
            self._failure = error
        self._call()

    def go_on(self) -> Reply | None:
        connection, settled, exchange = self._connection, self._settled, self.exchange
        if connection is None or self._content is None or (head := connection.answer) is None:
            return None
        if settled is not None and (settled.cancelled() or settled.exception() is not None):
            return None
        target = self._target
        target.one_less()
        reply = target.reply(exchange, True, self._admission, connection, head, self._content)
        exchange.accepted(replayed=False, check_duration=self._duration)
        return reply

    def station(self, exchange: Exchange) -> Awaitable[Reply]:
        connection, target = self._connection, self._target
        if connection is None:
            return target.write(exchange, self._found, self._began)
        if self._settled is not None:
            return self._not_settled(connection, self._settled)
        answer = _answer_of(connection, self._failure)
        return target.write_on(exchange, self._payload, self._admission, self._duration, connection, answer)

    async def _not_settled(self, connection: UpstreamConnection, settled: asyncio.Future[None]) -> Reply:
        """It was given up as the store was told of its answer."""
        self._target.pool.release(connection)
        self._target.one_less()
        await settled
        raise asyncio.CancelledError

    def _take_back(self, found: Admission | Exception) -> None:
        """It was given up before the store had answered: nothing has been sent, and nothing will be."""
        if isinstance(found, Admission) and found.ticket:
            settled = self.exchange.around.store.settle(found.ticket, None, sent=False)
            if settled is not SETTLED:
                self._target.errand(settled)


async def _answer_of(connection: UpstreamConnection, failure: Exception | None) -> ResponseHead:
    if failure is not None:
        raise failure
    return await connection.head()
