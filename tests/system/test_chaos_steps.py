"""kill -9 at each step of claim, renewal, handoff, seal and group commit, the moment before it or the moment after.

By itself it kills the gateway at four of them. ``FENCEGATE_CHAOS_STEPS=all`` kills gateway and store, before and after
each:
``make chaos CHAOS=tests/system/test_chaos_steps.py STEPS=all``, four minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencegate.gameday.chaos import run
from fencegate.gameday.chaos_stage import ChaosStage, Shape
from fencegate.gameday.measured import Measured
from fencegate.gameday.walk import Blow, every_blow, walk

ALL = os.environ.get("FENCEGATE_CHAOS_STEPS") == "all"
FEW = [Blow(step, "after", "gateway") for step in ("claim", "append", "seal", "release")]
BLOWS = every_blow() if ALL else FEW


@pytest.mark.system
@pytest.mark.timeout(900)
async def test_a_kill_at_any_step_loses_nothing_and_opens_nothing_twice(tmp_path: Path) -> None:
    missed: list[Blow] = []

    async def at_each_step(stage: ChaosStage, _: Measured) -> None:
        missed.extend(await walk(stage, BLOWS))

    outcome = await run(tmp_path, [[]], seconds=1.0, shape=Shape(), prelude=at_each_step, say=print)
    print(outcome)
    assert not missed
    assert set(FEW) <= set(every_blow())
    assert outcome.ok, outcome
