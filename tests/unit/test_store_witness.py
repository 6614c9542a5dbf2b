"""What a gateway knows of its store, and when that says that the store went back. Real files: integration/store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencegate.store.witness import UNKNOWING, Known, Sight, Witness, behind, compared, guarded, is_older, position

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SIGHT = Sight("1/1", FIRST, 90, 100, 11, 50, 5, 0, False)


def answer(lsn: int, xact: int | None, here: str = "1/1", started: datetime = FIRST) -> Any:
    """The last row of a statement that was committed, as far as it is read here."""
    return {"here": here, "started": started, "lsn": lsn, "xact": xact}


def knowing(lsn: int = 100, xact: int = 10, reopened: int = 0) -> Witness:
    witness = Witness()
    witness.known = Known("1/1", reopened, FIRST, lsn, xact)
    return witness


# -- the rule -----------------------------------------------------------------------------------------


def test_less_of_the_log_or_an_acknowledged_transaction_that_is_still_to_come_is_behind() -> None:
    known = knowing().known
    assert not behind(known, SIGHT)
    assert behind(known, replace(SIGHT, lsn=99))
    assert behind(known, replace(SIGHT, next_xact=10))


def test_a_server_that_was_started_since_has_to_have_set_out_with_all_that_is_known() -> None:
    known, later = knowing().known, FIRST + timedelta(seconds=1)
    started = replace(SIGHT, started=later, lsn=5000, next_xact=500)
    assert behind(known, replace(started, start_lsn=99, start_xact=11))
    assert behind(known, replace(started, start_lsn=100, start_xact=10))
    assert not behind(known, replace(started, start_lsn=100, start_xact=11))
    assert compared(known, started).endswith("; it set out from byte 50, transaction 4")
    assert compared(known, SIGHT).endswith("; it is at byte 100, transaction 10")


def test_another_incarnation_and_what_an_operator_took_as_it_is_are_not_judged() -> None:
    known, less = knowing().known, replace(SIGHT, lsn=1, next_xact=1)
    assert not behind(known, replace(less, incarnation="1/2"))
    assert not behind(known, replace(less, reopened=1))
    assert behind(knowing(reopened=1).known, SIGHT), "behind the operator's word"


# -- a server of before a promotion -------------------------------------------------------------------


OLD, NEW = "7/00000009", "7/0000000A"


def promoted() -> Witness:
    """Of a store that was promoted, and is known as such."""
    witness = Witness()
    for here in (OLD, NEW):
        assert not witness.look(witness.known, replace(SIGHT, incarnation=here))
    assert witness.known.incarnation == NEW
    return witness


def test_a_promotion_leads_to_a_later_timeline_of_the_same_server_and_never_back() -> None:
    assert is_older(OLD, NEW)
    assert not is_older(NEW, OLD)
    assert not is_older(NEW, NEW)
    assert not is_older("8/00000001", NEW), "another cluster"
    assert not is_older(OLD, ""), "nothing is known"
    assert not is_older("0b6e6a1c-aaaa", "0b6e6a1c-bbbb"), "portability mode"


def test_the_server_of_before_a_promotion_has_gone_back_however_far_it_has_come_since() -> None:
    witness = promoted()
    old = replace(SIGHT, incarnation=OLD, lsn=10**9, next_xact=10**6, start_lsn=10**9, start_xact=10**6)
    assert witness.look(witness.known, old)
    assert (witness.gone_back, witness.closed) == (True, False)
    assert witness.look(witness.known, replace(old, gone_back=True))
    assert (witness.gone_back, witness.closed) == (True, True)
    assert "as before a promotion" in compared(witness.known, old)


def test_the_promoted_server_is_taken_again_at_once_whether_the_other_was_closed_or_not() -> None:
    for closed in (False, True):
        witness = promoted()
        assert witness.look(witness.known, replace(SIGHT, incarnation=OLD, gone_back=closed))
        assert not witness.look(witness.known, replace(SIGHT, incarnation=NEW))
        assert (witness.gone_back, witness.closed, witness.known.incarnation) == (False, False, NEW)


def test_the_server_of_before_a_promotion_is_taken_where_an_operator_says_so() -> None:
    for before in (0, 3):  # how often the promoted one had been reopened says nothing of the other
        witness = promoted()
        witness.known = replace(witness.known, reopened=before)
        old = replace(SIGHT, incarnation=OLD)
        assert witness.look(witness.known, replace(old, gone_back=True))
        assert not witness.look(witness.known, replace(old, reopened=1))
        assert (witness.gone_back, witness.known.incarnation, witness.known.reopened) == (False, OLD, 1)


# -- what is learned ----------------------------------------------------------------------------------


def test_an_answered_commit_is_learned_and_never_less_than_before() -> None:
    witness = knowing()
    witness.saw(answer(150, 12), witness.known)
    witness.saw(answer(140, 11), witness.known)
    assert (witness.known.lsn, witness.known.xact) == (150, 12)


def test_what_wrote_nothing_was_not_flushed_and_teaches_nothing() -> None:
    witness = knowing()
    witness.saw(answer(150, None), witness.known)
    assert witness.known == knowing().known


def test_an_answer_of_another_server_teaches_nothing_unless_it_was_judged_by_all_that_is_known() -> None:
    later = FIRST + timedelta(seconds=1)
    witness = knowing()
    witness.saw(answer(150, 12, here="1/2"), witness.known)
    witness.saw(answer(150, 12, started=later), replace(witness.known, xact=3))
    witness.saw(answer(150, 12), replace(witness.known, reopened=1))
    assert witness.known == knowing().known
    witness.saw(answer(150, 12, started=later), witness.known)
    assert witness.known == Known("1/1", 0, later, 150, 12)


def test_what_a_batch_taught_while_the_look_was_under_way_is_no_alarm() -> None:
    witness = knowing()
    before = witness.known
    witness.saw(answer(200, 20), before)
    assert not witness.look(before, SIGHT)
    assert witness.known.xact == 20


def test_what_the_server_before_this_one_answered_meanwhile_counts() -> None:
    witness = knowing()
    before = witness.known
    witness.saw(answer(200, 20), before)
    later = FIRST + timedelta(seconds=1)
    assert witness.look(before, replace(SIGHT, started=later, start_lsn=100, start_xact=11))


# -- closed, and open again ---------------------------------------------------------------------------


def test_it_stays_closed_until_an_operator_reopened_it() -> None:
    witness = knowing()
    less = replace(SIGHT, lsn=1)
    assert witness.look(witness.known, less)
    assert witness.look(witness.known, SIGHT), "others have written since"
    assert [witness.closed, witness.look(witness.known, replace(less, gone_back=True))] == [False, True]
    assert [witness.closed, witness.look(witness.known, replace(less, reopened=1, flushed=1))] == [True, False]
    assert (witness.gone_back, witness.known) == (False, Known("1/1", 1, FIRST, 1, 0))


def test_the_newest_files_are_told_by_the_finding_that_is_not_in_them() -> None:
    witness = knowing()
    assert witness.look(witness.known, replace(SIGHT, lsn=1, gone_back=True))
    later = FIRST + timedelta(seconds=1)
    back = replace(SIGHT, started=later, lsn=300, next_xact=11, start_lsn=200, start_xact=11)
    assert not witness.look(witness.known, back)
    assert not witness.gone_back


def test_the_finding_of_another_gateway_closes_it_for_as_long_as_it_stands() -> None:
    witness = Witness()
    assert witness.look(witness.known, replace(SIGHT, gone_back=True))
    assert witness.look(witness.known, replace(SIGHT, gone_back=True))
    assert not witness.gone_back
    assert not witness.look(witness.known, SIGHT)


def test_what_is_let_in_whatever_the_fence_says_brings_nothing_along() -> None:
    assert knowing().arguments(enforced=False) == ("", 0, None, 0, 0)
    assert knowing().arguments() == ("1/1", 0, FIRST, 100, 10)
    assert UNKNOWING.known == Known()


def test_the_statement_is_written_around_the_parameter() -> None:
    assert guarded("$2", first=11) == "fencegate.unless_gone_back($2, $11, $12, $13, $14, $15)"
    assert position("verdict = -1").count("CASE WHEN verdict = -1 THEN") == 4


# -- over any life of a store -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """A server's log and numbers: what is flushed survives a crash, what is not may not."""

    lsn: int = 100
    flushed: int = 100
    next_xact: int = 10
    committed: int = 9
    started: int = 0
    start_lsn: int = 100
    start_xact: int = 10

    def sight(self) -> Sight:
        started = FIRST + timedelta(seconds=self.started)
        return Sight("1/1", started, self.flushed, self.lsn, self.next_xact, self.start_lsn, self.start_xact, 0, False)

    def commit(self) -> Store:
        return replace(
            self, lsn=self.lsn + 80, flushed=self.lsn + 80, next_xact=self.next_xact + 1, committed=self.next_xact
        )

    def abort(self) -> Store:
        return replace(self, lsn=self.lsn + 50, next_xact=self.next_xact + 1)

    def checkpoint(self) -> Store:
        return replace(self, lsn=self.lsn + 30, flushed=self.lsn + 30, start_lsn=self.lsn, start_xact=self.next_xact)

    def restart(self, started: int) -> Store:
        """After a crash: all that was flushed is there, and numbers that only an aborted one had are given again."""
        recovered = replace(self, lsn=self.flushed, next_xact=self.committed + 1, started=started)
        return recovered.checkpoint()


STEPS = st.lists(st.sampled_from(["ours", "theirs", "abort", "checkpoint", "crash", "look"]), max_size=30)


def lived(store: Store, witness: Witness, steps: list[str], started: int) -> Store:
    for place, step in enumerate(steps):
        if step in ("ours", "theirs"):
            asked, store = store, store.commit()
            if step == "ours":
                assert not behind(witness.known, asked.sight())
                witness.saw(answer(asked.lsn + 40, asked.next_xact, started=asked.sight().started), witness.known)
        elif step == "crash":
            store = store.restart(started + place)
        elif step == "look":
            assert not witness.look(witness.known, store.sight()), "a false alarm"
        else:
            store = getattr(store, step)()
    return store


@given(STEPS)
def test_no_crash_ever_looks_like_a_store_that_went_back(steps: list[str]) -> None:
    witness = Witness()
    witness.look(witness.known, Store().sight())
    lived(Store(), witness, steps, started=1)


@given(STEPS, st.integers(1, 5), st.lists(st.sampled_from(["theirs", "abort"]), max_size=30))
def test_a_store_put_back_is_found_until_its_next_checkpoint_whatever_others_write(
    steps: list[str], lost: int, others: list[str]
) -> None:
    witness = Witness()
    witness.look(witness.known, Store().sight())
    kept = lived(Store(), witness, steps, started=1)
    witness.look(witness.known, kept.sight())
    lived(kept, witness, ["ours"] * lost, started=100)
    put_back = lived(kept.restart(200), Witness(), others, started=300)
    assert behind(witness.known, put_back.sight())
    assert witness.look(witness.known, put_back.sight())
