import math

from fencegate.election.storeless import StorelessTerm


async def test_it_refuses_nothing_and_holds_nothing() -> None:
    term = StorelessTerm()
    clock = await term.clock()

    assert await term.claim("r", 1, "eu/n", clock, math.inf) is None
    assert await term.extend("r", 1, "eu/n", clock, 1) is None
    assert await term.set_draining("r", 1, True)
    assert await term.seal("r", 1, clock.incarnation)
    assert await term.read("r") is None
    assert await term.read_all() == []
