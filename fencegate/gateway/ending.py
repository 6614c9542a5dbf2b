"""The end of the process, once its grace is over: what is cancelled for it still gets a reply."""

from __future__ import annotations

import asyncio


class Ending:
    """Whether requests that are cancelled have a client that waits to be told. :meth:`begin` once, when it has."""

    def __init__(self) -> None:
        self._has_begun = False

    def begin(self) -> None:
        """From here on a cancellation is the end of the process, and no client that has gone."""
        self._has_begun = True

    def was_that(self) -> bool:
        """Whether a cancellation that was just caught is the end of the process; if so, the task goes on without it."""
        task = asyncio.current_task()
        if self._has_begun and task is not None and task.cancelling():
            task.uncancel()
        return self._has_begun
