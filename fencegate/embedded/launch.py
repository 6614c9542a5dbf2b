"""Becomes one server program that does not outlive its parent. Run as a script, never imported by fencegate.

A script and not a ``preexec_fn``: that runs Python between fork and exec, which may deadlock in a process with
threads and warns there since Python 3.12. It is started isolated (``-I -S``): it may import the standard library only.

``launch.py run PARENT SIGNAL IDENTITY PROGRAM [ARGUMENT...]`` turns into PROGRAM. The kernel sends it SIGNAL when the
thread of PARENT that started it ends. IDENTITY is ``same``, ``namespace`` (root only: a user namespace in which root's
files belong to an ordinary user, for programs that refuse root) or ``UID:GID`` (root only: become that user).

``launch.py guard`` reads process ids until its standard input ends, then lets those processes go on: a frozen process
cannot hear that its parent died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

CANNOT_LAUNCH = 126
"""Exit status where the program could not be started; the reason is on standard error."""

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 1, 8, 47, 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITY_VERSION_3 = 0x20080522
_INSIDE_ID = 1000


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter_user_namespace() -> None:
    """Root outside becomes an ordinary user inside: the same files, but a uid that Postgres accepts."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(_CLONE_NEWUSER), "unshare(CLONE_NEWUSER)")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{_INSIDE_ID} {uid} 1")
    _write("/proc/self/gid_map", f"{_INSIDE_ID} {gid} 1")


def become(uid: int, gid: int) -> None:
    """Drops root for that user but keeps, where the kernel lets it, the right to walk through closed directories.

    The binaries and the data may lie below a 0700 directory of root; opening it to others is not ours to do.
    """
    libc = _libc()
    linux = sys.platform == "linux"
    if linux:
        _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "prctl(PR_SET_KEEPCAPS)")
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if linux:
        _keep_one_of(libc, _CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE)


def _keep_one_of(libc: ctypes.CDLL, *capabilities: int) -> None:
    """Keeps the first of these capabilities that this process may have, across exec; none where it may have none."""
    for capability in capabilities:
        bits = 1 << capability
        header = _CapHeader(_CAPABILITY_VERSION_3, 0)
        data = (_CapData * 2)(_CapData(bits, bits, bits), _CapData(0, 0, 0))
        kept = libc.capset(ctypes.byref(header), data) == 0
        if kept and libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0:
            return
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    _check(libc.capset(ctypes.byref(header), (_CapData * 2)()), "capset")


def die_with(parent: int, signal_number: int) -> None:
    """Asks for the signal at the parent's end. After every change of identity: those clear the request."""
    if sys.platform == "linux":
        _check(_libc().prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before we asked
        raise OSError(f"the parent process {parent} has ended")


def run(parent: int, signal_number: int, identity: str, program: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if identity == "namespace":
        enter_user_namespace()
    elif identity != "same":
        uid, gid = identity.split(":")
        become(int(uid), int(gid))
    die_with(parent, signal_number)
    os.execv(program[0], program)


def guard() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for pid in sys.stdin.buffer.read().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGCONT)


def main(arguments: list[str]) -> int:
    try:
        if arguments[0] == "guard":
            guard()
            return 0
        run(int(arguments[1]), int(arguments[2]), arguments[3], arguments[4:])
    except OSError as problem:
        sys.stderr.write(f"cannot start {' '.join(arguments[4:5])}: {problem}\n")
    return CANNOT_LAUNCH


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
