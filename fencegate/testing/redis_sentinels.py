"""Real Redis servers under real sentinels, as children on free ports, for tests of who is believed to lead.

One primary, one replica, three sentinels. Needs Debian's redis-server and redis-sentinel, or the like, on PATH.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError

from fencegate.embedded.process import EmbeddedServerError, afinish, clean_environment, finish, free_port, spawn
from fencegate.testing.waiting import until

CLUSTER: Final = "mymaster"
_LIMIT: Final = 60.0
_ANSWER_LIMIT: Final = 10.0
_FAILOVER_LIMIT: Final = 3.0
"""Seconds after which a sentinel gives a failover up that does not get on."""
_PATIENT: Final = 60_000
_IMPATIENT: Final = 1000
"""Milliseconds for which a server may be silent."""


def program(name: str) -> str:
    """The path of ``redis-server`` or ``redis-sentinel``. Raises :class:`EmbeddedServerError`."""
    found = shutil.which(name)
    if found is None:
        raise EmbeddedServerError(f"no {name}: install the packages redis-server and redis-sentinel")
    return found


class RedisSentinels:
    """The set. A primary that is killed is failed over by the sentinels themselves within seconds.

    Nobody else is: a failover that no test asked for, of a primary that a busy machine holds up for a while, makes the
    config-epoch grow.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.servers = [free_port() for _ in range(2)]
        self.sentinels = [free_port() for _ in range(3)]

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.sentinels]

    def start_sync(self) -> None:
        """Returns when each sentinel knows the others and a replica that could take over."""
        first, second = self.servers
        self._start_server(first)
        self._start_server(second, of=first)
        finish(until(lambda: self._replicates(second, first), "a replica", _LIMIT))
        for port in self.sentinels:
            config = self._directory / f"sentinel-{port}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {self._directory}\nprotected-mode no\n"
                f"sentinel monitor {CLUSTER} 127.0.0.1 {self.servers[0]} 2\n"
                f"sentinel down-after-milliseconds {CLUSTER} {_PATIENT}\n"
                f"sentinel failover-timeout {CLUSTER} {_FAILOVER_LIMIT * 1000:.0f}\n"
            )
            self._spawn(port, [program("redis-sentinel"), str(config)])
        finish(until(lambda: all(self.ask(port, "PING") for port in self.sentinels), "three sentinels", _LIMIT))
        for port in self.sentinels:
            # They look at a server every 10 s and tell each other every 2 s: long for a test.
            self.ask(port, "SENTINEL", "DEBUG", "info-period", "200", "publish-period", "200")
        finish(until(self._whole, "a set that could fail over", _LIMIT))

    def stop_sync(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._processes.clear()

    # -- what a test does to it ---------------------------------------------------------------------

    def primary(self) -> int:
        """The port of the primary, as the first sentinel has it."""
        found = self.ask(self.sentinels[0], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", CLUSTER)
        if found is None:
            raise EmbeddedServerError(f"the sentinel at port {self.sentinels[0]} does not say who the primary is")
        return int(found[1])

    async def fail_over(self) -> None:
        """Asks a sentinel to hand over to the replica; returns when it and all others have."""
        before, asked_at = self.primary(), -math.inf

        def done() -> bool:
            nonlocal asked_at
            # What was refused or given up is asked for again. Once it is done it must not be, or it goes back.
            if time.monotonic() - asked_at > _FAILOVER_LIMIT and self.primary() == before:
                asked = self.ask(self.sentinels[0], "SENTINEL", "FAILOVER", CLUSTER)
                asked_at = time.monotonic() if asked else asked_at
            return self._agreed() not in (None, before)

        await afinish(until(done, "a failover", _LIMIT))

    async def until_primary_is_not(self, port: int) -> None:
        """Every sentinel names another one, and knows a replica of that."""
        await afinish(until(lambda: self._agreed() not in (None, port), "another primary", _LIMIT))

    def kill(self, port: int) -> None:
        """kill -9 of the server or sentinel there."""
        if port in self.servers:
            self._set("down-after-milliseconds", _IMPATIENT)
        process = self._processes.pop(port)
        process.kill()
        process.wait()

    def signal(self, port: int, number: signal.Signals) -> None:
        os.kill(self._processes[port].pid, number)

    async def revive(self, port: int) -> None:
        """Starts a killed server again, as a replica."""
        self._start_server(port, of=self.primary())
        await self.until_whole()
        self._set("down-after-milliseconds", _PATIENT)

    async def until_whole(self) -> None:
        await afinish(until(self._whole, "a set that could fail over", _LIMIT))

    async def forget(self) -> None:
        """The sentinels are made to monitor the primary anew, as an operator may do: the config-epoch begins at 0.

        Raises :class:`EmbeddedServerError` where three attempts in a row were crossed by a failover of their own.
        """
        for _ in range(3):
            await self.until_whole()
            self._monitor_anew(self.primary())
            await self.until_whole()
            if all(self.state(port).get("config-epoch") == "0" for port in self.sentinels):
                return
        raise EmbeddedServerError("the sentinels still remember a failover after they were made to forget it")

    # -- how ----------------------------------------------------------------------------------------

    def _monitor_anew(self, primary: int) -> None:
        for port in self.sentinels:
            self.ask(port, "SENTINEL", "REMOVE", CLUSTER)
        for port in self.sentinels:
            self.ask(port, "SENTINEL", "MONITOR", CLUSTER, "127.0.0.1", str(primary), "2")
        self._set("down-after-milliseconds", _PATIENT)
        self._set("failover-timeout", round(_FAILOVER_LIMIT * 1000))

    def _set(self, option: str, value: int) -> None:
        for port in self.sentinels:
            self.ask(port, "SENTINEL", "SET", CLUSTER, option, str(value))

    def ask(self, port: int, *command: str) -> Any:
        """The answer, or ``None`` where there is none yet."""
        client = Redis(host="127.0.0.1", port=port, socket_timeout=_ANSWER_LIMIT, protocol=2, decode_responses=True)
        try:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (RedisError, OSError):
            return None
        finally:
            client.close()

    def state(self, port: int) -> dict[str, str]:
        """What the sentinel at ``port`` says of the primary."""
        answer = self.ask(port, "SENTINEL", "MASTER", CLUSTER) or []
        return dict(zip(answer[::2], answer[1::2], strict=True))

    def _agreed(self) -> int | None:
        states = [self.state(port) for port in self.sentinels if port in self._processes]
        found = {(state.get("port"), state.get("config-epoch")) for state in states}
        ready = all(state.get("flags") == "master" for state in states)
        return int(states[0]["port"]) if len(found) == 1 and ready else None

    def _whole(self) -> bool:
        """Everybody is there, and the replica is one that can be promoted."""
        primary = self._agreed()
        if primary is None or len(self._processes) < 5:
            return False
        (replica,) = (port for port in self.servers if port != primary)
        return self._replicates(replica, primary) and all(
            self.state(port).get("num-other-sentinels") == "2" and self._knows(port, replica) for port in self.sentinels
        )

    def _replicates(self, replica: int, primary: int) -> bool:
        role = self.ask(replica, "ROLE")
        return bool(role) and role[0] == "slave" and int(role[2]) == primary and role[3] == "connected"

    def _knows(self, sentinel: int, replica: int) -> bool:
        replicas = self.ask(sentinel, "SENTINEL", "REPLICAS", CLUSTER) or []
        found = [dict(zip(each[::2], each[1::2], strict=True)) for each in replicas]
        return any(
            each["port"] == str(replica) and each["flags"] == "slave" and each["master-link-status"] == "ok"
            for each in found
        )

    def _start_server(self, port: int, *, of: int | None = None) -> None:
        options = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", self._directory]
        options += ["--repl-diskless-sync-delay", 0]
        if of is not None:
            options += ["--replicaof", f"127.0.0.1 {of}"]
        self._spawn(port, [program("redis-server"), *map(str, options)])

    def _spawn(self, port: int, command: list[str]) -> None:
        self._processes[port] = spawn(
            command,
            log=self._directory / f"{port}.log",
            death_signal=signal.SIGKILL,
            environment=clean_environment("REDIS"),
        )
