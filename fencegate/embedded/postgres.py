"""A real Postgres in a directory of ours, as a direct child: nothing to install, nothing left behind.

Why our own supervisor: a server must end with us even when we are killed with -9 (the kernel's parent-death signal),
must come back at once after it was killed itself (a direct child is reaped, so that its lock file is no riddle), and
must run for root, whom Postgres refuses, without adding users or opening directories (a user namespace, see
``launch.py``). The directory holds ``data``, ``postgres.log``, ``password`` (for TCP), ``socket`` and ``lock``.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from fencegate.embedded.binaries import Binaries
from fencegate.embedded.binaries import describe_postgres as describe
from fencegate.embedded.binaries import postgres_binaries as binaries
from fencegate.embedded.identity import chown_tree, identity_for
from fencegate.embedded.process import (
    POLL,
    EmbeddedServerError,
    Freezer,
    Steps,
    afinish,
    children_of,
    clean_environment,
    finish,
    free_port,
    last_lines,
    lock_directory,
    open_log,
    prepare_directory,
    runs_in,
    send,
    spawn,
    until_exit,
    until_still,
)

__all__ = ["Binaries", "EmbeddedPostgres", "EmbeddedServerError", "binaries", "describe"]

ROLE: Final = "fencegate"
DATABASE: Final = "fencegate"
_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 10.0
_SOCKET_PORT: Final = 5432
_SOCKET_PATH_LIMIT: Final = 103  # bytes: macOS allows that many, Linux 107
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+-]+", re.ASCII)  # safe in Postgres' list of directories and in a DSN
_SETTING = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)?", re.ASCII)
_OURS: Final = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory", "external_pid_file"})


class EmbeddedPostgres:
    """One Postgres in ``directory``, made there at the first start; the data stays when it stops.

    ``port`` ``None`` listens on a private Unix socket only; 0 also on a free TCP port of 127.0.0.1, any other number on
    that one. ``settings`` are server settings (``{"max_connections": "200"}``); the server gets ``environment`` beside
    ours. Every operation exists twice: ``await start()`` and ``start_sync()``; starting must happen in the main thread,
    whose end stops the server.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory).absolute()
        self._data = self.directory / "data"
        self._log = self.directory / "postgres.log"
        self._settings = _checked(settings or {})
        self._environment = dict(environment or {})
        self._port = port
        self._any_port = port == 0
        self._socket: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._freezer: Freezer | None = None

    # -- what it is -----------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The address of the database ``fencegate`` as the superuser ``fencegate``; stays the same over restarts.

        Known once started. Over TCP it carries a password, over the private socket none is needed.
        """
        return self.dsn_of(DATABASE)

    def dsn_of(self, database: str) -> str:
        """The address of another database on this server."""
        if self._socket is None:
            raise EmbeddedServerError(f"the Postgres in {self.directory} has no address yet: start it first")
        if self._port is not None:
            password = quote((self.directory / "password").read_text("ascii"), safe="")
            return f"postgresql://{ROLE}:{password}@127.0.0.1:{self._port}/{quote(database, safe='')}"
        return f"postgresql://{ROLE}@/{quote(database, safe='')}?host={quote(str(self._socket))}&port={_SOCKET_PORT}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises :class:`EmbeddedServerError` when it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise EmbeddedServerError(f"the Postgres in {self.directory} is not running; its log is {self._log}")
        return self._process.pid

    # -- operations -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the server and returns when it accepts connections; the first time it also makes the data.

        Raises :class:`EmbeddedServerError`, quoting the log, when it does not come up, when another server uses
        the directory, or when there are no binaries.
        """
        await afinish(self._starting())

    async def stop(self) -> None:
        """Stops it: fast (clients are cut off, data is flushed), and by force after 10 seconds. Idempotent."""
        await afinish(self._stopping())

    async def restart(self) -> None:
        """Stops it, if it still runs, and starts it again at the same address."""
        await self.stop()
        await self.start()

    def start_sync(self) -> None:
        """:meth:`start` where no event loop runs."""
        finish(self._starting())

    def stop_sync(self) -> None:
        """:meth:`stop` where no event loop runs."""
        finish(self._stopping())

    def restart_sync(self) -> None:
        """:meth:`restart` where no event loop runs."""
        self.stop_sync()
        self.start_sync()

    def kill(self) -> None:
        """Kills the postmaster and its backends with -9, at once, frozen or not: what a power cut does to a server."""
        if self._process is None:
            return
        if self._process.poll() is None:
            send(self._process.pid, signal.SIGSTOP)  # so that it starts no further backend meanwhile
            until_still(self._process.pid)
            for backend in children_of(self._process.pid):
                send(backend, signal.SIGKILL)
            self._process.kill()
        self._process.wait()
        self._process = None
        self.thaw()

    def freeze(self) -> None:
        """SIGSTOP to the postmaster and every backend: connections stay open, nothing answers. Idempotent."""
        if self._freezer is None:
            postmaster = self.pid
            self._freezer = Freezer()
            self._freezer.freeze_family(postmaster)

    def thaw(self) -> None:
        """SIGCONT to everything that :meth:`freeze` stopped. Idempotent."""
        if self._freezer is not None:
            self._freezer.thaw()
            self._freezer = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- starting -------------------------------------------------------------------------------

    def _starting(self) -> Steps[None]:
        if self._process is not None and not (yield from until_exit(self._process, 0.2)):
            raise EmbeddedServerError(f"the Postgres in {self.directory} is running already (process {self.pid})")
        self.thaw()
        found = binaries()
        prepare_directory(self.directory)
        lock = yield from lock_directory(self.directory, "Postgres")
        try:
            start = open_log(self._log)
            identity = yield from identity_for(self._data)
            if not self._data.exists():
                yield from self._make_data(found, identity, lock)
            _same_major(self._data, found)
            self._prepare_socket(identity)
            _drop_stale_lock_file(self._data)
            yield from self._serve(found, identity, lock, start)
        finally:
            os.close(lock)  # the server holds its own copy for as long as it lives

    def _serve(self, found: Binaries, identity: str, lock: int, start: int) -> Steps[None]:
        for attempt in range(5):
            if self._any_port and (attempt > 0 or self._port == 0):
                self._port = free_port()
            self._process = spawn(
                [found.program("postgres"), "-D", self._data, *self._options()],
                log=self._log,
                death_signal=signal.SIGINT,
                environment=clean_environment("PG") | self._environment,
                identity=identity,
                keep_open=[lock],
            )
            try:
                if (yield from self._until_ready()):
                    return
            except BaseException:
                self.kill()
                raise
            said = last_lines(self._log, start)
            self._process = None
            if not self._any_port or "could not bind" not in said:
                raise EmbeddedServerError(
                    f"Postgres did not start in {self.directory}. Its log, {self._log}, ends:\n{said}"
                )
            start = open_log(self._log)
        raise EmbeddedServerError(f"Postgres found no free TCP port in five attempts; its log is {self._log}")

    def _until_ready(self) -> Steps[bool]:
        """Whether it became ready; False where it ended instead. The postmaster writes its state to its lock file:
        "standby" where it follows another server and takes reads.
        """
        assert self._process is not None
        deadline = time.monotonic() + _START_LIMIT
        while self._process.poll() is None:
            lines = _lock_file(self._data)
            ours = len(lines) > 7 and lines[0].strip() == str(self._process.pid)
            if ours and lines[7].strip() in ("ready", "standby"):
                return True
            if time.monotonic() >= deadline:
                raise EmbeddedServerError(
                    f"Postgres in {self.directory} was not ready after {_START_LIMIT:.0f} s. Its log, {self._log},"
                    f" ends:\n{last_lines(self._log)}"
                )
            yield POLL
        return False

    def _options(self) -> list[str]:
        tcp = self._port is not None
        own = {
            "listen_addresses": "127.0.0.1" if tcp else "",
            "port": str(self._port if tcp else _SOCKET_PORT),
            "unix_socket_directories": str(self._socket),
            "unix_socket_permissions": "0700",
            "logging_collector": "off",
            "log_destination": "stderr",
            "fsync": "on",
            # For roles with validate = true; those that are not used cost a few KiB each.
            "max_prepared_transactions": "16",
        }
        return [part for key, value in (own | self._settings).items() for part in ("-c", f"{key}={value}")]

    def _prepare_socket(self, identity: str) -> None:
        """The directory of the socket: in ours, or a short one in /tmp where that path would be too long."""
        if self._socket is None:
            ours = self.directory / "socket"
            port = self._port or 65535
            fits = len(os.fsencode(ours / f".s.PGSQL.{port}")) <= _SOCKET_PATH_LIMIT
            self._socket = ours if fits and _PLAIN_PATH.fullmatch(str(ours)) else self._short_socket()
        self._socket.mkdir(mode=0o700, exist_ok=True)
        chown_tree(self._socket, identity)

    def _short_socket(self) -> Path:
        note = self.directory / "socket-path"  # so that one left by a kill -9 is tidied away
        if note.exists():
            _remove_socket(Path(note.read_text("utf-8")))
        made = Path(tempfile.mkdtemp(prefix="fencegate-", dir="/tmp"))
        note.write_text(str(made), "utf-8")
        return made

    # -- stopping -------------------------------------------------------------------------------

    def _stopping(self) -> Steps[None]:
        self.thaw()
        if self._process is not None:
            for number, limit in ((signal.SIGINT, _STOP_LIMIT), (signal.SIGQUIT, 2.0)):
                if self._process.poll() is None:
                    self._process.send_signal(number)
                if (yield from until_exit(self._process, limit)):
                    break
            self.kill()
        if self._socket is not None and self._socket.parent != self.directory:
            _remove_socket(self._socket)

    # -- making the data ------------------------------------------------------------------------

    def _make_data(self, found: Binaries, identity: str, lock: int) -> Steps[None]:
        """initdb and the database, beside the final place: a start that is cut off leaves no half-made data there."""
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password = self.directory / "password"
        password.unlink(missing_ok=True)
        password.touch(0o600)
        password.write_text(secrets.token_urlsafe(24), "ascii")
        for path in (fresh, password):
            chown_tree(path, identity)
        initdb: list[Path | str] = [found.program("initdb"), "-D", fresh, "-U", ROLE, "--pwfile", password]
        initdb += ["--auth-local=trust", "--auth-host=scram-sha-256", "--data-checksums"]
        initdb += ["--encoding=UTF8", "--locale=C"]
        yield from self._make_step(initdb, identity, lock)
        single: list[Path | str] = [found.program("postgres"), "--single", "-D", fresh, "postgres"]
        yield from self._make_step(single, identity, lock, f"CREATE DATABASE {DATABASE}\n")
        fresh.rename(self._data)

    def _make_step(self, program: Sequence[Path | str], identity: str, lock: int, say: str = "") -> Steps[None]:
        start = open_log(self._log)
        process = spawn(
            program,
            log=self._log,
            death_signal=signal.SIGTERM,
            environment=clean_environment("PG"),
            identity=identity,
            keep_open=[lock],
            stdin=subprocess.PIPE,
        )
        try:
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(say.encode("ascii"))
            ended = yield from until_exit(process, _START_LIMIT)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        said = last_lines(self._log, start)
        if not ended or process.returncode != 0 or re.search(r"^.*(ERROR|FATAL|PANIC):", said, re.MULTILINE):
            raise EmbeddedServerError(f"cannot make a Postgres in {self.directory}. {self._log} ends:\n{said}")


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    for name in settings:
        if _SETTING.fullmatch(name) is None or name in _OURS:
            raise ValueError(
                f"{name!r} cannot be set on an embedded Postgres: it is no setting, or fencegate's to choose"
            )
    return dict(settings)


def _same_major(data: Path, found: Binaries) -> None:
    made_by = (data / "PG_VERSION").read_text("ascii").strip()
    if made_by != str(found.major):
        raise EmbeddedServerError(
            f"the data in {data} was made by Postgres {made_by}, but the programs {found.origin} are version"
            f" {found.version}. Point FENCEGATE_PG_BINDIR at a Postgres {made_by}, or use another directory."
        )


def _lock_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []


def _drop_stale_lock_file(data: Path) -> None:
    """Removes a lock file whose process id now belongs to a zombie or to a stranger; Postgres itself would refuse.

    We hold the directory's lock, which every process of a server of ours inherits: none is left. A server that somebody
    started by hand shows by its working directory.
    """
    lines = _lock_file(data)
    pid = int(lines[0]) if lines and lines[0].strip().isdecimal() else 0
    if pid <= 0:
        return
    if runs_in(pid, data):
        raise EmbeddedServerError(
            f"cannot start Postgres: another one (process {pid}) already runs on {data}. Stop that one, or give this"
            " one a directory of its own."
        )
    (data / "postmaster.pid").unlink(missing_ok=True)


def _remove_socket(directory: Path) -> None:
    if directory.name.startswith("fencegate-") and directory.parent == Path("/tmp") and not directory.is_symlink():
        shutil.rmtree(directory, ignore_errors=True)
