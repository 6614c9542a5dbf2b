"""``fencegate diff``: where two copies of a ledger fork, and what has to be reconciled."""

from __future__ import annotations

import asyncio
import csv
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final, Self

import click
import orjson
from rich.text import Text

from fencegate.cli.look import console, printable
from fencegate.config.parsing import shown
from fencegate.errors import FencegateError
from fencegate.fence import Entry
from fencegate.gameday.compare import Comparison, Outcome, Side, compare
from fencegate.gameday.fork import Decision, Fate

EXIT_FORKED: Final = 1
EXIT_TROUBLE: Final = 2
_SIDES: Final = ("first", "second")
_COLUMNS: Final = ("fate", "key", "side", "seq", "token", "recorded_at", "hash", "body", "caller")


@click.command(
    epilog="Exit code, as of diff(1): 0 no fork (one may be behind the other), 1 they forked or a chain is broken, "
    "2 trouble. A password is better kept out of the DSN: PGPASSWORD and ~/.pgpass work."
)
@click.argument("first", metavar="DSN")
@click.argument("second", metavar="DSN")
@click.argument("role")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--report", type=click.Path(dir_okay=False), help="Write every entry behind the fork to this CSV file.")
@click.option("--show", type=click.IntRange(0), default=10, show_default=True, help="Examples of different decisions.")
@click.option("--verify", is_flag=True, help="Compute both hash chains anew first; reads every entry.")
def diff(first: str, second: str, role: str, as_json: bool, report: str | None, show: int, verify: bool) -> None:
    """Find where two copies of ROLE's ledger fork, which terms wrote each side, and what became of each decision."""
    if first == second:
        raise click.UsageError("both DSNs are the same, and a ledger never forks from itself: name two stores")
    names = (shown("dsn", first).strip('"'), shown("dsn", second).strip('"'))
    examples: list[Decision] = []
    with _Report(report) if report else nullcontext() as written:

        def take(decision: Decision) -> None:
            if decision.fate is Fate.DIFFERENT and len(examples) < show:
                examples.append(decision)
            if written:
                written.decision(decision)

        alone = written.without_key if written else None
        try:
            found = asyncio.run(compare((first, second), role, each=take, alone=alone, verify=verify))
            if written:
                written.finish()
        except FencegateError as error:
            click.echo(f"fencegate: {error}", err=True)
            sys.exit(EXIT_TROUBLE)
    if as_json:
        click.echo(orjson.dumps(document(found, names, examples)))
    else:
        screen = console()
        for line in lines(found, names, examples):
            screen.print(line, soft_wrap=True)
        if report:
            told = "Every entry behind the fork is" if found.outcome is Outcome.FORKED else "Without a fork no entry is"
            screen.print(f"{told} in {report}.", soft_wrap=True)
    broken = any(side.broken for side in found.sides)
    sys.exit(EXIT_FORKED if broken or found.outcome is Outcome.FORKED else 0)


class _Report:
    """The report's file, which is made at the start, and taken away again where it does not come to its end."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = open(path, "x", newline="", encoding="utf-8")  # noqa: SIM115  # closed by finish() or __exit__
        except FileExistsError:
            raise click.UsageError(f"--report: {path} is there already, and is not written over") from None
        except OSError as error:
            raise click.UsageError(f"--report: {path}: {error.strerror}") from None
        self._rows = csv.writer(self._file)
        self._rows.writerow(_COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._file.close()
        if error is not None:
            os.unlink(self._path)

    def finish(self) -> None:
        with self._told():
            self._file.close()

    def decision(self, decision: Decision) -> None:
        for side, entries in enumerate((decision.first, decision.second)):
            for entry in entries:
                self._write(decision.fate, side, entry)

    def without_key(self, side: int, entry: Entry) -> None:
        self._write("without a key, not matched", side, entry)

    def _write(self, fate: str, side: int, e: Entry) -> None:
        place = (e.seq, e.token, e.recorded_at, e.hash)
        who = _inert(e.caller or "")
        with self._told():
            self._rows.writerow((fate, _inert(e.key or ""), _SIDES[side], *place, e.body.decode(), who))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A full disk is no trouble of the store's."""
        try:
            yield
        except OSError as error:
            raise FencegateError(f"the report {self._path} cannot be written: {error.strerror}") from None


def _inert(key: str) -> str:
    """A spreadsheet takes a cell that begins like this for a formula, and clients choose their keys."""
    return f"'{key}" if key.startswith(("=", "+", "-", "@")) else key


# -- saying it --------------------------------------------------------------------------------------


def document(found: Comparison, names: tuple[str, str], examples: list[Decision]) -> dict[str, Any]:
    """The whole comparison, for ``orjson``. ``examples`` are different decisions under one key."""
    return {
        "role": found.role,
        "outcome": found.outcome,
        "last_common": _entry(found.last_common) if found.last_common else None,
        "chains_verified": found.verified,
        "sides": [_side(found, side, name) for side, name in zip(found.sides, names, strict=True)],
        "keys": {fate.name.lower(): found.fates[fate] for fate in Fate},
        "different": [
            {
                "key": d.key,
                "caller": d.caller or None,
                "first": [_entry(e) for e in d.first],
                "second": [_entry(e) for e in d.second],
            }
            for d in examples
        ],
    }


def _side(found: Comparison, side: Side, name: str) -> dict[str, Any]:
    return {
        "dsn": name,
        "last_seq": side.last_seq,
        "behind_the_common": side.last_seq - found.common,
        "broken": {"seq": side.broken.seq, "reason": side.broken.reason} if side.broken else None,
        "terms": [{slot: getattr(term, slot) for slot in term.__slots__} for term in side.terms],
    }


def _entry(entry: Entry) -> dict[str, Any]:
    # The body as it was sent: it may be nested deeper, and its numbers be longer, than a reader can follow.
    place = {"seq": entry.seq, "token": entry.token, "recorded_at": entry.recorded_at, "hash": entry.hash}
    return {**place, "caller": entry.caller, "body": orjson.Fragment(entry.body)}


def lines(found: Comparison, names: tuple[str, str], examples: list[Decision]) -> Iterator[Text]:
    """The same for a person."""
    common = found.last_common
    until = f" (entry {common.seq}, token {common.token}, {common.recorded_at})" if common else ""
    match found.outcome:
        case Outcome.SAME:
            yield Text.assemble(("SAME", "good"), f": both ledgers of {found.role} end alike{until}")
        case Outcome.BEHIND:
            late, ahead = (0, 1) if found.sides[0].last_seq == found.common else (1, 0)
            missing = found.sides[ahead].last_seq - found.common
            yield Text.assemble(
                ("NO FORK", "good"), f": {names[late]} has yet to get {missing} more; equal before{until}"
            )
        case Outcome.FORKED:
            yield Text.assemble(("FORKED", "bad"), f" at entry {found.common + 1} of {found.role}; equal before{until}")
    for side, name in zip(found.sides, names, strict=True):
        if side.broken:
            yield Text.assemble(("BROKEN CHAIN", "bad"), f" at entry {side.broken.seq} in {name}: {side.broken.reason}")
        if side.terms:
            yield Text(f"  {name}")
        for term in side.terms:
            yield Text(
                f"    token {term.token}: entries {term.first_seq} to {term.last_seq} ({term.entries}), "
                f"{term.since} to {term.until}"
            )
    if found.outcome is Outcome.FORKED:
        yield from _fates(found, examples)


def _fates(found: Comparison, examples: list[Decision]) -> Iterator[Text]:
    yield Text("What became of each decision behind the fork, by idempotency key:")
    for fate in Fate:
        style = "bad" if fate is Fate.DIFFERENT and found.fates[fate] else "plain"
        yield Text.assemble((f"  {fate.value:32}{found.fates[fate]:>10}", style))
    if any(found.without_key):
        yield Text(f"  {'without a key, not matched':32}{found.without_key[0]:>10} in the first, "
                   f"{found.without_key[1]} in the second")  # fmt: skip
    for decision in examples:
        by = f" by {printable(decision.caller)}" if decision.caller else ""
        yield Text(f"  {printable(decision.key)}{by}")
        for side, entries in (("first ", decision.first), ("second", decision.second)):
            for e in entries:
                yield Text(f"    {side} {e.seq:>8}, token {e.token}: {printable(e.body.decode())}")
