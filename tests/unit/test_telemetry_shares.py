"""One page of metrics for several processes: sums that never fall, gauges by their meaning, no trace of the dead."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fencegate import observations as seen
from fencegate.telemetry.metrics import Metrics
from fencegate.telemetry.process_metrics import register_process
from fencegate.telemetry.shares import Changes, Whole

FAMILIES = ["ledger", "ledger/{shard}"]
Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics() -> Metrics:
    return Metrics(FAMILIES, node="gw-1", region="eu", backend="etcd", version="1.2.3")


def refused(role: str = "ledger", code: str = "stale_token") -> seen.WriteRefused:
    return seen.WriteRefused(role, code, 41, 42, "192.0.2.1", "curl/8")


@dataclass
class Set:
    """A supervisor's metrics and those of its workers; a report goes through JSON as it does between processes."""

    own: Metrics = field(default_factory=metrics)
    workers: dict[int, tuple[Metrics, Changes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = Whole(self.own)

    def start(self, number: int) -> Metrics:
        worker = metrics()
        self.workers[number] = worker, Changes(worker)
        return worker

    def report(self) -> None:
        for number, (_, changes) in self.workers.items():
            self.whole.take(number, orjson.loads(orjson.dumps(changes.rows())))

    def kill(self, number: int) -> None:
        del self.workers[number]
        self.whole.ended(number)

    def page(self) -> Page:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.whole.collect()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.page()[name, tuple(sorted(labels.items()))]


@pytest.fixture
def two() -> Set:
    found = Set()
    found.start(1)
    found.start(2)
    return found


def test_counters_and_histograms_add_up_over_the_workers(two: Set) -> None:
    for (worker, _), count in zip(two.workers.values(), (3, 4), strict=True):
        for _ in range(count):
            worker(refused())
            worker(seen.FenceChecked(("ledger",), 0.003))
    two.report()
    reasons = {"role": "ledger", "reason": "stale_token", "region": "eu"}
    assert two.value("fencing_rejections_total", **reasons) == 7
    assert two.value("fencing_check_duration_seconds_count", role="ledger") == 7
    assert two.value("fencing_check_duration_seconds_bucket", role="ledger", le="0.005") == 7
    assert two.value("fencing_check_duration_seconds_bucket", role="ledger", le="0.0025") == 0
    assert two.value("fencing_check_duration_seconds_sum", role="ledger") == pytest.approx(0.021)
    assert two.whole.rejections()("ledger") == {"stale_token": 7}
    two.report()
    assert two.value("fencing_rejections_total", **reasons) == 7, "a report says how much, not how much more"


def test_the_page_is_of_the_same_families_as_that_of_one_process(two: Set) -> None:
    def families(page: bytes) -> dict[str, str]:
        return {family.name: family.type for family in text_string_to_metric_families(page.decode())}

    more = {"fencing_workers": "gauge", "fencing_worker_ends": "counter"}
    assert families(two.whole.render()[1]) == families(metrics().render()[1]) | more


def test_who_leads_is_said_by_the_process_with_the_elector_and_counted_once(two: Set) -> None:
    for worker, _ in two.workers.values():
        worker(seen.LeaderObserved("ledger", 7, "eu", "gw-1"))
        worker(seen.FenceSeen("ledger", 7, False))
    two.own(seen.LeadershipGained("ledger", 7))
    two.own(seen.FenceSeen("ledger", 7, False))
    two.report()
    page = two.page()
    assert sum(value for (name, _), value in page.items() if name == "fencing_leader") == 1
    assert two.value("fencing_max_token_seen", role="ledger") == 7


def test_the_store_is_up_only_where_every_process_reaches_it_and_held_writes_are_those_of_all(two: Set) -> None:
    (one, _), (other, _) = two.workers.values()
    for process in (two.own, one, other):
        process(seen.StoreCameUp("x"))
    one(seen.WriteHeld("ledger"))
    other(seen.WriteHeld("ledger"))
    two.report()
    assert (two.value("fencing_store_up"), two.value("fencing_held_writes", role="ledger")) == (1, 2)
    other(seen.StoreWentDown("no route"))
    two.report()
    assert two.value("fencing_store_up") == 0
    two.kill(2)
    assert (two.value("fencing_store_up"), two.value("fencing_held_writes", role="ledger")) == (1, 1)


async def test_what_the_processes_take_is_what_all_of_them_take(two: Set) -> None:
    for each in (two.own, *(worker for worker, _ in two.workers.values())):
        register_process(each.registry)
    own = two.page()
    two.report()
    whole = two.page()
    cpu, files, limit = (("process_" + name, ()) for name in ("cpu_seconds_total", "open_fds", "max_fds"))
    assert whole["asyncio_tasks", ()] == 3 * own["asyncio_tasks", ()]
    assert whole[files] > 2 * own[files]
    assert whole[cpu] > 2 * own[cpu]
    assert whole[limit] == own[limit], "a limit that each process has is not added up"
    two.kill(1)
    assert two.page()["asyncio_tasks", ()] == 2 * own["asyncio_tasks", ()]


def test_what_a_dead_worker_counted_stays_and_the_next_of_its_number_adds_to_it(two: Set) -> None:
    two.workers[1][0](refused())
    two.report()
    two.kill(1)
    assert two.whole.rejections()("ledger") == {"stale_token": 1}
    two.start(1)(refused())
    two.report()
    assert two.whole.rejections()("ledger") == {"stale_token": 2}


async def test_fractions_do_not_fall_by_their_last_bit_when_a_worker_ends(two: Set) -> None:
    key = ("process_cpu_seconds_total", ())
    for number, seconds in ((1, 0.1), (2, 0.2), (3, 0.3)):
        two.whole.take(number, [("process_cpu_seconds", key[0], [], seconds)])
    register_process(two.own.registry)
    before = two.page()[key]
    for number in (3, 1, 2):
        two.whole.ended(number)
        assert two.page()[key] >= before
        before = two.page()[key]


def test_how_many_workers_serve_and_how_many_ended_is_a_metric_of_its_own() -> None:
    alone = Set()
    for number in (1, 2, 3):
        alone.whole(seen.WorkerServes(number, 100 + number))
    alone.whole(seen.WorkerEnded(2, 102, "killed by SIGKILL", 0.1))
    assert (alone.value("fencing_workers"), alone.value("fencing_worker_ends_total")) == (2, 1)
    alone.whole(seen.WorkerServes(2, 104))
    assert (alone.value("fencing_workers"), alone.value("fencing_worker_ends_total")) == (3, 1)


def test_a_gateway_of_one_process_has_no_metric_of_workers() -> None:
    assert b"fencing_worker" not in metrics().render()[1]


FACTS = st.sampled_from(
    [
        refused(),
        refused("ledger/7", "draining"),
        refused("", "unknown_route"),
        seen.WriteAccepted("ledger", 7, False, 0.01),
        seen.WriteOutcomeUnknown("ledger/7", "timeout"),
        seen.FenceChecked(("ledger",), 0.02),
        seen.WriteHeld("ledger"),
        seen.HoldEnded("ledger", "news", 0.2),
        seen.OrphanedMarkExpired("ledger", 6),
    ]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fact"), st.integers(0, 2), FACTS),
        st.tuples(st.just("report"), st.none(), st.none()),
        st.tuples(st.just("kill"), st.integers(1, 2), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=30)
@given(STEPS)
def test_no_sum_ever_falls_and_none_counts_anything_twice(steps: list[tuple[str, int, seen.Observation]]) -> None:
    found, alone = Set(), metrics()
    found.start(1)
    found.start(2)
    before, facts = found.page(), []
    for step, number, fact in steps:
        if step == "fact":
            (found.own if number == 0 else found.workers[number][0])(fact)
            facts.append(fact)
        elif step == "report":
            found.report()
        else:
            found.report()  # What was not reported is lost with a killed worker; here nothing is.
            found.kill(number)
            found.start(number)
        page = found.page()
        assert page.keys() == before.keys()
        gauges = {"fencing_held_writes", "fencing_workers"}
        assert all(page[key] >= before[key] for key in page if key[0] not in gauges)
        before = page
    found.report()
    for fact in facts:
        alone(fact)
    expected = Set(own=alone).page()
    wrong = {
        key: (value, expected[key])
        for key, value in found.page().items()
        if key[0] != "fencing_held_writes" and value != pytest.approx(expected[key])
    }
    assert not wrong
