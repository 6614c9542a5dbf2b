"""``fencegate``: finds the command, and turns what went wrong into words and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Final

import click

from fencegate import __version__
from fencegate.errors import ConfigurationError, FencegateError

EXIT_FAILED: Final = 1
EXIT_CONFIGURATION: Final = 78
"""``EX_CONFIG`` of sysexits.h: starting again without a change cannot help."""

COMMANDS: Final = {
    "demo": "Watch two regions fail over and back without diverging.",
    "serve": "Run the gateway, with its elector where configured.",
    "elect": "Run a command only while leading a role.",
    "migrate": "Apply the migrations that the store lacks.",
    "sql": "Print the migrations.",
    "handoff": "Hand a role to another region.",
    "drain": "Stop a role's writes for a while.",
    "seal": "End a term for good in a region's store.",
    "gameday": "Rehearse a failover and a failback, with stale clients, and judge it.",
    "diff": "Find where two copies of a ledger fork.",
    "status": "Show roles, leaders, tokens and rejections.",
    "doctor": "Look for what would go wrong, and say what to do.",
    "reopen": "Take a store as it is, after it was found to have gone back.",
    "rebase": "Move a role's tokens up, after a restore took them back.",
}
"""Each command by name with its line of help; it is ``fencegate.cli.<name>.<name>``, imported when it is called."""


class _Commands(click.Group):
    """Loads a command's module when it is needed: ``fencegate --version`` must not pay for a server."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"fencegate.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="fencegate %(version)s")
def fencegate() -> None:
    """A fencing-token enforcement gateway: one owner may write, and the store itself refuses every other."""


def say_faults(faults: list[str]) -> None:
    """Every fault of a configuration on stderr, as a list."""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    click.echo(f"fencegate: the configuration has {count}:", err=True)
    for fault in faults:
        click.echo(f"  - {fault}", err=True)


def main(arguments: list[str] | None = None) -> None:
    """The entry point. Exits 0, 1 (failed), 2 (wrong usage) or 78 (bad configuration); never with a stack trace."""
    try:
        code = fencegate.main(arguments, prog_name="fencegate", standalone_mode=False)
    except ConfigurationError as error:
        say_faults(error.faults)
        code = EXIT_CONFIGURATION
    except FencegateError as error:
        click.echo(f"fencegate: {error}", err=True)
        code = EXIT_FAILED
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
