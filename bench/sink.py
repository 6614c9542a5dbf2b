"""An upstream that reads what is uploaded to it and throws it away: 201 after the last byte. A process of its own."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nmade"


class _Sink(asyncio.BufferedProtocol):
    """Reads into one buffer for all, so that the upstream costs as little as it can."""

    buffer = bytearray(256 * 1024)

    def __init__(self) -> None:
        self._left = 0
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        if not self._left:
            self._head += self.buffer[:count]
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            length = head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
            self._left, self._head, count = int(length), b"", len(body)
        self._left -= count
        if self._left == 0:
            self._transport.write(_ANSWER)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Sink, "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
