"""As whom a Postgres runs, since it refuses to run as root: see ``launch.py`` for how each identity is taken on."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Final

from fencegate.embedded.process import Steps, clean_environment, spawn, until_exit

SAME: Final = "same"
NAMESPACE: Final = "namespace"
_NOBODY: Final = 65534


def identity_for(data: Path) -> Steps[str]:
    """The identity to run the server of ``data`` under.

    An ordinary user stays what it is. Root becomes the owner of the data, where that is an ordinary user; else it hides
    in a user namespace, where the kernel allows one; else it becomes the user nobody, who is then given the data.
    """
    if os.geteuid() != 0:
        return SAME
    owner = data.stat() if data.exists() else None
    if owner is not None and owner.st_uid != 0:
        return f"{owner.st_uid}:{owner.st_gid}"
    if sys.platform == "linux" and (yield from _namespace_works()):
        return NAMESPACE
    identity = _nobody()
    if owner is not None:
        chown_tree(data, identity)
    return identity


def chown_tree(path: Path, identity: str) -> None:
    """Gives a file, or a directory and all in it, to the user of a ``UID:GID`` identity; else does nothing."""
    uid, separator, gid = identity.partition(":")
    if not separator:
        return
    os.chown(path, int(uid), int(gid), follow_symlinks=False)
    for root, directories, files in os.walk(path):
        for name in (*directories, *files):
            os.chown(os.path.join(root, name), int(uid), int(gid), follow_symlinks=False)


def _namespace_works() -> Steps[bool]:
    """Container runtimes often forbid user namespaces; only trying tells."""
    probe = spawn(
        [sys.executable, "-I", "-S", "-c", ""],
        log=Path(os.devnull),
        death_signal=signal.SIGKILL,
        environment=clean_environment("PG"),
        identity=NAMESPACE,
    )
    yield from until_exit(probe, 10.0)
    if probe.poll() is None:
        probe.kill()
    return probe.wait() == 0


def _nobody() -> str:
    try:
        user = pwd.getpwnam("nobody")
    except KeyError:
        return f"{_NOBODY}:{_NOBODY}"
    return f"{user.pw_uid}:{user.pw_gid}"
