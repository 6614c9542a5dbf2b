"""What a supervisor and a worker tell each other, over a real pair of sockets."""

from __future__ import annotations

import asyncio
import socket

from fencegate.cli.channel import MOST_UNREAD, Channel


async def test_messages_arrive_whole_and_in_order_and_end_with_the_other_end() -> None:
    a, b = socket.socketpair()
    ours, theirs = await Channel.over(a), await Channel.over(b)
    large = "x" * 1_000_000
    ours.tell("begin", number=1, text=large)
    ours.tell("hint", role="ledger/é\n")
    heard = theirs.messages()
    assert await anext(heard) == {"kind": "begin", "number": 1, "text": large}
    assert await anext(heard) == {"kind": "hint", "role": "ledger/é\n"}
    await ours.close()
    assert await anext(heard, None) is None
    theirs.tell("report")
    await theirs.close()
    ours.tell("after the end: nothing happens")


async def test_a_half_message_of_one_that_was_killed_is_none() -> None:
    a, b = socket.socketpair()
    ours = await Channel.over(a)
    b.sendall(b'{"kind": "report", "ro')
    b.close()
    assert [message async for message in ours.messages()] == []
    await ours.close()


async def test_who_does_not_read_holds_nobody_up() -> None:
    a, b = socket.socketpair()
    ours = await Channel.over(a)
    async with asyncio.timeout(5):
        while not ours.is_choked:
            ours.tell("report", text="x" * (MOST_UNREAD // 4))
        b.close()
        await ours.close()
