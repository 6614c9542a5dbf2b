"""Two regions under a steady load with handoffs: what the processes and the stores take stays flat.

``make soak MINUTES=30`` runs it longer, with a handoff each minute. The longer it runs, the smaller the leak it finds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencegate.gameday.soak import run

MINUTES = float(os.environ.get("FENCEGATE_SOAK_MINUTES", "1.5"))


@pytest.mark.system
@pytest.mark.timeout(300 + 60 * MINUTES)
async def test_under_a_steady_load_with_handoffs_nothing_grows(tmp_path: Path) -> None:
    seconds, long = MINUTES * 60, MINUTES >= 10
    soaked = await run(
        tmp_path,
        seconds=seconds,
        handoff_every=60 if long else 12,
        warm_up=seconds / 3,
        spacing=10 if long else 3,
        say=print,
    )
    print(soaked)
    assert soaked.ok, f"\n{soaked}"
    assert soaked.handoffs
    assert soaked.answers["accepted"]
    assert {"idle", "slow head", "slow body"} <= set(soaked.cut)
