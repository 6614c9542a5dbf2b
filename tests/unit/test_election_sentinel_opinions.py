from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.sentinel_opinions import NoOpinion, Opinion, agreed, majority, opinion_of


def says(address: str, epoch: int, sentinels: int = 3) -> Opinion:
    return Opinion(address, epoch, sentinels)


ANSWER = ["name", "mymaster", "ip", "10.0.0.7", "port", "6379", "config-epoch", "4", "num-other-sentinels", "2"]


def test_an_answer_is_taken_apart_and_epoch_0_makes_a_token() -> None:
    assert opinion_of(ANSWER) == Opinion("10.0.0.7:6379", 4, 3)
    assert says("a", 0).token == 1
    assert opinion_of([*ANSWER[:2], "ip", "::1", *ANSWER[4:]]).address == "[::1]:6379"


@pytest.mark.parametrize(
    "answer",
    [None, b"OK", [], ANSWER[:-1], ANSWER[:-2], [*ANSWER[:6], "config-epoch", "-1", *ANSWER[8:]], [*ANSWER[:-1], "x"]],
)
def test_anything_else_is_no_opinion(answer: object) -> None:
    with pytest.raises(NoOpinion):
        opinion_of(answer)


def test_a_majority_of_the_same_mind_is_believed_whoever_lags_behind() -> None:
    assert agreed([says("b", 5), says("b", 5), says("a", 4)], 3) == says("b", 5)
    assert agreed([says("b", 5), says("b", 5)], 3) == says("b", 5)


@pytest.mark.parametrize(
    "opinions",
    [
        [],
        [says("a", 4)],
        [says("a", 4), says("b", 5)],
        [says("a", 4), says("a", 4), says("b", 5)],  # one knows that epoch 4 is over
        [says("a", 4), says("a", 4), says("b", 4)],  # two forced failovers under one number
        [says("a", 4), says("b", 5), says("c", 6)],
        [says("a", 4, sentinels=5), says("a", 4, sentinels=5)],  # there are five, and two were found
    ],
)
def test_a_split_or_a_minority_is_nobody(opinions: list[Opinion]) -> None:
    assert agreed(opinions, 3) is None


def test_sentinels_that_nobody_configured_count_for_the_majority() -> None:
    assert majority([says("a", 1, sentinels=5)], 3) == 3
    assert majority([], 3) == 2
    assert majority([says("a", 1, sentinels=1)], 5) == 3


SENTINELS = st.integers(1, 7)


@given(st.data())
def test_two_majorities_at_one_moment_never_name_two_primaries_under_one_number(data: st.DataObject) -> None:
    """Each sentinel has one mind; whichever of them two gateways reach, they believe no two holders of one token."""
    count = data.draw(SENTINELS)
    mind = st.builds(Opinion, st.sampled_from("ab"), st.integers(0, 2), st.just(count))
    minds = data.draw(st.lists(mind, min_size=count, max_size=count))
    reached = [data.draw(st.lists(st.sampled_from(range(count)), unique=True)) for _ in range(2)]
    first, second = (agreed([minds[each] for each in some], count) for some in reached)
    if first is not None and second is not None:
        assert first == second
