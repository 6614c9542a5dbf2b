"""A network of our own, in which the kernel can be told to lose packets: nobody gets a reset, nobody is told.

Only ever in a network namespace that holds nothing but its own loopback (``unshare --net``), so that no rule of ours
can touch the machine's. What a proxy cannot do and this can: the handshake of a new connection vanishes too, and what
was sent is sent again by the kernel, later and later, and may arrive when nobody expects it any more.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Sequence
from typing import Final

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


def _name(ports: Sequence[int]) -> str:
    return '"' + "-".join(map(str, ports)) + '"'


def _nft() -> str | None:
    return shutil.which("nft", path=_PATH)


def _run(name: str, *arguments: str) -> str:
    program = shutil.which(name, path=_PATH)
    if program is None:
        raise OSError(f"{name} is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{name} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
