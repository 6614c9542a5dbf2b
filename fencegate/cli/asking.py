"""Asking an admin listener, as the commands for operators do: what it says of the roles, and its actions."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final
from urllib.parse import quote, urlsplit

import click

from fencegate.errors import FencegateError

Document = dict[str, Any]

EXIT_REFUSED: Final = 69
"""``EX_UNAVAILABLE``: nothing was begun."""
EXIT_UNDONE: Final = 75
"""``EX_TEMPFAIL``: begun and taken back; writes go on where they went before, asking again may work."""
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


def roles(address: str, token: str | None) -> Document:
    """The answer of ``/-/roles`` at ``address`` (``host:port`` or a URL). Raises :class:`FencegateError`."""
    place, status, document = _exchange(address, token, "GET", "/-/roles", None, ANSWER_LIMIT)
    if status == 401:
        raise FencegateError(f"the admin listener at {place} asks for a token: name its file by --token-file")
    if status != 200 or not isinstance(document, dict) or "roles" not in document:
        raise FencegateError(f"{place} answers {status}: is that the admin listener of a fencegate?")
    return document


def act(address: str, token: str | None, role: str, action: str, asked: Document) -> Document:
    """What became of ``action`` on ``role``; it has an ``outcome``. Raises :class:`FencegateError` for all else."""
    path, limit = f"/-/roles/{quote(role)}/{action}", asked.get("limit", 0.0) + LONGEST_AFTER
    place, status, document = _exchange(address, token, "POST", path, asked, limit)
    if isinstance(document, dict) and "outcome" in document:
        return document
    if isinstance(document, dict) and "error" in document:
        raise FencegateError(f"{place} answers {status}: {document['error']}")
    raise FencegateError(f"{place} answers {status}: is that the admin listener of a fencegate?")


def _exchange(
    address: str, token: str | None, method: str, path: str, asked: Document | None, limit: float
) -> tuple[str, int, Any]:
    """Who answered, the status, and the JSON of the answer (``None`` for what is none)."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
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
        raise FencegateError(f"no answer from the admin listener at {parts.netloc}: {error}") from None
    finally:
        connection.close()
    try:
        return parts.netloc, status, json.loads(text)
    except ValueError:
        return parts.netloc, status, None
