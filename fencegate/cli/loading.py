"""The edge of the settings: flags, the environment, and the files that settings name."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from fencegate.config import Flag, Settings, parse
from fencegate.config.parsing import FLAGS
from fencegate.errors import ConfigurationError
from fencegate.key_ring import SharedKey, parse_keys

Command = TypeVar("Command", bound=Callable[..., Any])

_HELP: Final = {
    "node": "This gateway's name, unique among all.",
    "region": "The region that it leads for.",
    "advertise": "The origin that hints give out for this region.",
    "workers": "Processes that take requests; more than one are supervised.",
    "listen.data": "Address for clients.",
    "listen.admin": "Address for metrics, health and operators.",
    "store.dsn": "The region's Postgres.",
    "election.source": "Which election decides: etcd, postgres, postgres-advisory, zookeeper, kubernetes or consul.",
    "log.format": "auto, json or text.",
    "log.level": "debug, info, warning or error.",
}

SHORTEST_TOKEN: Final = 16


def settings_options(*keys: str) -> Callable[[Command], Command]:
    """The options ``--config`` and ``--set``, and one for each of ``keys``.

    The command gets them as ``config``, ``assign`` and ``named_<key with _ for .>``.
    """

    def decorate(command: Command) -> Command:
        for key in reversed(keys):
            command = click.option(
                FLAGS[key], f"named_{key.replace('.', '_')}", metavar="VALUE", help=_HELP[key], default=None
            )(command)
        command = click.option("--set", "assign", multiple=True, metavar="KEY=VALUE", help="Any other setting.")(
            command
        )
        return click.option("--config", metavar="FILE", help="A TOML file (or FENCEGATE_CONFIG).", default=None)(
            command
        )

    return decorate


def flags_of(assign: tuple[str, ...], named: Mapping[str, str | None]) -> list[Flag]:
    """The flags given, as the settings take them. Raises ``click.UsageError`` for a ``--set`` without ``=``."""
    flags = []
    for text in assign:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, such as --set election.lease_duration=20; not {key!r}")
        flags.append(Flag("--set", key.strip(), value))
    for key, name in FLAGS.items():
        given = named.get(f"named_{key.replace('.', '_')}")
        if given is not None:
            flags.append(Flag(name, key, given))
    return flags


def load(
    config: str | None,
    flags: list[Flag],
    *,
    environment: Mapping[str, str] | None = None,
    defaults: dict[str, Any] | None = None,
    embedded: bool = False,
    only_election: bool = False,
    without_file: str = "",
) -> Settings:
    """The settings out of the file, the environment and the flags. Raises :class:`ConfigurationError`.

    ``only_election``: what a process needs that campaigns and serves nothing. ``without_file`` says what else
    whoever gave no file can do.
    """
    variables = os.environ if environment is None else environment
    path = config or variables.get("FENCEGATE_CONFIG") or None
    named_by = "flag --config" if config else "variable FENCEGATE_CONFIG"
    try:
        file = (path, read_text(path, "file", where=path)) if path else None
    except ConfigurationError as error:
        raise ConfigurationError([f"{fault} ({named_by})" for fault in error.faults]) from None
    try:
        return parse(
            file=file,
            environment=variables,
            flags=flags,
            defaults=defaults,
            embedded=embedded,
            only_election=only_election,
        )
    except ConfigurationError as error:
        if path is None and any(": missing" in fault for fault in error.faults):
            hint = "no configuration file was given: name one by --config FILE or FENCEGATE_CONFIG"
            raise ConfigurationError([*error.faults, hint + without_file]) from None
        raise


def read_text(path: str, key: str, *, where: str) -> str:
    """The text of a file that a setting names. Raises :class:`ConfigurationError` in the words of a fault."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors put a mark of the encoding before it
    except UnicodeDecodeError:
        raise ConfigurationError([f"{key}: expected a text file in UTF-8: {where}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{key}: cannot read {where}: {error.strerror}"]) from None


def read_secret(path: str, key: str, *, shortest: int = 1) -> str:
    """The one line in a secret's file, without its line end. Raises :class:`ConfigurationError`, never showing it."""
    secret = read_text(path, key, where=path).strip()
    if len(secret) < shortest or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigurationError(
            [f"{key}: expected one line of at least {shortest} visible ASCII characters in {path}"]
        )
    return secret


@dataclass(frozen=True, slots=True)
class RouteKeys:
    """The rings in the key files of the routes, by the files' paths: the secrets of proofs, and of grants."""

    proof: Mapping[str, tuple[SharedKey, ...]]
    grant: Mapping[str, tuple[SharedKey, ...]]

    def changed_from(self, earlier: RouteKeys, named: Collection[str]) -> Iterator[str]:
        """What a reload says of them: others in files of the same name. ``named``: the settings that changed."""
        for word in ("proof", "grant"):
            same_files = not any(key.endswith(f".{word}_key_file") for key in named)
            if same_files and getattr(self, word) != getattr(earlier, word):
                yield f"{word} keys"


def route_keys(settings: Settings) -> RouteKeys:
    """Every key that the routes name. Raises :class:`ConfigurationError` with the faults of all files."""
    faults: list[str] = []
    proof = _rings([(route.proof_key_file, "proof_key_file") for route in settings.route], faults)
    grant = _rings([(route.grant_key_file, "grant_key_file") for route in settings.route], faults)
    if faults:
        raise ConfigurationError(faults)
    return RouteKeys(proof, grant)


def _rings(named: Sequence[tuple[str | None, str]], faults: list[str]) -> dict[str, tuple[SharedKey, ...]]:
    rings: dict[str, tuple[SharedKey, ...]] = {}
    for number, (path, setting) in enumerate(named, 1):
        if path is None or path in rings:
            continue
        try:
            rings[path] = key_ring(path, f"[[route]] {number} {setting}")
        except ConfigurationError as error:
            faults += error.faults
    return rings


def key_ring(path: str, key: str) -> tuple[SharedKey, ...]:
    """The keys in a file that the setting ``key`` names. Raises :class:`ConfigurationError`, showing no secret."""
    try:
        return parse_keys(read_text(path, key, where=path))
    except ValueError as error:
        raise ConfigurationError([f"{key}: {error} (file {path})"]) from None


def admin_tokens(settings: Settings) -> tuple[str | None, str | None]:
    """The bearer tokens of the admin listener: for everything, and for reading only."""
    faults: list[str] = []
    tokens: list[str | None] = []
    for key, path in (
        ("admin.token_file", settings.admin.token_file),
        ("admin.read_token_file", settings.admin.read_token_file),
    ):
        try:
            tokens.append(read_secret(path, key, shortest=SHORTEST_TOKEN) if path else None)
        except ConfigurationError as error:
            faults += error.faults
    if not faults and tokens[0] is not None and tokens[0] == tokens[1]:
        faults.append("admin.read_token_file: expected another token than that of admin.token_file")
    if faults:
        raise ConfigurationError(faults)
    return tokens[0], tokens[1]


def console_token(settings: Settings) -> str | None:
    """The bearer token for reading at the console's peers."""
    path = settings.console.token_file
    return read_secret(path, "console.token_file", shortest=SHORTEST_TOKEN) if path else None
