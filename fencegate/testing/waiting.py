"""Waiting for what real servers come to by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

from fencegate.embedded.process import EmbeddedServerError, Steps


def until(condition: Callable[[], object], what: str, limit: float) -> Steps[None]:
    """Looks again and again, for ``limit`` seconds at most: for :func:`fencegate.embedded.process.finish` or
    ``afinish``. Raises :class:`EmbeddedServerError`, naming ``what``.
    """
    ends = time.monotonic() + limit
    while not condition():
        if time.monotonic() > ends:
            raise EmbeddedServerError(f"{what}: not within {limit:g} s")
        yield 0.05
