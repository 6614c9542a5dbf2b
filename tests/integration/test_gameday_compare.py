"""Two real copies of a ledger, the same, behind and forked; and the command that tells."""

from __future__ import annotations

import asyncio
import csv
import errno
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from fencegate.cli.diff import diff
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import Unavailable
from fencegate.fence import Effect, Write
from fencegate.gameday.compare import Outcome, compare
from fencegate.gameday.fork import Decision, Fate
from fencegate.store.copies import open_copy
from fencegate.store.migrate import migrations
from fencegate.store.postgres import PostgresStore

ROLE = "ledger"


class Copy:
    """One region's store, opened under a token and written to."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.store = PostgresStore(dsn, gateway="gw")

    async def open(self, token: int) -> None:
        await self.store.ensure_roles({ROLE: "lease"})
        assert await self.store.claim(ROLE, token, "gw", await self.store.clock(), 60.0) is None
        self.token = token

    async def write(self, key: str, body: str = "{}", caller: str = "") -> None:
        digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in (key, body)]
        keyed = {"key": key, "key_digest": digests[0], "payload_digest": digests[1]} if key else {}
        write = Write(ROLE, self.token, body.encode(), caller=caller, **keyed)
        assert (await self.store.append(write, 5.0)).effect is Effect.APPLIED


@pytest.fixture
async def first(migrated_dsn: str) -> AsyncIterator[Copy]:
    made = Copy(migrated_dsn)
    await made.open(41)
    yield made
    await made.store.close()


@pytest.fixture
def copy_of(postgres: EmbeddedPostgres) -> Iterator[Callable[[Copy], str]]:
    """Makes a copy of a database as it is; its address. Nobody may be connected to the original meanwhile."""
    with ExitStack() as stack:

        def run(statement: str) -> None:
            async def execute() -> None:
                connection = await asyncpg.connect(postgres.dsn)
                try:
                    await connection.execute(statement)
                finally:
                    await connection.close()

            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                runner.run(execute())

        def make(original: Copy) -> str:
            source = original.dsn.rsplit("/", 1)[1]
            name = f"{source}_b"
            run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'")
            run(f"CREATE DATABASE {name} TEMPLATE {source}")
            stack.callback(run, f"DROP DATABASE {name} WITH (FORCE)")
            return postgres.dsn_of(name)

        yield make


@pytest.fixture
async def forked(first: Copy, copy_of: Callable[[Copy], str]) -> AsyncIterator[tuple[Copy, Copy]]:
    """Forty entries in common, and then: one decision on both sides, one that differs, and some of each side's own."""
    for n in range(40):
        await first.write(f"common-{n}")
    second = Copy(await asyncio.to_thread(copy_of, first))
    await second.open(42)
    first.store = PostgresStore(first.dsn, gateway="gw")
    for copy in (first, second):
        await copy.write("both", '{"ok": true, "n": 1}')
        await copy.write("", '"nobody knows"')
    await first.write("differs", '{"decision": "approve\\u009b31m"}'.replace("\\u009b", "\x9b"))
    await second.write("only-second")
    await second.write("differs", '{"decision": "reject"}')
    await second.write("=also()")
    yield first, second
    await second.store.close()


async def test_a_copy_of_a_ledger_is_the_same(first: Copy, copy_of: Callable[[Copy], str]) -> None:
    await first.write("a")
    second = await asyncio.to_thread(copy_of, first)
    found = await compare((first.dsn, second), ROLE, verify=True)
    assert (found.outcome, found.common) == (Outcome.SAME, 1)
    assert [side.terms for side in found.sides] == [(), ()]


async def test_empty_ledgers_are_the_same(first: Copy) -> None:
    found = await compare((first.dsn, first.dsn), ROLE, verify=True)
    assert (found.outcome, found.common, found.last_common) == (Outcome.SAME, 0, None)


async def test_a_copy_that_lacks_the_end_is_behind_and_no_fork(first: Copy, copy_of: Callable[[Copy], str]) -> None:
    await first.write("a")
    second = await asyncio.to_thread(copy_of, first)
    first.store = PostgresStore(first.dsn, gateway="gw")
    await first.write("b")
    found = await compare((second, first.dsn), ROLE)
    assert (found.outcome, found.common) == (Outcome.BEHIND, 1)
    assert [[(t.token, t.entries, t.first_seq) for t in side.terms] for side in found.sides] == [[], [(41, 1, 2)]]


async def test_a_fork_is_found_with_the_terms_that_wrote_each_side(forked: tuple[Copy, Copy]) -> None:
    decisions: list[Decision] = []
    found = await compare((forked[0].dsn, forked[1].dsn), ROLE, each=decisions.append, verify=True)
    assert (found.outcome, found.common, found.verified) == (Outcome.FORKED, 40, True)
    assert found.last_common is not None
    assert found.last_common.key == "common-39"
    shares = [[(t.token, t.first_seq, t.last_seq, t.entries) for t in side.terms] for side in found.sides]
    assert shares == [[(41, 41, 43, 3)], [(42, 41, 45, 5)]]
    assert {d.key: d.fate for d in decisions} == {
        "both": Fate.SAME,
        "differs": Fate.DIFFERENT,
        "only-second": Fate.ONLY_SECOND,
        "=also()": Fate.ONLY_SECOND,
    }
    assert found.fates == {Fate.SAME: 1, Fate.DIFFERENT: 1, Fate.ONLY_SECOND: 2}
    assert found.without_key == (1, 1)


async def test_an_entry_rewritten_in_place_is_found_where_the_chain_is_computed_anew(
    forked: tuple[Copy, Copy],
) -> None:
    beside = await asyncpg.connect(forked[1].dsn)
    await beside.execute("SET session_replication_role = replica")
    await beside.execute("UPDATE fencegate.entry SET body = '{\"a\": 1}' WHERE seq = 7")
    await beside.close()
    found = await compare((forked[0].dsn, forked[1].dsn), ROLE, verify=True)
    assert found.common == 40
    assert found.sides[0].broken is None
    assert found.sides[1].broken is not None
    assert found.sides[1].broken.seq == 7


async def test_a_store_without_the_role_or_without_tables_is_named(first: Copy, fresh_dsn: str) -> None:
    with pytest.raises(Unavailable, match=r"first ledger: this store has no role 'other'"):
        await compare((first.dsn, first.dsn), "other")
    with pytest.raises(Unavailable, match="second ledger: this database has no fencegate tables"):
        await compare((first.dsn, fresh_dsn), ROLE)
    with pytest.raises(Unavailable, match="second ledger: the store takes no connection"):
        await compare((first.dsn, "postgresql://x@127.0.0.1:1/none"), ROLE)


# -- the command ------------------------------------------------------------------------------------


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, diff, arguments)


async def test_the_command_tells_a_person_and_writes_every_entry_down(
    forked: tuple[Copy, Copy], tmp_path: Path
) -> None:
    report = tmp_path / "fork.csv"
    result = await run(forked[0].dsn, forked[1].dsn, ROLE, "--report", str(report))
    assert result.exit_code == 1, result.output
    assert "FORKED at entry 41 of ledger; equal before (entry 40, token 41, " in result.output
    assert "token 42: entries 41 to 45 (5)" in result.output
    assert "different decisions" in result.output
    assert "\x9b" not in result.output
    assert '{"decision": "approve\\x9b31m"}' in result.output
    assert forked[0].dsn.split(":")[2].split("@")[0] not in result.output, "a password"
    rows = list(csv.DictReader(report.read_text("utf-8").splitlines()))
    assert [(row["key"], row["side"], row["token"]) for row in rows] == [
        ("'=also()", "second", "42"),
        ("both", "first", "41"),
        ("both", "second", "42"),
        ("differs", "first", "41"),
        ("differs", "second", "42"),
        ("only-second", "second", "42"),
        ("", "first", "41"),
        ("", "second", "42"),
    ]
    assert [(row["fate"], row["body"]) for row in rows[-2:]] == [("without a key, not matched", '"nobody knows"')] * 2
    assert {row["caller"] for row in rows} == {""}
    again = await run(forked[0].dsn, forked[1].dsn, ROLE, "--report", str(report))
    assert again.exit_code == 2
    assert "is not written over" in again.output


async def test_the_command_tells_a_program(forked: tuple[Copy, Copy]) -> None:
    result = await run(forked[0].dsn, forked[1].dsn, ROLE, "--json", "--verify")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["outcome"], told["chains_verified"]) == (1, "forked", True)
    assert told["last_common"]["seq"] == 40
    assert told["keys"] == {"same": 1, "different": 1, "only_first": 0, "only_second": 2}
    assert told["different"][0]["second"][0]["body"] == {"decision": "reject"}
    assert [side["behind_the_common"] for side in told["sides"]] == [3, 5]


async def test_one_address_given_twice_is_no_sign_that_nothing_forked() -> None:
    result = await run(*["postgresql://fencegate@localhost/ledger"] * 2, ROLE)
    assert result.exit_code == 2
    assert "both DSNs are the same" in result.output


async def test_who_wrote_each_side_is_told(first: Copy, copy_of: Callable[[Copy], str], tmp_path: Path) -> None:
    await first.write("common", caller="carol")
    second = Copy(await asyncio.to_thread(copy_of, first))
    await second.open(42)
    first.store = PostgresStore(first.dsn, gateway="gw")
    await first.write("k", '"a"', "alice")
    await second.write("k", '"b"', "alice")
    report = tmp_path / "fork.csv"
    for_a_person = await run(first.dsn, second.dsn, ROLE, "--report", str(report), "--verify")
    for_a_program = json.loads((await run(first.dsn, second.dsn, ROLE, "--json")).stdout)
    await second.store.close()
    assert "  k by alice\n" in for_a_person.output
    assert "BROKEN" not in for_a_person.output
    assert [row["caller"] for row in csv.DictReader(report.read_text("utf-8").splitlines())] == ["alice", "alice"]
    assert (for_a_program["different"][0]["caller"], for_a_program["last_common"]["caller"]) == ("alice", "carol")


async def test_a_body_that_no_reader_would_follow_is_told_to_a_program_as_it_was_sent(first: Copy) -> None:
    deep = "[" * 1000 + "1.10" + "]" * 1000
    await first.write("k", deep)
    result = await run(first.dsn, first.dsn.replace("postgresql://", "postgres://"), ROLE, "--json")
    assert (result.exit_code, f'"body":{deep}' in result.stdout) == (0, True), result.exception


async def test_a_store_that_lacks_the_callers_is_told_to_migrate(first: Copy, fresh_dsn: str) -> None:
    connection = await asyncpg.connect(fresh_dsn)
    for migration in migrations():
        if migration.name < "0007":
            await connection.execute(migration.text)
    await connection.execute("INSERT INTO fencegate.fence (role, mode) VALUES ($1, 'lease')", ROLE)
    await connection.close()
    with pytest.raises(Unavailable, match="run fencegate migrate"):
        async with open_copy(fresh_dsn, ROLE) as copy:
            await copy.entry_at(1)


async def test_a_report_that_does_not_come_to_its_end_is_not_left_behind(
    forked: tuple[Copy, Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "fork.csv"
    trouble = await run(forked[0].dsn, forked[1].dsn, "other", "--report", str(report))
    assert (trouble.exit_code, report.exists()) == (2, False)

    class Full(io.StringIO):
        def close(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full(path: str, mode: str, **_: str) -> Full:
        Path(path).touch()
        return Full()

    with monkeypatch.context() as patched:
        patched.setattr("fencegate.cli.diff.open", full, raising=False)
        trouble = await run(forked[0].dsn, forked[1].dsn, ROLE, "--report", str(report))
    assert (trouble.exit_code, report.exists()) == (2, False)
    assert f"the report {report} cannot be written: No space left on device" in trouble.stderr
    assert (await run(forked[0].dsn, forked[1].dsn, ROLE, "--report", str(report))).exit_code == 1


async def test_the_command_exits_0_without_a_fork_and_2_in_trouble(first: Copy, tmp_path: Path) -> None:
    otherwise_spelt = first.dsn.replace("postgresql://", "postgres://")
    assert (await run(first.dsn, otherwise_spelt, ROLE)).exit_code == 0
    report = tmp_path / "fork.csv"
    same = await run(first.dsn, otherwise_spelt, ROLE, "--report", str(report))
    assert (same.exit_code, len(report.read_text().splitlines())) == (0, 1)
    assert f"Without a fork no entry is in {report}." in same.output
    trouble = await run(first.dsn, otherwise_spelt, "other")
    assert trouble.exit_code == 2
    assert "this store has no role 'other'" in trouble.stderr
