"""Answers of another shape than the one asked for: the election has not answered, and nothing else may come of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fencegate.errors import Unavailable
from fencegate.lease import ElectionUnavailable, LeaseLost

_SHAPE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextmanager
def reading(system: str) -> Iterator[None]:
    """Around what takes an answer apart. Raises :class:`ElectionUnavailable` where the answer is not as expected."""
    try:
        yield
    except _SHAPE as error:
        raise ElectionUnavailable(
            f"{system}: an answer is not as {system} answers: {type(error).__name__}: {str(error)[:200]}", "refused"
        ) from error


@contextmanager
def asking(system: str) -> Iterator[None]:
    """Around a call to any source, also one of another package: whatever its contract does not know is no answer.

    Raises :class:`ElectionUnavailable`, where a bug of a source would otherwise end the task that asks it.
    """
    try:
        yield
    except (Unavailable, LeaseLost, NotImplementedError):
        raise
    except Exception as error:
        raise ElectionUnavailable(f"{system}: {error!r:.300}", "refused") from error
