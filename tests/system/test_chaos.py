"""Real regions under faults drawn from a seed: whatever overlaps, nothing is lost, doubled or taken from an old term.

``make chaos SEED=7`` plays one schedule again; ``RUNS=200 PER_STAGE=10 SECONDS=15`` plays longer. A failure prints its
seeds: ``SEED`` is the first of its stage, ``PER_STAGE`` as it was. ``TALLY=file.json`` adds up over runs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencegate.gameday import private_network
from fencegate.gameday.chaos import Pressure, run
from fencegate.gameday.chaos_stage import TIMINGS, Shape
from fencegate.gameday.faults import Fault
from fencegate.gameday.figures import strikes, table
from fencegate.gameday.season import Season, play
from fencegate.gameday.verify import Kind

SECONDS = float(os.environ.get("FENCEGATE_CHAOS_SECONDS", "12"))
FIRST = int(os.environ.get("FENCEGATE_CHAOS_SEED", "7"))
RUNS = int(os.environ.get("FENCEGATE_CHAOS_RUNS", "1"))
PER_STAGE = int(os.environ.get("FENCEGATE_CHAOS_PER_STAGE", "1"))
HANDOFFS = int(os.environ.get("FENCEGATE_CHAOS_HANDOFFS", "1"))
TALLY = os.environ.get("FENCEGATE_CHAOS_TALLY")
PRESSURE = Pressure(clients=64, pace=0.05, burst=32) if RUNS > 1 else Pressure()


@pytest.mark.system
@pytest.mark.timeout(240 + RUNS * (SECONDS + 120))
async def test_whatever_overlaps_nothing_is_lost_doubled_or_accepted_from_an_old_term(tmp_path: Path) -> None:
    if not private_network.missing():
        private_network.prepare()
    season = Season(FIRST, RUNS, SECONDS, PER_STAGE, HANDOFFS, PRESSURE)
    figures = await play(season, tmp_path, Path(TALLY) if TALLY else None, print)
    print(f"\n{table(figures, TIMINGS)}\n\n{strikes(figures)}")
    assert figures.accepted
    assert max(figures.frozen + figures.cut_off, default=0.0) <= TIMINGS.lease_duration


@pytest.mark.system
@pytest.mark.timeout(180)
async def test_with_the_fence_off_the_same_checker_finds_what_went_wrong(tmp_path: Path) -> None:
    handoffs = [Fault(2.0, "handoff", "primary-gateway", 0.0), Fault(2.2, "handoff", "dr-gateway", 0.0)]
    outcome = await run(tmp_path, [handoffs], seconds=6.0, shape=Shape(), mode="observe", say=print)
    print(outcome)
    assert not outcome.verdict.ok
    assert outcome.verdict.count(Kind.TERM_SHARED) > 0
    assert outcome.verdict.count(Kind.TOKEN_FELL) + outcome.verdict.count(Kind.INTERLEAVED) > 0
