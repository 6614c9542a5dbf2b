"""What ``test_chaos_packets.py`` runs in a network of its own, and nobody anywhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.gameday import private_network
from fencegate.gameday.chaos import run
from fencegate.gameday.chaos_stage import TIMINGS, Shape
from fencegate.gameday.faults import Fault

LONG, SHORT = TIMINGS.lease_duration + 1.0, 1.0
FAULTS = [
    Fault(0.2, "lose-requests", "primary-quorum-link", LONG),
    Fault(0.2, "lose-requests", "dr-store-link", SHORT),
    Fault(4.5, "lose-answers", "dr-quorum-link", LONG),
    Fault(4.5, "lose-answers", "primary-store-link", SHORT),
    Fault(6.5, "lose-all", "primary-store-link", SHORT),
    Fault(9.0, "lose-all", "dr-store-link", LONG),
    Fault(9.0, "lose-requests", "quorum-0", LONG),
    Fault(10.0, "lose-answers", "quorum-1", SHORT),
]


@pytest.mark.system
@pytest.mark.timeout(200)
async def test_inside(tmp_path: Path) -> None:
    private_network.prepare()
    assert not private_network.missing()
    outcome = await run(tmp_path, [FAULTS], seconds=13.5, shape=Shape(packets=True), say=print)
    print(outcome)
    assert outcome.ok, outcome
    assert not outcome.figures.left_out
    assert outcome.figures.changes > 1, "nobody was cut off for long enough"
