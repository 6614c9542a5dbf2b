"""``fencegate elect`` before it campaigns: what it takes from the settings, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.cli import elect_warden
from fencegate.cli.elect import check, grants_by, unusable
from fencegate.client import Grants
from fencegate.client.leader import own_clock
from fencegate.config import UNADVERTISED, Settings, parse
from fencegate.errors import ConfigurationError

MINIMAL = """\
node = "n1"
region = "eu"
[election]
dsn = "postgresql://localhost/election"
"""
ROUTED = """\
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
"""


def settings(text: str = MINIMAL) -> Settings:
    return parse(file=("F", text), only_election=True)


def faults(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings(text)
    return "\n".join(caught.value.faults)


def test_an_election_is_all_that_a_campaign_needs() -> None:
    found = settings()
    assert (found.node, found.region, found.advertise) == ("n1", "eu", UNADVERTISED)
    assert found.election.dsn == "postgresql://localhost/election"


def test_the_stores_database_will_do_for_the_election() -> None:
    assert settings(MINIMAL.replace("[election]", "[store]")).store.dsn is not None


def test_an_advertised_origin_is_kept() -> None:
    assert settings('advertise = "https://gw.example"\n' + MINIMAL).advertise == "https://gw.example"


def test_what_is_missing_and_what_is_wrong_is_named_all_at_once() -> None:
    said = faults("[election]\nlease_duration = 1\n")
    for words in ("node: missing", "region: missing", "election.dsn: missing", "timings that hold together"):
        assert words in said
    assert "route" not in said
    assert "store.dsn" not in said
    assert "advertise" not in said


def test_an_etcd_without_endpoints_is_a_fault_here_too() -> None:
    assert "election.endpoints: missing" in faults('node = "n"\nregion = "r"\n[election]\nsource = "etcd"\n')


def test_what_elects_for_itself_has_no_command_to_run() -> None:
    text = 'node = "n"\nregion = "r"\n[election]\nsource = "kafka"\nmode = "follow"\nendpoints = ["k:9092"]\n'
    assert "expected an election to campaign in; kafka elects for itself" in faults(text)


def test_serving_still_needs_a_store_and_routes() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(file=("F", MINIMAL))
    said = "\n".join(caught.value.faults)
    assert "store.dsn: missing" in said
    assert "advertise: missing" in said
    assert "[[route]]" in said


@pytest.mark.parametrize("role", ["nightly", "shards/eu-1", "a.b_c~d"])
def test_a_role_may_be_any_single_one(role: str) -> None:
    check(role, settings())


@pytest.mark.parametrize("role", ["", "a b", "shards/{shard}", "{shard}", "../x", "a" * 201])
def test_a_family_or_nonsense_is_no_role(role: str) -> None:
    with pytest.raises(ConfigurationError, match="ROLE"):
        check(role, settings())


def test_a_role_that_the_gateways_lead_themselves_is_not_campaigned_for() -> None:
    with pytest.raises(ConfigurationError, match=r'election\.mode: expected "follow"'):
        check("ledger", settings(MINIMAL + ROUTED))
    check("other", settings(MINIMAL + ROUTED))
    check("ledger", settings(MINIMAL + 'mode = "follow"\n' + ROUTED))


def test_a_grant_needs_a_key_and_a_caller(tmp_path: Path) -> None:
    file = tmp_path / "grant.keys"
    file.write_text(f"one {'s' * 32}\n")
    assert grants_by(None, None) is None
    assert isinstance(grants_by(str(file), "CN=node-1"), Grants)
    for key_file, subject, words in (
        (str(file), None, "--grant-subject: missing"),
        (None, "CN=node-1", "--grant-key-file: missing"),
        ("/none", "CN=node-1", "grant_key_file: cannot read /none"),
        (str(file), "Zoë", "subject = "),
    ):
        with pytest.raises(ConfigurationError, match=words):
            grants_by(key_file, subject)


def test_a_program_that_is_not_there_or_cannot_be_run_is_said_before_any_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    assert unusable("sh") is None
    assert (unusable(str(plain)), unusable(str(tmp_path / "none")), unusable("no-such-command")) == (126, 127, 127)
    said = capsys.readouterr().err
    assert "Permission denied" in said
    assert "no such command" in said


def test_the_guard_and_the_one_who_renews_read_the_same_clock() -> None:
    before, guards, after = own_clock(), elect_warden.steady_clock(), own_clock()
    assert before <= guards <= after
