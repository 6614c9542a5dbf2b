from __future__ import annotations

from fencegate.gameday.scene import RegionScene, Scene
from fencegate.testing.hand_clock import HandClock


# Field case 68: hapostgres/pg_auto_failover#311.
def test_leaders_are_counted_by_open_stores_and_a_closed_one_has_no_token():
    scene = Scene(
        lambda: 5.0, {"a": RegionScene("a", open=True, max_token=9), "b": RegionScene("b", max_token=4)}, True
    )
    assert scene.leaders == 1
    assert (scene.regions["a"].token, scene.regions["b"].token) == (9, 0)
    scene.regions["b"].open = True
    assert scene.leaders == 2


def test_what_happens_is_told_with_the_time_since_the_start():
    clock = HandClock(100.0)
    scene = Scene(clock, {}, True)
    clock.now = 114.5
    scene.tell("something", "bad")
    (told,) = scene.timeline
    assert (told.at, told.text, told.tone) == (14.5, "something", "bad")
