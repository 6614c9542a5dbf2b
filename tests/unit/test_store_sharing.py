"""Who else writes to a role is told by the numbers of our own entries."""

from __future__ import annotations

from fencegate.store.sharing import Sharing


def noted(*batches: tuple[str, int, int]) -> Sharing:
    sharing = Sharing()
    for role, first, last in batches:
        sharing.note(role, first, last)
    return sharing


def test_nobody_else_is_believed_to_write_while_our_entries_follow_each_other() -> None:
    assert not Sharing().believed()
    assert not noted(("a", 5, 9), ("a", 10, 10), ("a", 11, 30)).believed()


def test_a_gap_tells_of_others_and_they_are_forgotten_after_eight_batches_without_one() -> None:
    gap = [("a", 1, 2), ("a", 4, 5)]
    assert noted(*gap).believed()
    following = [("a", 6 + n, 6 + n) for n in range(8)]
    assert noted(*gap, *following[:7]).believed()
    assert not noted(*gap, *following).believed()


def test_another_role_s_entries_are_no_gap() -> None:
    assert not noted(("a", 1, 2), ("b", 40, 50), ("a", 9, 9), ("a", 10, 12)).believed()
