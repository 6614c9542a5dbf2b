"""Every kind of violation is planted, found, named and shown; a clean run stays clean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.fence import Entry
from fencegate.gameday.history import Attempt
from fencegate.gameday.verify import Kind, Verdict, verify, verify_apart
from fencegate.store.chain import genesis, link

ROLE = "ledger"


def ledger(*writes: tuple[str | None, int], after: list[Entry] | None = None) -> list[Entry]:
    """Entries with a whole chain out of (key, token) pairs, continuing ``after``."""
    entries = list(after or [])
    for key, token in writes:
        previous = bytes.fromhex(entries[-1].hash) if entries else genesis(ROLE)
        seq = len(entries) + 1
        bare = Entry(ROLE, seq, token, f"2026-11-29T14:17:17.{seq:06d}Z", b'{"n":%d}' % seq, "", key)
        entries.append(replace(bare, hash=link(previous, bare).hex()))
    return entries


def told(entries: list[Entry], region: str, began: float = 0.0) -> list[Attempt]:
    """The acknowledgements of these entries, one a second."""
    return [
        Attempt(
            "client", e.key or "", region, e.token, began + e.seq, began + e.seq + 0.5, "accepted", "", e.seq, e.hash
        )
        for e in entries
    ]


def refused(key: str, region: str = "dr", reason: str = "not_leader", token: int = 1) -> Attempt:
    return Attempt("stale-1", key, region, token, 50.0, 50.1, "refused", reason)


def judge(attempts: list[Attempt], **ledgers: list[Entry]) -> Verdict:
    return verify(attempts, ledgers, role=ROLE, leader="primary")


def kinds(verdict: Verdict) -> set[Kind]:
    return {v.kind for v in verdict.violations}


TERMS = ledger(("a", 1), ("b", 1), ("c", 4), ("d", 4), ("e", 9))
CLEAN = told(TERMS[:2], "primary") + told(TERMS[2:4], "dr") + told(TERMS[4:], "primary")


def test_a_clean_run_of_three_terms_has_no_violation():
    verdict = judge([*CLEAN, refused("a"), refused("never-landed")], primary=TERMS, dr=list(TERMS))
    assert verdict.ok
    assert verdict.violations == ()
    assert verdict.entries == {"primary": 5, "dr": 5}
    assert verdict.behind == {"primary": 0, "dr": 0}
    assert verdict.divergent == 0


def test_a_copy_that_is_behind_is_counted_and_is_no_violation():
    verdict = judge(CLEAN, primary=TERMS, dr=TERMS[:3])
    assert verdict.ok
    assert verdict.behind["dr"] == 2


def test_two_ledgers_that_part_are_located_at_their_first_differing_sequence():
    other = ledger(("x", 4), ("y", 4), ("z", 4), after=TERMS[:4])
    verdict = judge(CLEAN + told(other[4:], "dr"), primary=TERMS, dr=other)
    (fork,) = verdict.forks
    assert (fork.seq, fork.leader_entries, fork.other_entries) == (5, 1, 3)
    assert verdict.divergent == 4
    assert Kind.DIVERGED in kinds(verdict)
    assert "from sequence 5 on" in verdict.violations[0].evidence[0]


def test_an_acknowledged_write_that_the_leaders_ledger_lacks_is_lost():
    verdict = judge([*CLEAN, *told(ledger(("f", 9), after=TERMS)[5:], "primary")], primary=TERMS, dr=TERMS)
    assert kinds(verdict) == {Kind.LOST}
    assert verdict.count(Kind.LOST) == 1
    assert "f is entry 6" in verdict.violations[0].evidence[0]


def test_an_acknowledged_write_whose_place_holds_another_entry_is_lost():
    wrong = replace(CLEAN[1], hash="00" * 32)
    assert kinds(judge([CLEAN[0], wrong, *CLEAN[2:]], primary=TERMS, dr=TERMS)) == {Kind.LOST}


def test_one_lost_write_acknowledged_twice_is_counted_once():
    lost = told(ledger(("f", 9), after=TERMS)[5:], "primary")
    assert judge([*CLEAN, *lost, replace(lost[0], replayed=True)], primary=TERMS, dr=TERMS).count(Kind.LOST) == 1


def test_a_key_at_two_places_of_one_ledger_is_applied_twice():
    twice = ledger(("e", 9), after=TERMS)
    verdict = judge([*CLEAN, *told(twice[5:], "primary")], primary=twice, dr=twice)
    assert kinds(verdict) == {Kind.TWICE}
    assert "primary 5 (token 9), primary 6 (token 9)" in verdict.violations[0].evidence[0]


def test_a_key_at_one_place_in_each_of_two_forked_ledgers_is_applied_twice():
    left, right = ledger(("x", 4), ("k", 4), after=TERMS[:2]), ledger(("k", 2), after=TERMS[:2])
    attempts = told(left, "primary") + told(right[2:], "dr", began=-40)
    assert judge(attempts, primary=left, dr=right).count(Kind.TWICE) == 1


def test_copies_of_one_entry_count_once():
    assert judge(CLEAN, primary=TERMS, dr=list(TERMS)).count(Kind.TWICE) == 0


def test_a_write_that_was_only_ever_refused_must_be_nowhere():
    entries = ledger(("ghost", 9), after=TERMS)
    verdict = judge([*CLEAN, refused("ghost", reason="stale_token")], primary=entries, dr=entries)
    assert kinds(verdict) == {Kind.REFUSED_APPLIED}
    assert "stale-1 was refused by dr (stale_token), yet ghost is entry 6" in verdict.violations[0].evidence[0]


def test_a_write_refused_in_one_region_and_accepted_in_the_other_is_fine():
    assert judge([*CLEAN, refused("e")], primary=TERMS, dr=TERMS).ok


def test_a_write_with_an_unknown_outcome_may_have_been_applied():
    entries = ledger(("maybe", 9), after=TERMS)
    asked = Attempt("client", "maybe", "primary", 9, 20.0, 21.0, "unknown", "outcome_unknown")
    assert judge([*CLEAN, asked, refused("maybe")], primary=entries, dr=entries).ok


@pytest.mark.parametrize("key", ["stranger", None])
def test_an_entry_that_nobody_asked_for_is_named(key):
    entries = ledger((key, 9), after=TERMS)
    assert kinds(judge(CLEAN, primary=entries, dr=entries)) == {Kind.UNASKED}


def test_a_missing_sequence_is_a_gap_and_breaks_the_chain():
    holed = [*TERMS[:2], *TERMS[3:]]
    verdict = judge([*CLEAN[:2], *CLEAN[3:]], primary=holed, dr=holed)
    assert kinds(verdict) == {Kind.GAP, Kind.CHAIN_BROKEN}
    assert "primary has entry 4 where 3 should be" in verdict.violations[0].evidence[0]


@pytest.mark.parametrize(
    "change", [{"body": b'{"n":99}'}, {"token": 2}, {"key": "B"}, {"recorded_at": "2026-11-29T14:17:18.000000Z"}]
)
def test_an_entry_that_was_changed_afterwards_breaks_the_chain(change):
    altered = [TERMS[0], replace(TERMS[1], **change), *TERMS[2:]]
    verdict = judge([*CLEAN, *([replace(CLEAN[1], key="B")] if "key" in change else [])], primary=altered, dr=altered)
    assert verdict.count(Kind.CHAIN_BROKEN) == 2  # one per ledger: the chain is picked up again behind it


def test_a_token_that_falls_in_sequence_order_is_found():
    entries = ledger(("a", 4), ("b", 9), ("c", 4))
    attempts = [replace(a, began=0.0, ended=9.0) for a in told(entries, "primary")]
    verdict = judge(attempts, primary=entries, dr=entries)
    assert kinds(verdict) == {Kind.TOKEN_FELL}
    assert "carries token 4 after token 9" in verdict.violations[0].evidence[0]


def test_an_older_term_that_accepts_after_a_newer_one_was_acknowledged_is_interleaved():
    late = Attempt("stale-1", "late", "dr", 4, 30.0, 30.1, "accepted", "", 5, "ff" * 32)
    verdict = judge([*CLEAN, late], primary=TERMS, dr=TERMS)
    assert verdict.count(Kind.INTERLEAVED) == 1
    (found,) = [v for v in verdict.violations if v.kind is Kind.INTERLEAVED]
    assert "dr accepted late under token 4" in found.evidence[0]
    assert "under token 9" in found.evidence[0]


def test_an_older_write_that_overlaps_a_newer_one_is_not_interleaved():
    overlapping = [replace(CLEAN[3], ended=60.0), CLEAN[4]]
    assert judge([*CLEAN[:3], *overlapping], primary=TERMS, dr=TERMS).ok


def test_a_replayed_answer_of_an_older_term_is_not_interleaved():
    assert judge([*CLEAN, replace(CLEAN[0], began=40.0, ended=41.0, replayed=True)], primary=TERMS, dr=TERMS).ok


def test_evidence_stays_short_however_many_cases_there_are():
    entries = ledger(*((f"ghost-{n}", 9) for n in range(50)), after=TERMS)
    verdict = judge([*CLEAN, *(refused(f"ghost-{n}") for n in range(50))], primary=entries, dr=entries)
    (violation,) = verdict.violations
    assert violation.count == 50
    assert len(violation.evidence) == 3


@given(
    tokens=st.lists(st.integers(1, 5), min_size=1, max_size=20).map(sorted),
    cut=st.integers(0, 20),
    theirs=st.integers(0, 4),
)
def test_a_fork_is_found_exactly_where_it_begins(tokens, cut, theirs):
    ours = ledger(*((f"k{n}", token) for n, token in enumerate(tokens)))
    cut = min(cut, len(ours))
    other = ledger(*((f"x{n}", 5) for n in range(theirs)), after=ours[:cut])
    attempts = told(ours, "primary") + told(other[cut:], "dr")
    verdict = judge(attempts, primary=ours, dr=other)
    if theirs == 0:
        assert verdict.forks == ()
        assert verdict.behind["dr"] == len(ours) - cut
    else:
        (fork,) = verdict.forks
        assert (fork.seq, fork.other_entries, fork.leader_entries) == (cut + 1, theirs, len(ours) - cut)


# -- stores that nothing copies between -------------------------------------------------------------


OURS = ledger(("a", 1), ("b", 1), ("e", 9))
THEIRS = ledger(("c", 4), ("d", 4))
APART = [
    *told(OURS[:2], "primary"),
    *told(THEIRS, "dr", began=5.0),
    Attempt("client", "e", "primary", 9, 20.0, 20.5, "accepted", "", 3, OURS[2].hash),
]


def judge_apart(attempts: list[Attempt], primary: list[Entry] = OURS, dr: list[Entry] = THEIRS) -> Verdict:
    return verify_apart(attempts, {"primary": primary, "dr": dr}, role=ROLE)


def test_two_stores_that_take_turns_are_well_apart():
    verdict = judge_apart([*APART, refused("nowhere"), replace(refused("maybe"), answered="unknown")])
    assert verdict.ok, verdict.violations
    assert verdict.entries == {"primary": 3, "dr": 2}


@pytest.mark.parametrize(
    ("attempts", "stores", "kind"),
    [
        (APART, {"primary": OURS[:2]}, Kind.LOST),
        # There, but not where the client was told that it is.
        ([replace(APART[0], region="dr"), *APART[1:]], {}, Kind.LOST),
        (APART, {"dr": ledger(("c", 4), ("d", 4), ("e", 4))}, Kind.TWICE),
        ([a for a in APART if a.key != "c"] + [refused("c")], {}, Kind.REFUSED_APPLIED),
        ([a for a in APART if a.key != "c"], {}, Kind.UNASKED),
        (APART, {"dr": ledger(("c", 4), ("d", 9))}, Kind.TERM_SHARED),
        ([*APART[:2], replace(APART[2], began=30.0, ended=30.5), *APART[3:]], {}, Kind.INTERLEAVED),
        (APART, {"dr": [THEIRS[0], replace(THEIRS[1], body=b"{}")]}, Kind.CHAIN_BROKEN),
        (APART, {"dr": [THEIRS[0], replace(THEIRS[1], seq=3)]}, Kind.GAP),
        (APART, {"dr": ledger(("c", 4), ("d", 3))}, Kind.TOKEN_FELL),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
def test_each_violation_of_stores_apart_is_named(attempts, stores, kind):
    assert kind in kinds(judge_apart(attempts, **stores))


# -- what only several answers and ledgers together show ---------------------------------------------


def test_a_replay_of_a_write_that_was_only_ever_refused_shows_that_it_was_applied():
    replayed = replace(CLEAN[4], replayed=True)
    assert kinds(judge([*CLEAN[:4], refused("e"), replayed], primary=TERMS, dr=TERMS)) == {Kind.REFUSED_APPLIED}
    lost = Attempt("client", "e", "primary", 9, 2.0, 3.0, "unknown", "no answer")
    assert judge([*CLEAN[:4], refused("e"), lost, replayed], primary=TERMS, dr=TERMS).ok
    # A whole operation of the SDK, whose own first try was the one that did it.
    assert judge([*CLEAN[:4], refused("e"), replace(replayed, tries=2)], primary=TERMS, dr=TERMS).ok


def test_two_writes_that_have_each_others_bodies_are_mixed():
    bodies = {"n-1": b'{"case":"n-12"}', "n-12-in-dr": b'{"decision": "refer", "case": "n-1"}'}
    entries: list[Entry] = []
    for key, body in bodies.items():
        previous = bytes.fromhex(entries[-1].hash) if entries else genesis(ROLE)
        bare = Entry(ROLE, len(entries) + 1, 1, "2026-11-29T14:17:17.000000Z", body, "", key)
        entries.append(replace(bare, hash=link(previous, bare).hex()))
    verdict = judge(told(entries, "primary"), primary=entries, dr=[])
    assert kinds(verdict) == {Kind.MIXED}
    assert verdict.count(Kind.MIXED) == 2
    assert "primary's entry 1 has the key n-1 and the body of n-12" in verdict.violations[0].evidence[0]


def test_a_write_that_was_stored_under_another_token_than_it_came_with_is_found():
    verdict = judge([*CLEAN[:4], replace(CLEAN[4], token=10)], primary=TERMS, dr=TERMS)
    assert kinds(verdict) == {Kind.STAMPED}
    assert "took e under token 10, and its entry 5 carries token 9" in verdict.violations[0].evidence[0]
