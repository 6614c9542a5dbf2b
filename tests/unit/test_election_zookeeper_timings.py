"""The answer of a ZooKeeper member to ``conf``, read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.zookeeper_timings import EnsembleTimings, read

SINGLE = (
    "clientPort=2181\nsecureClientPort=-1\ntickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\nserverId=0\n"
)


def test_a_single_server_bears_no_silence_of_a_leader() -> None:
    assert read(SINGLE) == EnsembleTimings(None, 4.0, 40.0)


def test_a_member_gives_a_silent_leader_up_after_so_many_ticks() -> None:
    assert read(SINGLE + "initLimit=10\nsyncLimit=5\nelectionAlg=3\n") == EnsembleTimings(10.0, 4.0, 40.0)


def test_a_command_that_is_not_allowed_says_which_setting_allows_it() -> None:
    assert "whitelist" in read("conf is not executed because it is not in the whitelist.\n").why


@given(st.text())
def test_any_other_answer_tells_nothing(text: str) -> None:
    assert read(text).why
