"""The rules of a gateway of several workers: shares, restarts, when one is given up, when all is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.cli.supervision import (
    FIRST_DELAY,
    LONGEST_DELAY,
    QUIET_LOOKS,
    SILENT_LOOKS,
    STARTING_LOOKS,
    STEADY,
    Outage,
    Restarts,
    Watch,
    not_ready,
    refused,
    share,
)
from fencegate.config import Flag, Settings, parse

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://fencegate@localhost/ledger"
[[route]]
path = "/shards/{shard}/*"
role = "ledger/{shard}"
members = ["a", "b"]
target = "http://upstream:9000"
hold_ms = 500
"""


def settings(**values: object) -> Settings:
    flags = [Flag("--set", key.replace("__", "."), str(value)) for key, value in values.items()]
    return parse(file=("F", TEXT), flags=flags)


@given(st.integers(1, 64), st.integers(64, 100_000), st.integers(64, 100_000))
def test_all_workers_together_never_take_more_than_the_gateway_may_and_each_takes_something(
    workers: int, connections: int, in_flight: int
) -> None:
    part = share(settings(workers=workers, limits__connections=connections, limits__in_flight=in_flight)).limits
    for whole, each in ((connections, part.connections), (in_flight, part.in_flight)):
        assert each >= 1
        assert whole - workers < each * workers <= whole


def test_one_worker_has_the_settings_as_they_are() -> None:
    assert share(settings()) == settings()


def test_the_settings_arrive_in_a_worker_as_they_left() -> None:
    for found in (settings(), settings(workers=4, election__lease_duration="20.5", log__level="debug")):
        assert Settings.model_validate(found.document()) == found


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
def test_several_workers_elsewhere_than_on_linux_are_refused_in_words(platform: str) -> None:
    (fault,) = refused(settings(workers=2), platform)
    assert fault.startswith(f"workers = 2: expected 1 on {platform}")
    assert not refused(settings(workers=1), platform)
    assert not refused(settings(workers=2), "linux")


def test_a_worker_that_fails_at_once_is_started_ever_more_slowly_and_one_that_lived_at_once() -> None:
    restarts = Restarts()
    delays = [restarts.after(0.2) for _ in range(60)]
    assert delays[0] == FIRST_DELAY
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY
    assert all(b <= 2 * a for a, b in pairwise(delays))
    assert restarts.after(STEADY) == FIRST_DELAY
    assert restarts.after(STEADY - 1) == 2 * FIRST_DELAY


def test_a_worker_is_given_up_only_after_looks_without_a_word_between_them() -> None:
    watch = Watch(serves=True)
    for _ in range(5):
        assert not any(watch.looked() for _ in range(SILENT_LOOKS))
        watch.heard()
    assert [watch.looked() for _ in range(SILENT_LOOKS + 1)] == [False] * SILENT_LOOKS + [True]
    starting = Watch()
    assert [starting.looked() for _ in range(STARTING_LOOKS + 1)] == [False] * STARTING_LOOKS + [True]


def test_the_gateway_is_ready_while_a_worker_is_started_again_and_not_while_one_hangs_or_none_serves() -> None:
    serving, starting, hanging = Watch(serves=True), Watch(), Watch(serves=True, silent=QUIET_LOOKS + 1)
    assert not_ready([serving, starting]) == ""
    assert not_ready([serving, serving]) == ""
    assert not_ready([serving, hanging]) == "worker 2 does not answer"
    assert not_ready([starting, starting]) == "no worker takes requests"


def test_a_gateway_of_which_no_worker_serves_for_a_lease_ends() -> None:
    outage = Outage(limit=3.0)
    assert [outage.looked(0) for _ in range(4)] == [False, False, False, True]
    outage = Outage(limit=3.0)
    assert not any(outage.looked(serving) for serving in (0, 0, 0, 1, 0, 0, 0))
