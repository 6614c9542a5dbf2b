"""What a service manager such as systemd is told: that the process takes requests, that it ends, that it is alive.

The protocol is that of sd_notify(3): one datagram a message to the socket that ``NOTIFY_SOCKET`` names. Without that
variable nothing is told, and a manager that does not listen is no reason to fail.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping


class ServiceManager:
    """The manager that started this process, if there is one, as its ``environment`` says; ``pid`` is our own."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        whose = environment.get("WATCHDOG_PID", str(pid))
        limit = environment.get("WATCHDOG_USEC", "")
        asked = bool(self._address) and whose == str(pid) and limit.isascii() and limit.isdecimal()
        self.watchdog_period: float | None = int(limit) / 1_000_000 / 3 if asked and int(limit) else None
        """Seconds between two signs of life: a third of the limit after which the manager kills; ``None`` for none."""

    @classmethod
    def of_this_process(cls) -> ServiceManager:
        return cls(os.environ, os.getpid())

    def ready(self, status: str) -> None:
        """Requests are taken; ``status`` is what the manager shows, one line."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self, status: str) -> None:
        """The process ends in order, which may take as long as its grace and a resignation."""
        self._tell("STOPPING=1", f"STATUS={status}")

    async def say_alive(self) -> None:
        """Until cancelled. It runs on the loop that renews the leases: where that stands still, nothing is said."""
        while self.watchdog_period is not None:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_period)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), address)
        except OSError:
            return
