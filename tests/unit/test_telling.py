"""Answers that are told: once, never before the question is out, and to everybody whoever fails."""

from __future__ import annotations

import asyncio

import pytest

from fencegate.telling import give, tell_of, tell_safely


async def told(answer: asyncio.Future[int]) -> int | Exception:
    heard: asyncio.Future[int | Exception] = asyncio.get_running_loop().create_future()
    tell_of(answer, heard.set_result)
    assert not heard.done()
    return await heard


async def test_an_answer_its_error_and_its_end_are_told_as_they_came() -> None:
    loop = asyncio.get_running_loop()
    good, bad, given_up = (loop.create_future() for _ in range(3))
    good.set_result(7)
    assert await told(good) == 7
    bad.set_exception(ValueError("no"))
    assert isinstance(await told(bad), ValueError)
    given_up.cancel()
    assert isinstance(await told(given_up), TimeoutError)


async def test_what_is_given_to_who_waits_no_longer_is_dropped() -> None:
    loop = asyncio.get_running_loop()
    waiting, refused, gone = (loop.create_future() for _ in range(3))
    gone.cancel()
    give(waiting, 7)
    give(refused, ValueError("no"))
    give(gone, 7)
    assert await waiting == 7
    with pytest.raises(ValueError, match="no"):
        await refused
    assert gone.cancelled()


def test_one_that_fails_to_hear_is_noted_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fails(found: int | Exception) -> None:
        raise RuntimeError("deaf")

    tell_safely(fails, 7)
    assert "deaf" in caplog.text
