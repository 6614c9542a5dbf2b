"""A store in portability mode: what cannot be kept there is refused at the start, each with its reason."""

from __future__ import annotations

import pytest

from fencegate.config import Settings, parse
from fencegate.errors import ConfigurationError

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"

[store]
dsn = "postgresql://fencegate@cluster/ledger"
portability = true
clock_offset = 0.5

[election]
source = "etcd"
endpoints = ["http://etcd-1:2379"]

[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


def settings(*changes: tuple[str, str]) -> Settings:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(file=("F", text))


def faults(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings(*changes)
    return caught.value.faults


def test_the_offset_of_the_clocks_is_taken_off_the_lease_beside_the_margin() -> None:
    found = settings()
    assert found.timings.store_lease == 15 - 1 - 0.5
    assert found.election.timings.store_lease == 15 - 1
    assert settings(("portability = true\nclock_offset = 0.5\n", "")).timings.store_lease == 15 - 1


def test_nobody_but_the_operator_knows_how_far_the_clocks_may_be_apart() -> None:
    [fault] = faults(("clock_offset = 0.5\n", ""))
    assert "store.clock_offset" in fault
    assert "0 for a single node" in fault
    assert settings(("clock_offset = 0.5", "clock_offset = 0")).timings.clock_offset == 0
    assert len(faults(("clock_offset = 0.5", "clock_offset = -1"))) == 1


def test_an_offset_that_leaves_nothing_of_the_lease_is_refused_with_the_sum() -> None:
    [fault] = faults(("clock_offset = 0.5", "clock_offset = 4"))
    assert "store.clock_offset" in fault
    assert "lease_duration - margin - clock_offset (10 s) must be more than renew_deadline (10 s)" in fault
    [fault] = faults(("[election]", "[election]\nmargin = 6"))
    assert "lease_duration - margin (9 s)" in fault, "what is wrong without it is said without it"


def test_an_offset_without_the_mode_is_refused() -> None:
    [fault] = faults(("portability = true\n", ""))
    assert "store.clock_offset" in fault
    assert "expected portability = true with it" in fault


def test_what_rests_on_prepared_transactions_is_refused() -> None:
    [fault] = faults(('target = "ledger"\n', 'target = "ledger"\nvalidate = true\n'))
    assert "validate" in fault
    assert "expected false with portability" in fault


def test_follow_mode_which_has_no_lease_is_refused() -> None:
    [fault] = faults(("[election]", '[election]\nmode = "follow"'))
    assert "election.mode" in fault
    assert "expected campaign with portability" in fault


def test_an_election_in_the_store_itself_is_refused() -> None:
    over_postgres = ('source = "etcd"\nendpoints = ["http://etcd-1:2379"]', 'source = "postgres"')
    [fault] = faults(over_postgres)
    assert "expected an election that is not in a store with portability" in fault
    old, new = over_postgres
    [fault] = faults((old, f'{new}\ndsn = "postgresql://fencegate@cluster/ledger"'))
    assert "election.dsn" in fault
    assert settings((old, f'{new}\ndsn = "postgresql://fencegate@elsewhere/election"')).election.over_postgres


def test_of_several_stores_each_has_its_own_mode_and_the_role_decides_which_counts() -> None:
    several = (
        '[store]\ndsn = "postgresql://fencegate@cluster/ledger"\nportability = true\nclock_offset = 0.5\n',
        '[[store]]\nname = "far"\ndsn = "postgresql://fencegate@cluster/ledger"\nroles = ["ledger"]\n'
        "portability = true\nclock_offset = 0.5\n"
        '[[store]]\nname = "near"\ndsn = "postgresql://fencegate@near/ledger"\nroles = ["notes"]\n',
    )
    notes = '[[route]]\npath = "/notes"\nrole = "notes"\ntarget = "ledger"\nvalidate = true\n\n[[route]]\npath = "/v1'
    found = settings(several, ('[[route]]\npath = "/v1', notes))
    assert found.validated == ["notes"]
    assert found.timings.clock_offset == 0.5
    [fault] = faults(
        several, ('[[route]]\npath = "/v1', notes), ('role = "ledger"', 'role = "ledger"\nvalidate = true')
    )
    assert "expected false with portability" in fault
