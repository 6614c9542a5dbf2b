"""A span around each try of an operation, with the trace carried on to the gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from multidict import CIMultiDict

from fencegate.client.answers import Answer, Lost
from fencegate.client.machine import Operation
from fencegate.client.request import Wanted
from fencegate.telemetry import conventions as names
from fencegate.telemetry.tracing import Span, Tracing


@contextmanager
def traced_try(
    tracing: Tracing, want: Wanted, operation: Operation, role: str, headers: CIMultiDict[str]
) -> Iterator[Callable[[Answer | Lost], None]]:
    """While it is entered one try is under way. ``headers`` get what carries the trace on; hand the answer to what
    this gives.
    """
    origin = operation.origin or ""
    scheme, _, authority = origin.partition("://")
    attributes: dict[str, str | int | float | bool] = {
        **names.method(want.method),
        **names.server(authority, scheme),
        names.URL: origin + names.path(want.path.partition("?")[0]),
        names.ROLE: role,
    }
    if operation.tries:
        attributes[names.RESEND_COUNT] = operation.tries
    if operation.token is not None and not want.read:
        attributes[names.TOKEN] = operation.token
    span = tracing.begin(names.span_name(want.method), "client", attributes)
    try:
        with span.current():
            for name, value in tracing.outgoing():
                headers[name] = value
            yield lambda answer: _tell(span, answer)
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


def _tell(span: Span, answer: Answer | Lost) -> None:
    if isinstance(answer, Lost):
        span.fail("timeout" if answer.timed_out else "connection" if answer.sent else "not_sent")
        return
    found: dict[str, str | int | float | bool] = {names.STATUS: answer.status}
    if answer.outcome is not None:
        found[names.OUTCOME] = answer.outcome
        found[names.APPLIED] = answer.applied
        found[names.REPLAYED] = answer.replayed
        if answer.applied != "yes":
            found[names.REFUSAL] = answer.outcome
    if answer.max_seen is not None:
        found[names.MAX_SEEN] = answer.max_seen
    span.put(found)
    if answer.status >= 400:
        span.fail(str(answer.status))
