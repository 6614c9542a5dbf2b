"""Real regions under faults drawn from a seed: whatever overlaps, nothing is lost, doubled or taken from an old term.

``make chaos SEED=7`` plays one schedule again; ``RUNS=20 SECONDS=60`` plays longer. A failure prints its seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencegate.gameday.chaos import run
from fencegate.gameday.faults import Fault, Strike, schedule
from fencegate.gameday.regions import TIMINGS
from fencegate.gameday.verify import Kind

SECONDS = float(os.environ.get("FENCEGATE_CHAOS_SECONDS", "25"))
FIRST = int(os.environ.get("FENCEGATE_CHAOS_SEED", "1"))
RUNS = int(os.environ.get("FENCEGATE_CHAOS_RUNS", "2"))


@pytest.mark.system
@pytest.mark.timeout(240 + SECONDS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
async def test_whatever_overlaps_nothing_is_lost_doubled_or_accepted_from_an_old_term(
    seed: int, tmp_path: Path
) -> None:
    faults = schedule(seed, SECONDS, TIMINGS.lease_duration)
    print(f"\nseed {seed}: {len(faults)} faults in {SECONDS:g} s")
    outcome = await run(tmp_path, faults, seconds=SECONDS, say=print)
    print(outcome)
    for region, log in outcome.logs.items():
        (tmp_path / f"{region}.log").write_text(log)
    assert outcome.ok, f"seed {seed}\n{outcome}"
    assert any(attempt.answered == "accepted" for attempt in outcome.attempts)


@pytest.mark.system
@pytest.mark.timeout(180)
async def test_with_the_fence_off_the_same_checker_finds_what_went_wrong(tmp_path: Path) -> None:
    handoffs = [Fault(2.0, Strike.HANDOFF, "primary-gateway", 0.0), Fault(2.2, Strike.HANDOFF, "dr-gateway", 0.0)]
    outcome = await run(tmp_path, handoffs, seconds=6.0, mode="observe", say=print)
    print(outcome)
    assert not outcome.verdict.ok
    assert outcome.verdict.count(Kind.TERM_SHARED) > 0
    assert outcome.verdict.count(Kind.TOKEN_FELL) + outcome.verdict.count(Kind.INTERLEAVED) > 0
