"""An upstream behind both regions under faults: the weaker guarantee of the ``http`` target, and what is left open.

The README's table of guarantee levels is held against what these runs show.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fencegate.gameday.chaos import run
from fencegate.gameday.chaos_stage import TIMINGS, ChaosStage, Shape
from fencegate.gameday.faults import schedule
from fencegate.gameday.measured import Measured
from fencegate.gameday.parts import Part
from fencegate.gameday.steps import Trap
from fencegate.gameday.strikes.menu import menu
from fencegate.gameday.verify_effects import late

README = Path(__file__).resolve().parents[2] / "README.md"
LIMIT = 2 * TIMINGS.lease_duration + 2.0
"""Seconds for which a write may be under way: more than a lease, so that there is a residual case to be seen."""


def promised(level: str) -> str:
    """What the README's table says can still go wrong at a guarantee level."""
    row = re.search(rf"^\| \*\*{level}\*\*[^|]*\|[^|]*\|([^|]*)\|$", README.read_text("utf-8"), re.MULTILINE)
    assert row is not None, f"the README's table has no level {level}"
    return row.group(1)


@pytest.mark.system
@pytest.mark.timeout(240)
async def test_an_upstream_that_answers_late_by_half_or_never_hides_and_doubles_nothing(tmp_path: Path) -> None:
    shape = Shape(upstream=1.5)
    faults = schedule(7, 9.0, TIMINGS.lease_duration, menu(shape))
    outcome = await run(tmp_path, [faults], seconds=9.0, shape=shape, say=print)
    print(outcome)
    print(f"behind a newer term's write: {outcome.figures.late}")
    assert outcome.ok, outcome
    assert {a.answered for a in outcome.attempts} == {"accepted", "refused", "unknown"}


async def seen(condition: Callable[[], object]) -> None:
    """Returns when it is true; fails where that takes half a minute."""
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it did not come")


async def frozen_until_the_next_term_writes(stage: ChaosStage, gateway: Part, token: int) -> None:
    await seen(lambda: (stage.leading() or (None, 0))[1] > token)
    await asyncio.sleep(0.5)
    gateway.thaw()


@pytest.mark.system
@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", ["admit", "look"])
async def test_what_a_frozen_gateway_has_under_way_upstream_is_the_residual_case_and_its_size_is_the_timeout(
    tmp_path: Path, step: str
) -> None:
    admitted: list[float] = []

    async def freeze_it_twice(stage: ChaosStage, _: Measured) -> None:
        upstream = stage.upstream
        assert upstream is not None
        upstream.steady = True
        # Between the store's yes and the first byte: the yes is too old when it is read, and nothing of it is sent.
        region, token = stage.leading() or pytest.fail("nobody leads")
        gateway = stage.parts[f"{region.name}-gateway"]
        trap = Trap(step, "after", region.name, gateway.freeze, drops=False)
        stage.traps.append(trap)
        await trap.sprung.wait()
        await frozen_until_the_next_term_writes(stage, gateway, token)
        await asyncio.sleep(1.0)
        admitted.extend(late(upstream.effects))
        # Behind the first byte: what the upstream has begun it does.
        region, token = stage.leading() or pytest.fail("nobody leads")
        upstream.wait = LIMIT - 2.0
        await seen(lambda: upstream.under_way)
        gateway = stage.parts[f"{region.name}-gateway"]
        gateway.freeze()
        upstream.wait = 0.0
        await frozen_until_the_next_term_writes(stage, gateway, token)
        await seen(lambda: not upstream.under_way)

    outcome = await run(tmp_path, [[]], seconds=1.0, shape=Shape(upstream=LIMIT), prelude=freeze_it_twice, say=print)
    behind = outcome.figures.late
    print(outcome)
    print(f"{len(behind)} writes behind a newer term's, at most {max(behind, default=0.0):.2f} s")
    assert outcome.ok, outcome
    # What the batch before had just been allowed may have been about to go out: that is the residual case already.
    assert len(admitted) <= 2
    assert all(each <= LIMIT for each in admitted)
    assert behind, "the README says that this can go wrong, and it did not: is the table out of date?"
    assert max(behind) <= LIMIT
    said = promised("drain")
    assert "frozen mid-forward" in said
    assert "bounded by the route's `timeout`" in said
    assert promised("in-commit").strip().startswith("nothing, as long as the `margin` covers")
