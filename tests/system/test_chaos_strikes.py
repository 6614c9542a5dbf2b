"""Each strike that has a promise of its own, played by itself: what it breaks stays closed, and opens again.

Each must have been played, and none left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.gameday.chaos import Outcome, run
from fencegate.gameday.chaos_stage import Replication, Shape
from fencegate.gameday.clocks import library
from fencegate.gameday.faults import REGIONS, Fault
from fencegate.testing.pgbouncer import program

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def in_both(strike: str, end: str, lasts: float) -> list[Fault]:
    return [Fault(0.2, strike, f"{region}-{end}", lasts) for region in REGIONS]


async def played(folder: Path, shape: Shape, *schedules: list[Fault]) -> Outcome:
    """One schedule after the other, each when the one before it is over and forgotten."""
    outcome = await run(folder, schedules, seconds=1.0, shape=shape, say=print)
    print(outcome)
    assert outcome.ok, outcome
    assert set(outcome.figures.strikes) == {fault.strike for faults in schedules for fault in faults}
    assert not outcome.figures.left_out
    return outcome


async def test_a_store_that_is_full_read_only_pooled_or_out_of_sessions_refuses_and_comes_back(tmp_path: Path) -> None:
    if program() is None:
        pytest.skip("PgBouncer is not installed (Debian: pgbouncer)")
    if library() is None:
        pytest.skip("libfaketime is not installed (Debian: faketime)")
    outcome = await played(
        tmp_path,
        Shape(small_disk=True, clocks=True),
        in_both("disk-full", "store", 2.5),
        in_both("read-only", "store", 1.5),
        in_both("sessions-gone", "store", 1.5),
        in_both("pooler", "store-link", 1.5),
        in_both("clock-step", "store", 1.0),
    )
    assert "fence_unavailable" in {attempt.reason for attempt in outcome.attempts}


@pytest.mark.parametrize("replication", ["lagging", "synchronous"])
async def test_a_store_that_fails_over_needs_a_new_term_and_a_synchronous_standby_loses_nothing(
    tmp_path: Path, replication: Replication
) -> None:
    apart = in_both("silence", "replication-link", 5.0)  # until long after the promotion, however busy the machine
    over = [Fault(1.3, "failover", f"{region}-store", 0.0) for region in REGIONS]
    restored = [[Fault(0.2, "quorum-restored", "quorum-0", 0.0)]] if replication == "lagging" else []
    outcome = await played(tmp_path, Shape(replication), apart + over, *restored)
    print(f"{outcome.figures.left_behind} acknowledged writes went with the old stores")
    assert (outcome.figures.left_behind > 0) is (replication == "lagging")
    assert outcome.terms > 1
