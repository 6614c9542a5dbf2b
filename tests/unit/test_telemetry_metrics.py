"""The metrics' contract: names, labels, zeros at the start, and no series that a client can make."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fencegate import observations as seen
from fencegate.errors import PROBLEMS
from fencegate.gateway.waiting_room import LetGo
from fencegate.telemetry.labels import UNROUTED
from fencegate.telemetry.metrics import RENEWAL_CAUSES, Metrics

FAMILIES = ["ledger", "ledger/{shard}"]

CONTRACT = {
    "fencing_rejections": ("counter", {"role", "reason", "region"}),
    "fencing_checks": ("counter", {"role", "outcome"}),
    "fencing_outcome_unknown": ("counter", {"role", "cause"}),
    "fencing_held_writes": ("gauge", {"role"}),
    "fencing_holds": ("counter", {"role", "end"}),
    "fencing_check_duration_seconds": ("histogram", {"role"}),
    "fencing_leader": ("gauge", {"role", "region", "node"}),
    "fencing_leader_transitions": ("counter", {"role", "kind"}),
    "fencing_lease_renewal_duration_seconds": ("histogram", {"role", "backend"}),
    "fencing_lease_renewal_failures": ("counter", {"role", "backend", "cause"}),
    "fencing_lease_expires_timestamp_seconds": ("gauge", {"role"}),
    "fencing_max_token_seen": ("gauge", {"role"}),
    "fencing_token_issued": ("gauge", {"role"}),
    "fencing_store_up": ("gauge", set()),
    "fencing_store_went_back": ("gauge", set()),
    "fencing_draining": ("gauge", {"role"}),
    "fencing_enforcing": ("gauge", {"role"}),
    "fencing_build_info": ("gauge", {"version", "python"}),
}


def made() -> Metrics:
    return Metrics(FAMILIES, node="gw-1", region="eu", backend="etcd", version="1.2.3")


@pytest.fixture
def metrics() -> Metrics:
    return made()


def page(metrics: Metrics) -> str:
    return metrics.render()[1].decode()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def refused(role: str = "ledger", code: str = "stale_token", token: int | None = 41) -> seen.WriteRefused:
    return seen.WriteRefused(role, code, token, 42, "192.0.2.1", "curl/8")


# Field case 102: hashicorp/consul#13169.
def test_names_types_and_labels_are_exactly_the_contract(metrics: Metrics) -> None:
    found = {}
    for family in text_string_to_metric_families(page(metrics)):
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        found[family.name] = (family.type, labels)
        assert family.documentation
    assert found == CONTRACT


def test_the_page_is_what_prometheus_lints_for(metrics: Metrics) -> None:
    text = page(metrics)
    for name in re.findall(r"^# TYPE (\S+) counter", text, re.MULTILINE):
        assert name.endswith("_total")
    assert "_created" not in text
    assert "leader_count" not in text
    assert metrics.render()[0].startswith("text/plain; version=0.0.4")


def test_every_reason_of_every_role_starts_at_zero(metrics: Metrics) -> None:
    for role in (*FAMILIES, UNROUTED):
        for code in PROBLEMS:
            assert value(metrics, "fencing_rejections_total", role=role, reason=code, region="eu") == 0
    for role in FAMILIES:
        assert value(metrics, "fencing_leader", role=role, region="eu", node="gw-1") == 0
        for cause in RENEWAL_CAUSES:
            labels = {"role": role, "backend": "etcd", "cause": cause}
            assert value(metrics, "fencing_lease_renewal_failures_total", **labels) == 0
    assert value(metrics, "fencing_store_up") == 0


def test_writes_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    metrics(seen.WriteAccepted("ledger", 42, replayed=False, check_duration=0.1))
    metrics(seen.WriteAccepted("ledger", 42, replayed=True, check_duration=0.1))
    metrics(refused())
    metrics(seen.WouldRefuse("ledger", "stale_token", 41, "c", "a"))
    metrics(seen.WriteOutcomeUnknown("ledger", "timeout"))
    for outcome in ("accepted", "replayed", "refused", "would_refuse", "unknown"):
        assert value(metrics, "fencing_checks_total", role="ledger", outcome=outcome) == 1
    assert value(metrics, "fencing_rejections_total", role="ledger", reason="stale_token", region="eu") == 1
    assert value(metrics, "fencing_outcome_unknown_total", role="ledger", cause="timeout") == 1


def test_held_writes_are_shown_while_they_wait_and_counted_by_what_ended_it(metrics: Metrics) -> None:
    for fact in (seen.WriteHeld("ledger"), seen.WriteHeld("ledger"), seen.HoldEnded("ledger", "news", 0.2)):
        metrics(fact)
    metrics(seen.HoldRefused("ledger"))
    assert value(metrics, "fencing_held_writes", role="ledger") == 1
    assert value(metrics, "fencing_held_writes", role="ledger/{shard}") == 0
    ends = {end: value(metrics, "fencing_holds_total", role="ledger", end=end) for end in (*LetGo, "other")}
    assert ends == {"news": 1, "expired": 0, "stopping": 0, "left": 0, "full": 1, "other": 0}


def test_an_orphaned_write_is_counted_as_an_unknown_outcome(metrics: Metrics) -> None:
    metrics(seen.OrphanedMarkExpired("ledger", 41))
    assert value(metrics, "fencing_outcome_unknown_total", role="ledger", cause="orphaned") == 1


# Field case 100: prometheus/client_python#495, prometheus/client_python#793, skypilot-org/skypilot#9689,
#   skypilot-org/skypilot#9690.
def test_leadership_is_this_nodes_belief_and_ends_with_its_lease(metrics: Metrics) -> None:
    leader = {"role": "ledger", "region": "eu", "node": "gw-1"}
    metrics(seen.LeadershipGained("ledger", 42))
    metrics(seen.LeaseRenewed("ledger", "etcd", 0.003, 1_800_000_000.5))
    assert value(metrics, "fencing_leader", **leader) == 1
    assert value(metrics, "fencing_token_issued", role="ledger") == 42
    assert value(metrics, "fencing_lease_expires_timestamp_seconds", role="ledger") == 1_800_000_000.5
    metrics(seen.LeadershipLost("ledger", 42, "renew_deadline"))
    assert value(metrics, "fencing_leader", **leader) == 0
    assert value(metrics, "fencing_lease_expires_timestamp_seconds", role="ledger") == 0
    assert value(metrics, "fencing_leader_transitions_total", role="ledger", kind="gained") == 1
    assert value(metrics, "fencing_leader_transitions_total", role="ledger", kind="renew_deadline") == 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=30))
def test_a_familys_gauge_is_its_highest_members_whatever_came_before(facts: list[tuple[str, bool]]) -> None:
    metrics, last = made(), dict[str, bool]()
    for member, draining in facts:
        last[member] = draining
        metrics(seen.FenceSeen(f"ledger/{member}", 1, draining))
        assert value(metrics, "fencing_draining", role="ledger/{shard}") == int(any(last.values()))


def test_members_share_their_familys_series(metrics: Metrics) -> None:
    family = {"role": "ledger/{shard}", "region": "eu", "node": "gw-1"}
    for member, token, expires in (("ledger/a", 5, 200.0), ("ledger/b", 9, 100.0)):
        metrics(seen.LeadershipGained(member, token))
        metrics(seen.LeaseRenewed(member, "etcd", 0.003, expires))
        metrics(seen.FenceSeen(member, token, draining=member == "ledger/a"))
    assert value(metrics, "fencing_leader", **family) == 2
    assert value(metrics, "fencing_max_token_seen", role="ledger/{shard}") == 9
    assert value(metrics, "fencing_draining", role="ledger/{shard}") == 1
    assert value(metrics, "fencing_lease_expires_timestamp_seconds", role="ledger/{shard}") == 100
    metrics(seen.LeadershipLost("ledger/b", 9, "lost"))
    metrics(seen.FenceSeen("ledger/a", 5, draining=False))
    assert value(metrics, "fencing_leader", **family) == 1
    assert value(metrics, "fencing_draining", role="ledger/{shard}") == 0
    assert value(metrics, "fencing_lease_expires_timestamp_seconds", role="ledger/{shard}") == 200


def test_a_regressed_issuer_shows_as_a_lower_token_issued(metrics: Metrics) -> None:
    metrics(seen.LeaderObserved("ledger", 42, "eu", "gw-1"))
    metrics(seen.LeaderObserved("ledger", 7, "eu", "gw-1"))
    assert value(metrics, "fencing_token_issued", role="ledger") == 7


def test_an_issuer_behind_its_store_shows_though_nobody_leads(metrics: Metrics) -> None:
    metrics(seen.LeaderObserved("ledger", 0, "", ""))
    metrics(seen.TokenRegressed("ledger", 7, 42))
    assert value(metrics, "fencing_token_issued", role="ledger") == 7


def test_an_issuer_behind_its_store_shows_until_it_has_caught_up_whoever_leads_meanwhile(metrics: Metrics) -> None:
    def shown() -> float:
        return value(metrics, "fencing_token_issued", role="ledger")

    metrics(seen.TokenRegressed("ledger", 7, 42))
    # Said once, by the elector; that nobody leads is told by the view of the election, whose read may be the later one.
    metrics(seen.LeaderObserved("ledger", 0, "", ""))
    assert shown() == 7, "with 0 the alarm would never come"
    metrics(seen.LeaderObserved("ledger", 8, "dr", "gw-2"))
    assert shown() == 8
    metrics(seen.LeaderObserved("ledger", 0, "", ""))
    assert shown() == 8
    metrics(seen.LeadershipGained("ledger", 43))
    metrics(seen.LeaderObserved("ledger", 0, "", ""))
    assert shown() == 0


def test_several_stores_are_told_apart_by_their_names() -> None:
    one = Metrics(["ledger"], node="n", region="r", backend="etcd", version="1", stores=["north", "south"])
    assert value(one, "fencing_store_up", store="north") == value(one, "fencing_store_up", store="south") == 0
    one(seen.StoreCameUp("1/1", "north"))
    one(seen.StoreCameUp("2/1", "south"))
    one(seen.StoreWentDown("gone", "south"))
    assert (value(one, "fencing_store_up", store="north"), value(one, "fencing_store_up", store="south")) == (1, 0)


def test_store_and_durations_are_heard(metrics: Metrics) -> None:
    metrics(seen.StoreCameUp("1/1"))
    assert value(metrics, "fencing_store_up") == 1
    metrics(seen.StoreWentDown("gone"))
    assert value(metrics, "fencing_store_up") == 0
    metrics(seen.StoreWentBack("less"))
    assert value(metrics, "fencing_store_went_back") == 1
    metrics(seen.StoreCameUp("1/1"))
    assert value(metrics, "fencing_store_went_back") == 0
    metrics(seen.FenceChecked(("ledger",), 0.003))
    assert value(metrics, "fencing_check_duration_seconds_count", role="ledger") == 1
    metrics(seen.FenceChecked(("ledger", "ledger/1", "ledger/2"), 0.003))
    assert value(metrics, "fencing_check_duration_seconds_count", role="ledger") == 2
    assert value(metrics, "fencing_check_duration_seconds_count", role="ledger/{shard}") == 1, "one transaction"
    metrics(seen.LeaseRenewalFailed("ledger", "etcd", "quorum", "no quorum"))
    labels = {"role": "ledger", "backend": "etcd", "cause": "quorum"}
    assert value(metrics, "fencing_lease_renewal_failures_total", **labels) == 1


def test_renewal_buckets_include_the_retry_deadline_and_lease_of_the_defaults(metrics: Metrics) -> None:
    for edge in ("2.0", "10.0", "15.0"):
        labels = {"role": "ledger", "backend": "etcd", "le": edge}
        assert value(metrics, "fencing_lease_renewal_duration_seconds_bucket", **labels) == 0


# Field case 106.
# Field case A11.
def test_no_value_of_a_client_ever_makes_a_series(metrics: Metrics) -> None:
    before = page(metrics).count("\n")
    for number in range(2000):
        odd = f"x{number}\n"
        metrics(seen.WriteRefused(f"ledger/{number}", "stale_token", number, number, odd, odd))
        metrics(refused(role=odd, code=odd, token=number))
        metrics(seen.WriteOutcomeUnknown("ledger", odd))
        metrics(seen.LeadershipLost("ledger", number, odd))
        metrics(seen.LeaseRenewalFailed("ledger", odd, odd, odd))
        metrics(seen.FenceSeen(odd, number, draining=False))
        metrics(seen.LeaderObserved(odd, number, odd, odd))
        metrics(seen.LeadershipGained(odd, number))
        metrics(seen.LeaseRenewed("ledger", odd, 0.1, 1.0))
    after = page(metrics)
    # Two roles that nobody configured may each show in the one series for such things, and in no other.
    assert after.count("\n") - before <= len([*FAMILIES, UNROUTED]) * 4
    assert "x1999" not in after
    assert value(metrics, "fencing_rejections_total", role="ledger/{shard}", reason="stale_token", region="eu") == 2000
    assert value(metrics, "fencing_rejections_total", role=UNROUTED, reason="other", region="eu") == 2000


def test_the_rejections_of_a_role_are_told_by_reason_without_the_zeros(metrics: Metrics) -> None:
    assert metrics.rejections()("ledger") == {}
    metrics(refused())
    metrics(refused(code="token_required", token=None))
    metrics(refused(role="ledger/a"))
    assert metrics.rejections()("ledger") == {"stale_token": 1, "token_required": 1}
    assert metrics.rejections()("ledger/b") == {"stale_token": 1}


def test_an_observation_without_a_metric_is_ignored(metrics: Metrics) -> None:
    before = page(metrics)
    metrics(seen.KeysExpired(5))
    metrics(seen.Stopped(0))
    assert page(metrics) == before


def test_two_gateways_in_one_process_do_not_share_a_registry(metrics: Metrics) -> None:
    other = Metrics(FAMILIES, node="gw-2", region="us", backend="postgres", version="1")
    other(seen.StoreCameUp("1/1"))
    assert value(metrics, "fencing_store_up") == 0


@pytest.mark.parametrize(
    "reason",
    ["handoff", "incarnation", "lost", "renew_deadline", "resigned", "sealed", "shutdown", "store", "superseded"],
)
def test_each_way_a_term_can_end_has_a_series_of_its_own(metrics: Metrics, reason: str) -> None:
    metrics(seen.LeadershipLost("ledger", 42, reason))
    assert value(metrics, "fencing_leader_transitions_total", role="ledger", kind=reason) == 1
    assert value(metrics, "fencing_leader_transitions_total", role="ledger", kind="other") == 0


def test_a_role_that_is_only_observed_says_so() -> None:
    found = Metrics(FAMILIES, node="gw-1", region="eu", backend="etcd", version="1", observed=["ledger"])
    assert value(found, "fencing_enforcing", role="ledger") == 0
    assert value(found, "fencing_enforcing", role="ledger/{shard}") == 1
