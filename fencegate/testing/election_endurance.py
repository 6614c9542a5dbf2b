"""The part of the election contract that takes many repetitions to break: tokens that last, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from typing import Final

import pytest

from fencegate.lease import ElectionBackend, Held
from fencegate.testing.election_scene import LIMIT, ElectionScene, Join, candidate

_SETTLED_WITHIN: Final = 5.0


@pytest.mark.asyncio
class EnduranceContract(ElectionScene):
    """After a thousand renewals and many terms a backend is as it was after the first."""

    # Field case 5: kubernetes/kubernetes#41956, fabric8io/kubernetes-client#4320.
    async def test_a_thousand_renewals_keep_the_token(self, join: Join, role: str) -> None:
        backend, reader = join(), join()
        token = await self.lead(backend, role)

        for _ in range(self.renewals):
            await backend.renew(role, token, candidate("a"), active=True, deadline=LIMIT)

        term = await reader.read(role, LIMIT)
        assert term is not None
        assert (term.token, term.node, term.active) == (token, "a", True)

    async def test_many_terms_leave_no_task_thread_or_open_file_behind(self, join: Join, role: str) -> None:
        holder, rival = join(), join()
        # What is made once, such as a link (that for hints takes a while) or a pool of threads, is made by now.
        await self.hinted(lambda: rival.changes(role), holder, role)
        for _ in range(5):
            await self._one_term(holder, rival, role)
        before = await _at_rest()

        for _ in range(self.cycles):
            await self._one_term(holder, rival, role)

        await _is_no_more_than(before)

    async def _one_term(self, holder: ElectionBackend, rival: ElectionBackend, role: str) -> None:
        """Won, renewed, watched and envied, then given back."""
        token = await self.lead(holder, role)
        hints = rival.changes(role)
        hinted = asyncio.ensure_future(anext(hints))
        assert isinstance(await rival.acquire(role, candidate("b"), LIMIT), Held)
        await rival.withdraw(role, LIMIT)
        hinted.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration):
            await hinted
        await hints.aclose()  # type: ignore[attr-defined]
        assert await self.give_back(holder, role, token)
        await holder.withdraw(role, LIMIT)

    async def test_a_closed_backend_leaves_no_task_thread_or_open_file_behind(self, join: Join, role: str) -> None:
        await self._one_life(join, role)
        before = await _at_rest()

        for _ in range(5):
            await self._one_life(join, role)

        await _is_no_more_than(before)

    async def _one_life(self, join: Join, role: str) -> None:
        backend = join()
        await self.give_back(backend, role, await self.lead(backend, role))
        await backend.close()


def _held() -> dict[str, int]:
    """What this process holds now. A socket is an open file; they are counted where the system lists them."""
    held = {"tasks": len(asyncio.all_tasks()), "threads": threading.active_count()}
    for listing in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            held["open files"] = len(os.listdir(listing))
            break
    return held


async def _at_rest() -> dict[str, int]:
    """What is held once nothing is ending any more."""
    held, since = _held(), time.monotonic()
    while time.monotonic() - since < 0.3:
        await asyncio.sleep(0.05)
        if _held() != held:
            held, since = _held(), time.monotonic()
    return held


async def _is_no_more_than(before: dict[str, int]) -> None:
    ends = time.monotonic() + _SETTLED_WITHIN
    while grown := {what: (before[what], count) for what, count in _held().items() if count > before[what]}:
        assert time.monotonic() < ends, f"grown (before, after): {grown}"
        await asyncio.sleep(0.05)
