"""``fencegate status``: what one gateway's admin listener says of every role."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fencegate.cli.loading import flags_of, load, read_secret, settings_options
from fencegate.cli.look import printable
from fencegate.config import Settings
from fencegate.errors import FencegateError

ANSWER_LIMIT: Final = 5.0
NOTHING: Final = "-"

# What serving needs and asking does not; whatever is given is still checked.
NOT_NEEDED: Final[dict[str, Any]] = {
    "node": "status",
    "region": "status",
    "advertise": "http://localhost",
    "store": {"dsn": "postgresql://localhost"},
    "route": [{"path": "/", "role": "status", "target": "http://localhost"}],
}

Document = dict[str, Any]


class View(NamedTuple):
    """One way to show a document: in plain lines, and for a terminal."""

    lines: Callable[[Document], Iterable[str]]
    picture: Callable[[Document], RenderableType]


@click.command()
@click.option("--admin", metavar="ADDRESS", help="The admin listener, host:port or URL (else that of the settings).")
@click.option("--token-file", metavar="FILE", help="The bearer token for it (else that of the settings).")
@click.option("--json", "as_json", is_flag=True, help="The admin listener's answer as it came.")
@click.option("--zombies", is_flag=True, help="Who was refused for a stale token in the last hour, by sender.")
@click.option("--watch", is_flag=True, help="Again and again, until interrupted.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds.")
@settings_options()
def status(
    admin: str | None,
    token_file: str | None,
    as_json: bool,
    zombies: bool,
    watch: bool,
    interval: float,
    config: str | None,
    assign: tuple[str, ...],
) -> None:
    """Roles, who leads them under which token, what is left of the lease, and what was refused."""
    settings = load(config, flags_of(assign, {}), defaults=NOT_NEEDED)
    address, token = admin or settings.listen.admin, _token(settings, token_file)
    view = ZOMBIES if zombies else ROLES
    if not watch:
        _show(ask(address, token), view, as_json)
    elif as_json or not sys.stdout.isatty():
        for document in _again(address, token, interval):
            _show(document, view, as_json)
    else:
        _live(address, token, view, interval)


def _token(settings: Settings, token_file: str | None) -> str | None:
    path = token_file or settings.admin.read_token_file or settings.admin.token_file
    return read_secret(path, "the token file") if path else None


def ask(address: str, token: str | None) -> Document:
    """The answer of ``/-/roles`` at ``address`` (``host:port`` or a URL). Raises :class:`FencegateError`."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--admin takes host:port or a URL such as http://127.0.0.1:8081; not {address!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=ANSWER_LIMIT)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", "/-/roles", headers=headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise FencegateError(f"no answer from the admin listener at {parts.netloc}: {error}") from None
    finally:
        connection.close()
    if response.status == 401:
        raise FencegateError(f"the admin listener at {parts.netloc} asks for a token: name its file by --token-file")
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if response.status != 200 or not isinstance(document, dict) or "roles" not in document:
        raise FencegateError(f"{parts.netloc} answers {response.status}: is that the admin listener of a fencegate?")
    return document


def _again(address: str, token: str | None, interval: float) -> Iterator[Document]:
    while True:
        yield ask(address, token)
        time.sleep(interval)


def _show(document: Document, view: View, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
    elif sys.stdout.isatty():
        Console().print(view.picture(document))
    else:
        for line in view.lines(document):
            click.echo(line)


def _live(address: str, token: str | None, view: View, interval: float) -> None:
    with Live(Text("asking ..."), auto_refresh=False, screen=False) as live:
        while True:
            try:
                live.update(view.picture(ask(address, token)), refresh=True)
            except FencegateError as error:
                live.update(Text(str(error), style="bold red"), refresh=True)
            time.sleep(interval)


def lines(document: Document) -> Iterator[str]:
    """One plain line per role, ``name=value`` after ``name=value``."""
    if not document["store"]["up"]:
        yield f"store=down reason={json.dumps(document['store']['reason'])}"
    for role in document["roles"]:
        row = _row(role)
        yield f"role={role['role']} " + " ".join(f"{name}={value.replace(' ', '_')}" for name, value in row.items())


def picture(document: Document) -> RenderableType:
    """A table for a terminal."""
    store = document["store"]
    head = Text.assemble(
        ("node ", "dim"), document["node"], ("  region ", "dim"), document["region"], ("  store ", "dim")
    )
    head.append("up" if store["up"] else f"down: {store['reason']}", style="green" if store["up"] else "bold red")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("role", "leader", "token", "lease left", "max seen", "fence", "this node", "rejections"):
        table.add_column(name, justify="right" if name in ("token", "lease left", "max seen") else "left")
    for role in document["roles"]:
        row = _row(role)
        styles = {"open": "green", "draining": "yellow"}
        table.add_row(
            Text(role["role"], style="bold"),
            Text(row["leader"], style="red" if row["leader"] in ("nobody", "unknown") else ""),
            row["token"],
            row["lease_left"],
            row["max_token_seen"],
            Text(row["fence"], style=styles.get(row["fence"], "red")),
            row["this_node"],
            Text(row["rejections"], style="" if row["rejections"] == NOTHING else "yellow"),
        )
    return Group(head, table)


def _row(role: Document) -> dict[str, str]:
    fence, leader = role["fence"], role["leader"]
    rejections = role["rejections"] or {}
    return {
        "leader": leader["region"] if leader else ("nobody" if role["leadership_known"] else "unknown"),
        "token": str(leader["token"]) if leader else NOTHING,
        "lease_left": _lease_left(role),
        "max_token_seen": str(fence["max_token_seen"]) if fence else NOTHING,
        "fence": _fence(fence),
        "this_node": role["candidacy"] or NOTHING,
        "rejections": ",".join(f"{reason}:{count}" for reason, count in sorted(rejections.items())) or NOTHING,
    }


def _lease_left(role: Document) -> str:
    """What the leader has left by the election's word; else what this region's store gives it."""
    milliseconds = (role["leader"] or {}).get("lease_expires_in_ms")
    if milliseconds is not None:
        return f"{milliseconds / 1000:.1f}s"
    seconds = (role["fence"] or {}).get("valid_for_s")
    return f"{seconds:.1f}s" if seconds else NOTHING


def _fence(fence: Document | None) -> str:
    if fence is None:
        return "none"
    if fence["draining"]:
        return "draining"
    return "open" if fence["open"] else "closed"


# -- who still thinks that it leads -------------------------------------------------------------------


def zombie_lines(document: Document) -> Iterator[str]:
    """One plain line per sender of stale writes."""
    for one in document["stale_senders"]:
        values = {name: NOTHING if one[name] is None else one[name] for name in one if name != "agent"}
        yield " ".join(f"{name}={value}" for name, value in values.items()) + f" agent={json.dumps(one['agent'])}"


def zombie_picture(document: Document) -> RenderableType:
    """The same as a table."""
    senders = document["stale_senders"]
    if not senders:
        return Text(f"Nobody: no stale write reached {document['node']} in the last hour.", style="green")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("role", "client", "agent", "refused", "reason", "its token", "since", "last"):
        table.add_column(name, justify="right" if name in ("refused", "its token", "since", "last") else "left")
    for one in senders:
        ages = [f"{one[name]:.0f} s ago" for name in ("first_age_s", "last_age_s")]
        told = [printable(str(one[name])) for name in ("role", "client", "agent", "refused", "reason", "token")]
        table.add_row(*told, *ages)
    return table


ROLES: Final = View(lines, picture)
ZOMBIES: Final = View(zombie_lines, zombie_picture)
