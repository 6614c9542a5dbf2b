"""The edge of the settings: flags, the environment, and the files that settings name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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
) -> Settings:
    """The settings out of the file, the environment and the flags. Raises :class:`ConfigurationError`.

    ``only_election``: what a process needs that campaigns and serves nothing.
    """
    variables = os.environ if environment is None else environment
    path = config or variables.get("FENCEGATE_CONFIG") or None
    file = (path, read_text(path, "file", where=path)) if path else None
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
            raise ConfigurationError([*error.faults, hint]) from None
        raise


def read_text(path: str, key: str, *, where: str) -> str:
    """The text of a file that a setting names. Raises :class:`ConfigurationError` in the words of a fault."""
    try:
        return Path(path).read_text(encoding="utf-8")
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


def proof_keys(settings: Settings) -> dict[str, SharedKey]:
    """The key to sign with out of each ``proof_key_file`` of the routes. Raises :class:`ConfigurationError`."""
    faults: list[str] = []
    keys: dict[str, SharedKey] = {}
    for number, route in enumerate(settings.route):
        path = route.proof_key_file
        if path is None or path in keys:
            continue
        key = f"[[route]] {number + 1} proof_key_file"
        try:
            keys[path] = parse_keys(read_text(path, key, where=path))[0]
        except ConfigurationError as error:
            faults += error.faults
        except ValueError as error:
            faults.append(f"{key}: {error} (file {path})")
    if faults:
        raise ConfigurationError(faults)
    return keys


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
