"""A network of our own, in which the kernel can be told to lose packets: nobody gets a reset, nobody is told.

Only ever in a network namespace that holds nothing but its own loopback (``unshare --net``), so that no rule of ours
can touch the machine's. What a proxy cannot do and this can: the handshake of a new connection vanishes too, and what
was sent is sent again by the kernel, later and later, and may arrive when nobody expects it any more.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_TABLE: Final = "inet fencegate"


def missing() -> str:
    """Why no packets can be lost here, or ``""``."""
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if others:
        return "not in a network namespace of its own (unshare --net)"
    if _nft() is None:
        return "nft is not installed (Debian: nftables)"
    return ""


def prepare() -> None:
    """Bring loopback up and make the table of rules. Raises ``OSError``, saying what the kernel's tools said."""
    _run("ip", "link", "set", "lo", "up")
    _run("nft", f"add table {_TABLE}")
    _run("nft", f"add chain {_TABLE} lost {{ type filter hook input priority 0; }}")


def lose(ports: Sequence[int], *, requests: bool, answers: bool) -> None:
    """From now on lose what is sent to TCP ``ports``, what comes from them, or both. ``OSError`` as :func:`prepare`."""
    listed = "{ " + ", ".join(map(str, ports)) + " }"
    for lost, end in ((requests, "dport"), (answers, "sport")):
        if lost:
            _run("nft", f"add rule {_TABLE} lost tcp {end} {listed} drop comment {_name(ports)}")


def find(ports: Sequence[int]) -> None:
    """Lose nothing of these ports any more."""
    listing = _run("nft", "-a", f"list chain {_TABLE} lost")
    for line in listing.splitlines():
        if f"comment {_name(ports)}" in line:
            _run("nft", f"delete rule {_TABLE} lost handle {line.rpartition(' ')[2]}")


class Beyond:
    """A second network namespace, a machine of its own as it were, with one cable to ours; it ends with the context.

    ``here`` and ``there`` are the addresses of the cable's ends. Raises ``OSError`` as :func:`prepare`, which is first.
    """

    here: Final = "10.77.0.1"
    there: Final = "10.77.0.2"

    def __enter__(self) -> Self:
        # Nothing but a process keeps a namespace that has no name; this one ends when its input does.
        unshare, cat = _program("unshare"), _program("cat")
        self._holder = subprocess.Popen([unshare, "--net", cat], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.enter = (_program("nsenter"), f"--net=/proc/{self._holder.pid}/ns/net")
        try:
            self._wait_for_the_namespace()
            _run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
            _run("ip", "link", "set", "there", "netns", str(self._holder.pid))
            _run("ip", "addr", "add", f"{self.here}/30", "dev", "here")
            _run("ip", "link", "set", "here", "up")
            for words in ("link set lo up", f"addr add {self.there}/30 dev there", "link set there up"):
                _run("nsenter", self.enter[1], _program("ip"), *words.split())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holder.kill()
        self._holder.communicate()

    def cut(self, *, but: int) -> None:
        """From now on lose every packet between here and there, but for those of TCP port ``but`` there."""
        _run("nft", f"add rule {_TABLE} lost ip saddr {self.there} tcp sport != {but} drop comment {_name([but])}")
        _run("nft", f"add chain {_TABLE} unsent {{ type filter hook output priority 0; }}")
        _run("nft", f"add rule {_TABLE} unsent ip daddr {self.there} tcp dport != {but} drop")

    def mend(self, *, but: int) -> None:
        """Lose none of them any more."""
        find([but])
        _run("nft", f"flush chain {_TABLE} unsent")

    def _wait_for_the_namespace(self) -> None:
        ours, until = os.readlink("/proc/self/ns/net"), time.monotonic() + 5.0
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == ours:
            if self._holder.poll() is not None or time.monotonic() > until:
                raise OSError("unshare --net: no second network namespace is to be had")
            time.sleep(0.01)


def _name(ports: Sequence[int]) -> str:
    return '"' + "-".join(map(str, ports)) + '"'


def _nft() -> str | None:
    return shutil.which("nft", path=_PATH)


def _run(name: str, *arguments: str) -> str:
    done = subprocess.run([_program(name), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _program(name: str) -> str:
    program = shutil.which(name, path=_PATH)
    if program is None:
        raise OSError(f"{name} is not installed")
    return program
