from __future__ import annotations

import pytest

from fencegate.gameday.held_faults import LINKS, PROCESSES, STRIKES, unfit


def test_every_part_can_be_struck_and_processes_and_links_by_nothing_in_common() -> None:
    fitting = {part: {how for how in STRIKES if not unfit(how, part)} for part in (*PROCESSES, *LINKS)}
    assert all(fitting.values())
    assert not set.union(*(fitting[p] for p in PROCESSES)) & set.union(*(fitting[link] for link in LINKS))
    assert set.union(*fitting.values()) == set(STRIKES)


@pytest.mark.parametrize(
    ("how", "part", "expected"),
    [
        ("kick", "dr-store", "there is no 'kick'"),
        ("kill", "dr-tower", "there is no 'dr-tower'"),
        ("kill", "dr-quorum-link", "expected silence, deaf, late, reset, half for dr-quorum-link"),
        ("silence", "quorum-1", "expected freeze, kill for quorum-1"),
    ],
)
def test_what_does_not_fit_is_told_with_what_would(how: str, part: str, expected: str) -> None:
    assert expected in unfit(how, part)
