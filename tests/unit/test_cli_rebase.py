"""``fencegate rebase``: how far it steps, and that nothing happens without the role's name. Restores: tests/system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from fencegate.access.database import Database
from fencegate.cli import rebase as command
from fencegate.cli.rebase import EXIT_REFUSED, ROOM, Refused, planned
from fencegate.errors import Unavailable
from fencegate.fence import Fence
from fencegate.lease import ElectionUnavailable, LeaseTimings
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum

SETTINGS = ["--store-dsn", "postgresql://one@localhost/ledger"]


def test_the_step_goes_past_the_issuer_and_every_store_with_room_to_spare() -> None:
    assert planned("ledger", 5, {"eu": 90, "dr": 70}, None).above == 90 + ROOM
    assert planned("ledger", 500, {"eu": 90}, None).above == 500 + ROOM
    assert planned("ledger", 5, {"eu": 90}, 90).above == 90


def test_whether_anything_went_back_is_told() -> None:
    assert planned("ledger", 5, {"eu": 90}, None).regressed
    assert not planned("ledger", 90, {"eu": 90}, None).regressed


@pytest.mark.parametrize("above", [4, 89])
def test_a_number_that_is_not_enough_is_refused(above: int) -> None:
    with pytest.raises(Refused, match="below 90"):
        planned("ledger", 5, {"eu": 90}, above)


class Stores:
    """Stands in for the regions' stores: what each has accepted, by DSN; ``None`` where it is down."""

    accepted: ClassVar[dict[str, int | None]] = {}
    sealed: ClassVar[dict[str, int]] = {}
    histories: ClassVar[list[str]] = []

    def __init__(self, database: Database, server: object, **_: Any) -> None:
        self._dsn = database.dsn

    async def read(self, role: str) -> Fence | None:
        seen = self.accepted.get(self._dsn, 0)
        if seen is None:
            raise Unavailable("the store takes no connection")
        return Fence(role, "lease", seen, self.sealed.get(self._dsn, 0), 0.0, "", "") if seen else None

    async def begin_history(self, by: str) -> str:
        self.histories.append(by)
        return "a-new-one"

    async def close(self) -> None:
        pass


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryQuorum]:
    quorum = MemoryQuorum(lambda: 0.0, next_token=6)
    monkeypatch.setattr(command, "Control", Stores)
    monkeypatch.setattr(command.elections, "backend", lambda *_: MemoryElection(quorum, LeaseTimings()))
    Stores.accepted = {SETTINGS[1]: 90}
    Stores.histories.clear()
    yield quorum
    Stores.accepted, Stores.sealed = {}, {}


def call(*arguments: str, role: str = "ledger", **options: Any) -> Result:
    return CliRunner().invoke(command.rebase, [role, *SETTINGS, *arguments], **options)


def test_a_term_that_was_sealed_before_it_was_claimed_counts_as_seen(quorum: MemoryQuorum) -> None:
    """The store takes no claim up to it: a step between the two would leave the role closed."""
    Stores.sealed = {SETTINGS[1]: 120}
    done = call("--confirm", "ledger", "--above", "100")
    assert (done.exit_code, "below 120" in done.stderr) == (EXIT_REFUSED, True), done.output


def test_it_moves_the_issuer_up_and_leaves_a_line_of_log(quorum: MemoryQuorum) -> None:
    done = call("--confirm", "ledger", "--by", "ops@desk", "--json")

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "role": "ledger",
        "before": 5,
        "after": 90 + ROOM,
        "seen": {SETTINGS[1]: 90},
        "by": "ops@desk",
    }
    (fact,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (fact["event"], fact["by"], fact["before"], fact["after"]) == ("tokens_rebased", "ops@desk", 5, 90 + ROOM)
    assert quorum.bases == {"ledger": 85 + ROOM}
    assert Stores.histories == [], "a Postgres knows by itself that it was restored"


PORTABLE = (
    *("--set", "store.portability=true", "--set", "store.clock_offset=0.5"),
    *("--set", "election.source=etcd", "--set", "election.endpoints=http://e:1"),
)


def test_a_store_in_portability_mode_becomes_another_history_and_is_told_first(
    quorum: MemoryQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("--confirm", "ledger", "--by", "ops@desk", "--json", *PORTABLE)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["incarnation"] == "a-new-one"
    assert Stores.histories == ["ops@desk"]
    assert "another history now, a-new-one" in call("--confirm", "ledger", *PORTABLE).stdout

    async def cannot(*_: object) -> Any:
        raise NotImplementedError("the numbers of the election memory cannot be moved by fencegate")

    monkeypatch.setattr(MemoryElection, "rebase", cannot)
    done = call("--confirm", "ledger", *PORTABLE)
    assert done.exit_code == 1, "not nothing"
    assert "the store is another history now" in str(done.exception)
    assert "cannot be moved" in str(done.exception)


def test_of_several_stores_the_roles_own_is_asked(quorum: MemoryQuorum, two_stores: Path) -> None:
    Stores.accepted = {"postgresql://n/l": 90, "postgresql://s/l": 700}

    def rebased(role: str) -> Result:
        return CliRunner().invoke(command.rebase, [role, "--config", str(two_stores), "--confirm", role, "--json"])

    assert json.loads(rebased("shards/1").stdout)["seen"] == {"postgresql://s/l": 700}
    other = rebased("other")
    assert other.exit_code == EXIT_REFUSED
    assert "no [[store]] has a pattern that matches the role 'other'" in other.output


def test_the_stores_of_other_regions_and_a_number_given_by_hand_count(quorum: MemoryQuorum) -> None:
    Stores.accepted["postgresql://b@localhost/x"] = 700
    both = call("--confirm", "ledger", "--store", "postgresql://b@localhost/x", "--json")
    assert json.loads(both.stdout)["after"] == 700 + ROOM
    by_hand = call("--confirm", "ledger", "--seen", "5000000", "--json")
    assert json.loads(by_hand.stdout)["after"] == 5_000_000 + ROOM


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--confirm", "leger"], "the role is 'ledger', not 'leger'"),
        (["--confirm", "ledger", "--above", "12"], "below 90"),
        (["--confirm", "ledger", "--above", str(2**63 - 1)], "at most"),
        (["--confirm", "ledger", "--store", "postgresql://down@localhost/x"], "Every store named has to answer"),
    ],
)
def test_what_is_refused_changes_nothing_and_exits_69(quorum: MemoryQuorum, arguments: list[str], words: str) -> None:
    Stores.accepted["postgresql://down@localhost/x"] = None
    done = call(*arguments)

    assert done.exit_code == EXIT_REFUSED
    assert "nothing was changed" in done.stderr
    assert words in done.stderr
    assert quorum.bases == {}


def test_a_role_that_no_store_knows_is_refused(quorum: MemoryQuorum) -> None:
    Stores.accepted.clear()
    assert call("--confirm", "ledger").exit_code == EXIT_REFUSED
    assert quorum.bases == {}


def test_without_a_terminal_the_name_must_be_given(quorum: MemoryQuorum) -> None:
    done = call(input="ledger\n")

    assert done.exit_code == 2
    assert "--confirm ledger" in done.stderr
    assert quorum.bases == {}


@pytest.mark.parametrize(("typed", "code"), [("ledger\n", 0), ("yes\n", EXIT_REFUSED), ("\n", EXIT_REFUSED)])
def test_at_a_terminal_the_name_is_typed(
    quorum: MemoryQuorum, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    monkeypatch.setattr(command, "at_a_terminal", lambda: True)
    done = call(input=typed)

    assert done.exit_code == code
    assert "has accepted 90" in done.output
    assert "This cannot be undone" in done.output
    assert bool(quorum.bases) is (code == 0)


def test_who_types_the_name_is_told_that_a_store_in_portability_mode_closes_for_all_roles(
    quorum: MemoryQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "at_a_terminal", lambda: True)
    assert "every fence in it, of all roles, closes" in call(*PORTABLE, input="no\n").output
    assert Stores.histories == [], "the word was not given"
    assert "closes" not in call(input="no\n").output


def test_a_quorum_that_does_not_answer_is_a_failure_and_not_a_refusal(
    quorum: MemoryQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any) -> None:
        raise ElectionUnavailable("the answer was lost", "connection")

    monkeypatch.setattr(MemoryElection, "rebase", lost)
    assert isinstance(call("--confirm", "ledger").exception, Unavailable)


def test_an_election_whose_numbers_cannot_be_moved_says_where_to_read_on(
    quorum: MemoryQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cannot(*_: Any) -> None:
        raise NotImplementedError("the numbers of the election memory cannot be moved by fencegate")

    monkeypatch.setattr(MemoryElection, "rebase", cannot)
    done = call("--confirm", "ledger")

    assert done.exit_code == EXIT_REFUSED
    assert "cannot be moved" in done.stderr
