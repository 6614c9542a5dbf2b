"""``fencegate sql``: the migrations as one script, for those who apply SQL with their own tool."""

from __future__ import annotations

import click

from fencegate.store import migrate as migrations


@click.command()
@click.option("--portability", is_flag=True, help="For a store with portability = true.")
def sql(portability: bool) -> None:
    """Print the migrations as one SQL script (fencegate sql | psql ...)."""
    click.echo(migrations.sql(portable=portability), nl=False)
