"""Several ``[[store]]``: each role has exactly one, and whatever leaves that open is refused with both names in it."""

from __future__ import annotations

import pytest

from fencegate.config import Flag, Settings, differences, parse
from fencegate.config.several_stores import by_store, names_of, store_of
from fencegate.errors import ConfigurationError

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"

[[store]]
name = "north"
dsn = "postgresql://fencegate@north/ledger"
roles = ["ledger", "shards/n-*"]

[[store]]
name = "south"
dsn = "postgresql://fencegate:secret@south/ledger"
roles = ["shards/*"]

[election]
source = "etcd"
endpoints = ["http://etcd-1:2379"]

[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"

[[route]]
path = "/shards/{shard}"
role = "shards/{shard}"
members = ["n-1", "s-1", "n-2"]
target = "ledger"
"""


def settings(text: str = TEXT, **more: object) -> Settings:
    return parse(file=("F", text), **more)  # type: ignore[arg-type]


def faults(old: str, new: str, **more: object) -> list[str]:
    assert old in TEXT
    with pytest.raises(ConfigurationError) as caught:
        settings(TEXT.replace(old, new), **more)
    return caught.value.faults


def test_every_role_has_one_store_and_the_members_of_a_family_may_be_in_several() -> None:
    found = settings()
    assert names_of(found) == ["north", "south"]
    parts = by_store(found)
    assert {name: part.roles for name, part in parts.items()} == {
        "north": ["ledger", "shards/n-1", "shards/n-2"],
        "south": ["shards/s-1"],
    }
    assert parts["south"].store.dsn == "postgresql://fencegate:secret@south/ledger"
    assert parts["south"].families == ["shards/{shard}"]
    assert [part.stores for part in parts.values()] == [[], []]
    held = store_of(found, "shards/of-no-route")
    assert held is not None
    assert held.name == "south"
    assert store_of(found, "other") is None


def test_the_settings_of_several_stores_reach_a_worker_as_they_are() -> None:
    found = settings()
    assert Settings.model_validate(found.document()) == found
    assert differences(found, settings(TEXT.replace("@south/", "@west/"))) == ((), ("stores.1.dsn",))


def test_one_store_is_the_settings_themselves_and_holds_every_role() -> None:
    stores, rest = TEXT[: TEXT.index('[[store]]\nname = "south"')], TEXT[TEXT.index("[election]") :]
    one = settings(stores.replace('roles = ["ledger", "shards/n-*"]\n', "") + rest)
    assert by_store(one) == {"": one}
    assert store_of(one, "anything") is one.store
    assert names_of(one) == []


def test_stores_without_a_name_are_called_by_their_number() -> None:
    assert names_of(settings(TEXT.replace('name = "north"\n', ""))) == ["1", "south"]


def test_the_same_pattern_in_two_stores_is_a_fault_that_names_both() -> None:
    (fault,) = faults('roles = ["shards/*"]', 'roles = ["shards/*", "ledger"]')
    assert fault == (
        '[[store]] 2 roles = ["shards/*", "ledger"]: expected ledger in one store; [[store]] 1 (north) has it too '
        "(file F, line 13; file F, line 8)"
    )


def test_a_role_without_a_store_is_a_fault_that_names_it() -> None:
    (fault,) = faults('members = ["n-1", "s-1", "n-2"]\n', 'members = ["n-1", "s-1"]\n' + OTHER)
    assert "[[route]] 3 role" in fault
    assert "expected a store for other/x and 1 more" in fault


OTHER = """target = "ledger"

[[route]]
path = "/other/{o}"
role = "other/{o}"
members = ["x", "y"]
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('roles = ["shards/*"]', 'roles = ["shards/*", "shard/x"]', "shard/x places none"),
        ('roles = ["shards/*"]', "", "[[store]] 2 roles: missing; expected a list of roles"),
        ('dsn = "postgresql://fencegate@north/ledger"', "", "[[store]] 1 dsn: missing; expected a Postgres DSN"),
        ("fencegate:secret@south", "fencegate@north", "expected another DSN than that of [[store]] 1"),
        ('name = "south"', 'name = "north"', "expected another name than that of [[store]] 1, north"),
        ('roles = ["shards/*"]', 'roles = ["shards/*x"]', "* only at the very end; 'shards/*x' is none"),
        ('name = "south"', 'nam = "south"', "[[store]] 2 nam: no such key; did you mean name?"),
        ('source = "etcd"\nendpoints = ["http://etcd-1:2379"]', 'source = "postgres"', "election.dsn: missing"),
        ("[election]", '[stores]\ndsn = "x"\n\n[election]', "stores: no such key; several stores are [[store]]"),
    ],
)
def test_what_does_not_hold_together_is_refused(old: str, new: str, expected: str) -> None:
    found = faults(old, new)
    assert any(expected in fault for fault in found), found
    assert not any(":secret@" in fault for fault in found)


def test_an_address_by_flag_or_variable_does_not_say_which_of_several_stores_it_is() -> None:
    for more in (
        {"flags": [Flag("--store-dsn", "store.dsn", "postgresql://h/d")]},
        {"environment": {"FENCEGATE_STORE_DSN": "postgresql://h/d"}},
    ):
        (fault,) = faults("gw-1", "gw-1", **more)
        assert "beside several [[store]] tables" in fault
    (fault,) = faults("gw-1", "gw-1", embedded=True)[:1]
    assert "--embedded" in fault


def test_what_lies_under_the_file_is_no_store_beside_those_of_the_file() -> None:
    defaults = {"store": {"dsn": "postgresql://localhost"}, "route": [{"path": "/", "role": "x", "target": "ledger"}]}
    assert settings(defaults=defaults).store.dsn is None
    # Nor are the roles of defaults placed, which a command without need of any brings along.
    assert settings(TEXT.partition("[[route]]")[0], defaults=defaults).roles == ["x"]
