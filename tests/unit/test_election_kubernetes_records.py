"""What stands in a Lease: names, marks, and which of our annotations still count."""

from __future__ import annotations

import datetime
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.kubernetes_records import BASE, SEALED, TERM, Lease, lease_name, new_lease, term_of, written
from fencegate.lease import Candidate, SealRecord
from fencegate.tokens import MalformedToken

EU = Candidate("gw-1", "eu", "https://eu.example")
US = Candidate("gw-9", "us", "https://us.example")
T1, T2, T3 = (f"2026-01-01T00:00:0{n}.000000Z" for n in (1, 2, 3))
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def stored(raw: dict[str, Any], version: int) -> Lease:
    """As the server would keep it."""
    return Lease({**raw, "metadata": {**raw["metadata"], "uid": "u-1", "resourceVersion": str(version)}})


def won() -> Lease:
    return stored(new_lease("ledger", "default").taken("ledger", "eu/gw-1_x", EU, 15, T1), 7)


def foreign(lease: Lease, **spec: Any) -> Lease:
    """As client-go writes: the ``spec`` anew, the annotations as they were."""
    return stored({**lease.raw, "spec": {**lease.spec, **spec}}, 99)


@pytest.mark.parametrize("role", ["ledger", "my-controller.v2", "a" * 253])
def test_a_role_that_kubernetes_takes_as_a_name_is_the_name(role: str) -> None:
    assert lease_name(role) == role


@given(st.text(min_size=1, max_size=200))
def test_every_role_has_a_name_that_kubernetes_takes(role: str) -> None:
    name = lease_name(role)
    assert len(name) <= 253
    assert SUBDOMAIN.fullmatch(name)


@given(st.sets(st.text("aA/-.%_", min_size=1, max_size=6), min_size=2, max_size=30))
def test_no_two_roles_share_a_name(roles: set[str]) -> None:
    names = {lease_name(role) for role in roles}
    assert len(names) == len(roles)
    # Nor can a role be spelled so that it meets another one's escaped name.
    assert not names & {lease_name(name) for name in names if name.endswith(".fencegate")}


def test_a_first_term_counts_no_transition_and_a_further_one_counts_one_more() -> None:
    lease = won()
    assert (lease.holder, lease.transitions, lease.duration) == ("eu/gw-1_x", 0, 15)
    assert lease.taken("ledger", "us/gw-9_y", US, 30, T2)["spec"] == {
        "holderIdentity": "us/gw-9_y",
        "leaseDurationSeconds": 30,
        "acquireTime": T2,
        "renewTime": T2,
        "leaseTransitions": 1,
    }


def test_a_term_shows_its_token_only_after_a_renewal_wrote_it() -> None:
    lease = won()
    fresh = term_of("ledger", lease, 1.0)
    assert (fresh.token, fresh.active, fresh.node) == (7, False, "gw-1")
    renewed = stored(lease.renewed(7, EU, 15, T2, active=True), 12)
    shown = term_of("ledger", renewed, 1.0)
    assert (shown.token, shown.active, shown.region, shown.url) == (7, True, "eu", "https://eu.example")
    assert renewed.mark == lease.mark


def test_a_sign_of_life_differs_even_where_the_clock_stands() -> None:
    lease = won()
    assert stored(lease.renewed(7, EU, 15, T1, active=True), 8).sign != lease.sign
    assert foreign(lease).sign == lease.sign


@pytest.mark.parametrize(
    "spec",
    [
        {"holderIdentity": "go_1", "leaseTransitions": 1, "acquireTime": T3},
        {"leaseTransitions": 2},
        {"acquireTime": T3},
        {"holderIdentity": ""},
    ],
)
def test_the_record_of_an_earlier_term_is_not_taken_for_a_foreign_holders(spec: dict[str, Any]) -> None:
    lease = foreign(stored(won().renewed(7, EU, 15, T2, active=True), 12), **spec)
    assert lease.annotation(TERM) is not None
    assert (lease.record, lease.token) == (None, None)


def test_a_foreign_holder_is_shown_and_never_active_until_it_is_named() -> None:
    lease = foreign(won(), holderIdentity="go\n_1", leaseTransitions=1, acquireTime=T3)
    term = term_of("ledger", lease, 2.0)
    assert (term.token, term.node, term.active, term.expires_in) == (99, "go_1", False, 2.0)
    named = stored(lease.named(99), 100)
    renewed = foreign(named, renewTime="2026-01-01T00:01:00.000000Z")
    assert (term_of("ledger", renewed, 2.0).token, term_of("ledger", renewed, 2.0).active) == (99, True)
    assert named.spec == lease.spec


def test_a_seal_counts_while_nothing_else_has_happened_to_the_lease() -> None:
    seal = SealRecord(7, "eu")
    freed = stored(won().given_back(seal, T2), 13)
    assert (freed.holder, freed.spec["leaseDurationSeconds"], freed.sealed) == ("", 1, seal)
    taken = stored(freed.taken("ledger", "us/gw-9_y", US, 15, T3), 14)
    assert taken.predecessor == seal
    assert taken.annotation(SEALED) is None
    assert stored(taken.renewed(14, US, 15, T3, active=True), 15).predecessor == seal


@pytest.mark.parametrize(
    "spec",
    [
        {"holderIdentity": "go_1"},
        {"leaseTransitions": 1, "renewTime": T3},
        {"leaseTransitions": 1},
        {"renewTime": None},
    ],
)
def test_a_foreign_term_that_came_and_went_makes_an_older_seal_void(spec: dict[str, Any]) -> None:
    freed = stored(won().given_back(SealRecord(7, "eu"), T2), 13)
    assert foreign(freed, **spec).sealed is None


@pytest.mark.parametrize(
    "version", ["", "0", "-1", "1.5", "abc", "9223372036854775808", " 1", "1_0", None, 7, "\u0661"]
)
def test_a_version_that_is_no_decimal_int64_is_refused(version: object) -> None:
    with pytest.raises(MalformedToken):
        _ = Lease({"metadata": {"resourceVersion": version}}).resource_version


@pytest.mark.parametrize("raw", [{}, {"spec": None, "metadata": None}, {"spec": [], "metadata": {"annotations": 3}}])
def test_a_lease_with_nothing_in_it_is_free(raw: dict[str, Any]) -> None:
    lease = Lease(raw)
    assert (lease.holder, lease.transitions, lease.duration, lease.record, lease.sealed) == ("", 0, 0, None, None)
    assert lease.predecessor is None


@pytest.mark.parametrize(("number", "counts"), [(2**62, True), (2**63 - 1, False), (2**63, False), (2**64 - 1, False)])
def test_numbers_that_leave_no_int64_count_as_none(number: int, counts: bool) -> None:
    mark = {"of": ["go_1", 0, None]}
    annotations = {BASE: f'{{"base": {number}}}', TERM: orjson.dumps({"token": number, **mark}).decode()}
    lease = Lease({"metadata": {"annotations": annotations}, "spec": {"holderIdentity": "go_1"}})
    assert lease.base == (number if counts else 0)
    assert lease.token == (number if number < 2**63 else None)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"token": "7"}', '{"token": true}'])
def test_annotations_that_somebody_mangled_count_as_none(text: str) -> None:
    lease = Lease({"metadata": {"annotations": {TERM: text, SEALED: text}}, "spec": {"holderIdentity": "x"}})
    assert (lease.record, lease.token, lease.sealed, lease.predecessor) == (None, None, None, None)


def test_labels_and_other_annotations_are_carried_along() -> None:
    lease = won()
    lease.raw["metadata"] |= {"labels": {"team": "a"}, "ownerReferences": [{"uid": "z"}]}
    lease.raw["metadata"]["annotations"]["theirs"] = "kept"
    for raw in (
        lease.taken("ledger", "y", US, 15, T2),
        lease.renewed(7, EU, 15, T2, active=True),
        lease.given_back(SealRecord(7, "eu"), T2),
    ):
        assert raw["metadata"]["labels"] == {"team": "a"}
        assert raw["metadata"]["ownerReferences"] == [{"uid": "z"}]
        assert raw["metadata"]["annotations"]["theirs"] == "kept"


def test_an_instant_is_written_as_a_micro_time() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    assert written(datetime.datetime(2026, 1, 1, 2, 0, 1, tzinfo=east)) == T1
