"""The SDK against a gateway that answers with whatever bytes: a response, or an exception of its own, in time."""

from __future__ import annotations

import asyncio

from fencegate.client import FencedClient, FencedError
from fencegate.testing.hostile_server import HostileServer, says
from fuzz.elections import ANSWER

_DEADLINE = 0.2
_SLACK = 3.0


class Sdk:
    """One server, and one loop that lives between the calls."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._server: HostileServer | None = None

    def check(self, data: bytes) -> None:
        """The bytes are cut into answers at each ``ANSWER`` mark, one to each request, the last one to all others."""
        self._runner.run(self._check(data))

    async def _check(self, data: bytes) -> None:
        answers = data.split(ANSWER)
        if self._server is None:
            self._server = HostileServer(says(b""))
            await self._server.start()
        self._server.requests.clear()

        async def say(writer: asyncio.StreamWriter) -> None:
            await says(answers.pop(0) if len(answers) > 1 else answers[0])(writer)

        self._server.say = say
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with FencedClient([self._server.url], "ledger", deadline=_DEADLINE, max_answer_bytes=4096) as client:
            for method, token in (("POST", None), ("POST", 7), ("GET", None)):
                try:
                    response = await client.request(method, "/v1/entries", json={}, token=token)
                except FencedError:
                    continue
                assert method == "GET" or b"accepted" in data, "a success that nobody gave"
                assert len(response.body) <= 4096
        assert loop.time() - began < 3 * (_DEADLINE + _SLACK), "it outlasts its deadline"
        lines = [line.lower() for head in self._server.requests for line in head.split(b"\r\n")]
        keys = {line for line in lines if line.startswith(b"idempotency-key:")}
        assert len(keys) <= 2, "a write that was sent again under another key"
        self._server.drop()
