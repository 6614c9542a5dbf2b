"""``fencegate status``: what one gateway's admin listener says of every role."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fencegate.cli.asking import NOT_NEEDED, Document, roles
from fencegate.cli.loading import flags_of, load, read_secret, settings_options
from fencegate.cli.look import console
from fencegate.cli.status_view import ROLES, ZOMBIES, View
from fencegate.config import Settings
from fencegate.errors import FencegateError


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
    address, token = admin or settings.listen.admin_url, _token(settings, token_file)
    view, screen = ZOMBIES if zombies else ROLES, console()
    if not watch:
        _show(roles(address, token), view, screen, as_json)
    elif as_json or not screen.is_terminal:
        for document in _again(address, token, interval):
            _show(document, view, screen, as_json)
    else:
        _live(address, token, view, screen, interval)


def _token(settings: Settings, token_file: str | None) -> str | None:
    path = token_file or settings.admin.read_token_file or settings.admin.token_file
    return read_secret(path, "the token file") if path else None


def _again(address: str, token: str | None, interval: float) -> Iterator[Document]:
    while True:
        yield roles(address, token)
        time.sleep(interval)


def _show(document: Document, view: View, screen: Console, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(document))
    elif screen.is_terminal:
        screen.print(view.picture(document, screen))
    else:
        for line in view.lines(document):
            click.echo(line)


def _live(address: str, token: str | None, view: View, screen: Console, interval: float) -> None:
    with Live(Text(" asking ..."), console=screen, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                live.update(view.picture(roles(address, token), screen), refresh=True)
            except FencegateError as error:
                live.update(Text(f" {error}", style="bad"), refresh=True)
            time.sleep(interval)
