"""``fencegate handoff``: hands a role to another region through the admin listener of the node that leads it."""

from __future__ import annotations

import http.client
import json
import sys
from typing import Any, Final
from urllib.parse import quote, urlsplit

import click

from fencegate.cli.loading import flags_of, load, read_secret, settings_options
from fencegate.cli.look import console
from fencegate.cli.status import NOT_NEEDED
from fencegate.errors import FencegateError

EXIT_REFUSED: Final = 69
"""``EX_UNAVAILABLE``: nothing was begun."""
EXIT_UNDONE: Final = 75
"""``EX_TEMPFAIL``: begun and taken back; the old leader leads on, asking again may work."""

_CODES: Final = {
    "done": 0,
    "already": 0,
    "busy": EXIT_REFUSED,
    "no_candidate": EXIT_REFUSED,
    "not_here": EXIT_REFUSED,
    "undone": EXIT_UNDONE,
}
_LONGEST_AFTER: Final = 120.0
"""Seconds beyond the limit for the seal, the release and the successor's claim."""

Document = dict[str, Any]


@click.command()
@click.argument("role")
@click.option("--to", required=True, metavar="REGION", help="The region that is to lead.")
@click.option(
    "--limit",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    help="Seconds in which writes under way must have ended; after that everything is undone.",
)
@click.option("--admin", metavar="ADDRESS", help="The leader's admin listener, host:port or URL.")
@click.option("--token-file", metavar="FILE", help="The bearer token for actions (else that of the settings).")
@click.option("--json", "as_json", is_flag=True, help="The admin listener's answer as it came.")
@settings_options()
def handoff(
    role: str,
    to: str,
    limit: float,
    admin: str | None,
    token_file: str | None,
    as_json: bool,
    config: str | None,
    assign: tuple[str, ...],
) -> None:
    """Hand ROLE to another region: stop writes, drain, seal the old store, open the new one.

    Ask the node that leads. Asking twice is one handoff; asking for the region that leads already is success.

    \b
    Exit code: 0   REGION leads
               1   no answer, or begun and not known to be ended: see `fencegate status`
               69  refused before anything was stopped
               75  undone: writes go on where they went before
               78  bad configuration
    """
    settings = load(config, flags_of(assign, {}), defaults=NOT_NEEDED)
    path = token_file or settings.admin.token_file
    token = read_secret(path, "the token file") if path else None
    document = ask(admin or settings.listen.admin, token, role, to, limit)
    if as_json:
        click.echo(json.dumps(document))
    else:
        say(document)
    sys.exit(_CODES.get(str(document.get("outcome")), 1))


def ask(address: str, token: str | None, role: str, to: str, limit: float) -> Document:
    """The answer of the admin listener at ``address``. Raises :class:`FencegateError` where it is none."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--admin takes host:port or a URL such as http://127.0.0.1:8081; not {address!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=limit + _LONGEST_AFTER)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        body = json.dumps({"to": to, "limit": limit})
        connection.request("POST", f"/-/roles/{quote(role)}/handoff", body, headers)
        response = connection.getresponse()
        status, text = response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise FencegateError(f"no answer from the admin listener at {parts.netloc}: {error}") from None
    finally:
        connection.close()
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and "outcome" in document:
        return document
    if isinstance(document, dict) and "error" in document:
        raise FencegateError(f"{parts.netloc} answers {status}: {document['error']}")
    raise FencegateError(f"{parts.netloc} answers {status}: is that the admin listener of a fencegate?")


def say(document: Document) -> None:
    """The outcome in a line: coloured on a terminal, plain elsewhere."""
    outcome = str(document["outcome"])
    style = {0: "good", EXIT_UNDONE: "act"}.get(_CODES.get(outcome, 1), "bad")
    out = console()
    line = f"{document['role']}: {outcome.replace('_', ' ')}"
    if document.get("token"):
        line += f", token {document['token']}"
    if document.get("paused_ms") is not None:
        line += f", writes paused for {document['paused_ms']} ms at most"
    out.print(line, style=style)
    out.print(f"  {document['detail']}", style="quiet", soft_wrap=True)
