"""Right histories of any shape pass the judge, and one violation planted into any of them does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from hypothesis import assume, given
from hypothesis import strategies as st

from fencegate.fence import Entry
from fencegate.gameday.history import Answered, Attempt
from fencegate.gameday.verify import Kind, Verdict, verify, verify_apart
from fencegate.store.chain import genesis, link

ROLE = "ledger"
REGIONS = ("primary", "dr")


def chained(entries: Sequence[Entry]) -> list[Entry]:
    """The same entries with sequence numbers and hashes as a store would have given them."""
    made: list[Entry] = []
    for entry in entries:
        previous = bytes.fromhex(made[-1].hash) if made else genesis(ROLE)
        bare = replace(entry, seq=len(made) + 1, hash="")
        made.append(replace(bare, hash=link(previous, bare).hex()))
    return made


_moments = count()


def entry_of(key: str | None, token: int, caller: str | None = None) -> Entry:
    """No two are of one moment."""
    body = b'{"case":"%b"}' % key.encode() if key else b"{}"
    return Entry(ROLE, 0, token, f"2026-11-29T14:17:17.{next(_moments) % 1_000_000:06d}Z", body, "", key, caller)


@dataclass
class Run:
    """What was asked and answered, and what the stores hold: one ledger that is copied, or one for each region.

    ``old`` entries were there before. The last region in ``led`` leads.
    """

    apart: bool
    attempts: list[Attempt] = field(default_factory=list)
    ledgers: dict[str, list[Entry]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    leader: str = "primary"

    def verdict(self) -> Verdict:
        if self.apart:
            return verify_apart(self.attempts, self.ledgers, role=ROLE, since=self.since)
        return verify(self.attempts, self.ledgers, role=ROLE, leader=self.leader, since=max(self.since.values()))

    def kinds(self) -> set[Kind]:
        return {violation.kind for violation in self.verdict().violations}

    def put(self, change: Callable[[list[Entry]], list[Entry]], region: str | None = None) -> None:
        """Change what the leading store holds, and what was copied from it."""
        of = self.leader if region is None else region
        changed = change(self.ledgers[of])
        self.ledgers = {name: changed if name == of or not self.apart else held for name, held in self.ledgers.items()}


@st.composite
def runs(draw: st.DrawFn, *, apart: bool | None = None) -> Run:
    run = Run(draw(st.booleans()) if apart is None else apart)
    shared: list[Entry] = []
    # Clients of other days may have shared a key, or used one again after it had expired.
    rows = draw(
        st.lists(st.tuples(st.sampled_from(["k", "l", None]), st.sampled_from(["ann", "bob", None])), max_size=3)
    )
    old = [entry_of(key, 1, caller) for key, caller in rows]
    held = {region: (list(old) if run.apart else shared) for region in REGIONS}
    shared += old
    run.since = dict.fromkeys(REGIONS, len(old))
    open_keys: list[tuple[str, str]] = []  # sent, and not yet heard of
    at, number = 10.0, 0
    for term in range(draw(st.integers(1, 4))):
        token, region = 2 + 3 * term, REGIONS[term % 2]
        run.leader = region
        for _ in range(draw(st.integers(0, 6))):
            at += 1.0
            again = (
                draw(st.booleans()) and any(where == region for where, _ in open_keys) if run.apart else bool(open_keys)
            )
            if again:
                key = next(k for where, k in open_keys if not run.apart or where == region)
            else:
                number += 1
                key = f"c-{number}" + (f"-in-{region}" if run.apart else "")
            fate = draw(st.sampled_from(["accepted", "refused", "lost, done", "lost, not done", "sdk"]))
            early, late = draw(st.floats(0, 5)), draw(st.floats(0, 5))
            done = any(e.key == key for e in held[region][len(old) :])
            if fate == "refused":
                stale = max(1, token - draw(st.integers(0, 3)))
                run.attempts.append(Attempt("c", key, region, stale, at - early, at + late, "refused", "stale_token"))
                continue
            if fate != "lost, not done" and not done:
                held[region].append(entry_of(key, token))
            answered: Answered = "unknown" if fate.startswith("lost") else "accepted"
            tries = draw(st.integers(2, 4)) if fate == "sdk" else 1
            run.attempts.append(
                Attempt("c", key, region, token, at - early, at + late, answered, replayed=done, tries=tries)
                if answered == "accepted"
                else Attempt("c", key, region, token, at - early, at + late, answered, "no answer")
            )
            open_keys = [one for one in open_keys if one[1] != key]
            if answered == "unknown":
                open_keys.append((region, key))
        at += 0.5
    ledgers = {region: chained(entries) for region, entries in held.items()}
    if not run.apart:
        other = next(region for region in REGIONS if region != run.leader)
        ledgers[other] = ledgers[other][: draw(st.integers(len(old), len(shared)))]
    run.ledgers = ledgers
    places = {(region, e.key): e for region, entries in ledgers.items() for e in entries if e.seq > len(old)}
    for a in run.attempts:
        if a.answered == "accepted":
            place = places[(a.region if run.apart else run.leader), a.key]
            a.seq, a.hash = place.seq, place.hash
    run.attempts.sort(key=lambda a: a.ended)
    return run


@given(runs())
def test_a_right_history_is_no_violation(run: Run) -> None:
    assert run.verdict().violations == ()


# -- one violation in each --------------------------------------------------------------------------


def acknowledged(run: Run) -> list[Attempt]:
    return [a for a in run.attempts if a.answered == "accepted"]


def newest(run: Run) -> int:
    return max((a.token for a in run.attempts), default=1)


def accepted(key: str, run: Run, entry: Entry, **changes: object) -> Attempt:
    made = Attempt("c", key, run.leader, entry.token, 900.0, 901.0, "accepted", "", entry.seq, entry.hash)
    return replace(made, **changes)  # type: ignore[arg-type]


@given(runs(), st.data())
def test_an_acknowledged_write_that_is_gone_is_lost(run: Run, data: st.DataObject) -> None:
    mine = [a for a in acknowledged(run) if not run.apart or a.region == run.leader]
    assume(mine)
    gone = data.draw(st.sampled_from(mine))
    run.put(lambda held: chained([e for e in held if e.key != gone.key]))
    assert Kind.LOST in run.kinds()


@given(runs(), st.data())
def test_a_write_that_is_there_twice_is_found_wherever_its_second_place_is(run: Run, data: st.DataObject) -> None:
    fresh = [e for region, held in run.ledgers.items() for e in held[run.since[region] :]]
    assume(fresh)
    again = entry_of(data.draw(st.sampled_from(fresh)).key, newest(run))
    run.put(lambda held: chained([*held, again]), data.draw(st.sampled_from(REGIONS)) if run.apart else None)
    assert Kind.TWICE in run.kinds()


@given(runs(), st.booleans())
def test_a_write_that_was_refused_or_never_asked_for_is_found(run: Run, asked: bool) -> None:
    if asked:
        run.attempts.append(Attempt("c", "ghost", run.leader, 1, 5.0, 6.0, "refused", "stale_token"))
    run.put(lambda held: chained([*held, entry_of("ghost", newest(run) + 1)]))
    assert run.kinds() == {Kind.REFUSED_APPLIED if asked else Kind.UNASKED}


@given(runs())
def test_a_token_that_fell_is_found(run: Run) -> None:
    assume(newest(run) > 1)
    run.put(lambda held: chained([*held, entry_of("late", newest(run)), entry_of("later", newest(run) - 1)]))
    assert Kind.TOKEN_FELL in run.kinds()


@given(runs(), st.data())
def test_an_entry_that_is_missing_in_the_middle_or_was_changed_is_found(run: Run, data: st.DataObject) -> None:
    held = run.ledgers[run.leader]
    assume(len(held) > 1)
    place = data.draw(st.integers(0, len(held) - 2))
    if data.draw(st.booleans()):
        run.put(lambda held: [*held[:place], *held[place + 1 :]])
        assert run.kinds() >= {Kind.GAP, Kind.CHAIN_BROKEN}
    else:
        run.put(
            lambda held: [
                *held[:place],
                replace(held[place], recorded_at="2025-01-01T00:00:00.000000Z"),
                *held[place + 1 :],
            ]
        )
        assert Kind.CHAIN_BROKEN in run.kinds()


@given(runs(), st.sampled_from(["accepted", "unknown"]))
def test_a_write_sent_under_an_old_term_after_a_newer_ones_was_acknowledged_is_found(run: Run, heard: Answered) -> None:
    token = newest(run) + 2
    run.put(lambda held: chained([*held, entry_of("new", token), entry_of("old", token - 1)]))
    *_, new, old = run.ledgers[run.leader]
    run.attempts.append(accepted("new", run, new, began=800.0, ended=800.5))
    run.attempts.append(accepted("old", run, old, answered=heard))
    assert Kind.INTERLEAVED in run.kinds()


@given(runs(apart=True))
def test_a_term_that_writes_in_two_stores_is_found(run: Run) -> None:
    token = newest(run) + 1
    for region in REGIONS:
        run.attempts.append(Attempt("c", f"k-in-{region}", region, token, 900.0, 901.0, "unknown"))
        run.put(lambda held, region=region: chained([*held, entry_of(f"k-in-{region}", token)]), region)  # type: ignore[misc]
    assert run.kinds() == {Kind.TERM_SHARED}


@given(runs(), st.sampled_from(["accepted", "unknown"]))
def test_a_write_that_is_there_under_another_token_than_its_own_is_found(run: Run, heard: Answered) -> None:
    run.put(lambda held: chained([*held, entry_of("mine", newest(run) + 1)]))
    entry = run.ledgers[run.leader][-1]
    run.attempts.append(accepted("mine", run, entry, token=newest(run) + 2, answered=heard))
    assert run.kinds() == {Kind.STAMPED}


@given(runs())
def test_a_write_acknowledged_as_new_although_it_was_there_already_is_found(run: Run) -> None:
    run.put(lambda held: chained([*held, entry_of("mine", newest(run) + 1)]))
    once = accepted("mine", run, run.ledgers[run.leader][-1])
    run.attempts += [once, replace(once, began=910.0, ended=911.0)]
    assert run.kinds() == {Kind.NO_EFFECT}
    run.attempts[-1].replayed = True
    assert run.kinds() == set()
