"""Asking an admin listener, as the commands for operators do: what it says of the roles, and its actions."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import click

from fencegate.cli.loading import flags_of, load, read_secret, settings_options
from fencegate.errors import FencegateError

F = TypeVar("F", bound=Callable[..., Any])
Document = dict[str, Any]

EXIT_REFUSED: Final = 69
"""``EX_UNAVAILABLE``: nothing was begun."""
EXIT_UNDONE: Final = 75
"""``EX_TEMPFAIL``: begun and taken back; writes go on where they went before, asking again may work."""
ASKED_WRONGLY: Final = range(400, 500)
"""Statuses with which an admin listener refuses a request before it looks at what is under way."""
ANSWER_LIMIT: Final = 5.0
"""Seconds for an answer about the roles."""
LONGEST_AFTER: Final = 120.0
"""Seconds beyond an action's own limit for what may follow: a seal, a release, a successor's claim."""

# What serving needs and asking does not; whatever is given is still checked.
NOT_NEEDED: Final[dict[str, Any]] = {
    "node": "status",
    "region": "status",
    "advertise": "https://localhost",
    "store": {"dsn": "postgresql://localhost"},
    "route": [{"path": "/", "role": "status", "target": "http://localhost"}],
}


class Refused(click.ClickException):
    """The admin listener does not do it: nothing was begun, and the exit code says so."""

    exit_code = EXIT_REFUSED

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"fencegate: {self.message}", err=True)


def action_options(listener: str) -> Callable[[F], F]:
    """The options of every command that acts through an admin listener: ``listener`` says whose, for the help."""

    def add(command: F) -> F:
        command = settings_options()(command)
        for option in (
            click.option("--json", "as_json", is_flag=True, help="The admin listener's answer as it came."),
            click.option(
                "--token-file", metavar="FILE", help="The bearer token for actions (else that of the settings)."
            ),
            click.option("--admin", metavar="ADDRESS", help=f"{listener}, host:port or URL."),
        ):
            command = option(command)
        return command

    return add


def act_by(
    admin: str | None,
    token_file: str | None,
    config: str | None,
    assign: tuple[str, ...],
    role: str,
    action: str,
    asked: Document,
) -> Document:
    """As :func:`act`, with the address and the token of the options, else those of the settings."""
    settings = load(config, flags_of(assign, {}), defaults=NOT_NEEDED)
    path = token_file or settings.admin.token_file
    token = read_secret(path, "the token file") if path else None
    return act(admin or settings.listen.admin_url, token, role, action, asked)


def end(document: Document, codes: Mapping[str, int], say: Callable[[Document], None], *, as_json: bool) -> None:
    """Tell the outcome, and exit with its code in ``codes``; 1 for any other."""
    if as_json:
        click.echo(json.dumps(document))
    else:
        say(document)
    sys.exit(codes.get(str(document["outcome"]), 1))


def roles(address: str, token: str | None) -> Document:
    """The answer of ``/-/roles`` at ``address`` (``host:port`` or a URL). Raises :class:`FencegateError`."""
    place, status, document = _exchange(address, token, "GET", "/-/roles", None, ANSWER_LIMIT)
    if status == 401:
        raise FencegateError(f"the admin listener at {place} asks for a token: name its file by --token-file")
    if status != 200 or not isinstance(document, dict) or "roles" not in document:
        raise FencegateError(f"{place} answers {status}: is that the admin listener of a fencegate?")
    return document


def act(address: str, token: str | None, role: str, action: str, asked: Document) -> Document:
    """What became of ``action`` on ``role``; it has an ``outcome``.

    Raises :class:`Refused` where the listener names an error of the request, and :class:`FencegateError` for all else.
    """
    path, limit = f"/-/roles/{quote(role)}/{action}", asked.get("limit", 0.0) + LONGEST_AFTER
    place, status, document = _exchange(address, token, "POST", path, asked, limit)
    if isinstance(document, dict) and "outcome" in document:
        return document
    if isinstance(document, dict) and "error" in document:
        told = f"{place} answers {status}: {document['error']}"
        if status == 401:
            told += " The one that was sent is not it: name" if token else " Name"
            told += " its file by --token-file."
        raise Refused(told) if status in ASKED_WRONGLY else FencegateError(told)
    raise FencegateError(f"{place} answers {status}: is that the admin listener of a fencegate?")


def _advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return ". A CA of your own is found by SSL_CERT_FILE"
    if isinstance(error, ssl.SSLError | http.client.RemoteDisconnected):
        return ". Is it http:// or https:// there?"
    return ". Does a gateway run there? --admin names another address"


def _exchange(
    address: str, token: str | None, method: str, path: str, asked: Document | None, limit: float
) -> tuple[str, int, Any]:
    """Who answered, the status, and the JSON of the answer (``None`` for what is none)."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # as the resolver does, which refuses empty and very long labels
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--admin takes host:port or a URL such as http://127.0.0.1:8081; not {address!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=limit)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if asked is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, None if asked is None else json.dumps(asked), headers)
        response = connection.getresponse()
        status, text = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise FencegateError(f"no answer from the admin listener at {parts.netloc}: {error}{_advice(error)}") from None
    finally:
        connection.close()
    try:
        return parts.netloc, status, json.loads(text)
    except ValueError:
        return parts.netloc, status, None
