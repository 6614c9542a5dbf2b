from fencegate.leadership.words import HOLDING, TRANSITIONS, Cue, State


def reachable(start: State) -> set[State]:
    found, edge = {start}, [start]
    while edge:
        for state in TRANSITIONS[edge.pop()].values():
            if state not in found:
                found.add(state)
                edge.append(state)
    return found


# Field case 69: hapostgres/pg_auto_failover#1025.
def test_every_state_but_stopped_has_a_path_back_to_leading() -> None:
    for state in State:
        assert (State.LEADING in reachable(state)) is (state is not State.STOPPED), state


def test_every_state_can_be_reached_and_every_cue_is_used() -> None:
    assert reachable(State.STARTING) == set(State)
    assert {cue for row in TRANSITIONS.values() for cue in row} == set(Cue)


def test_leading_is_entered_only_by_a_claim_or_by_taking_a_handoff_back() -> None:
    ways_in = {(state, cue) for state, row in TRANSITIONS.items() for cue, to in row.items() if to is State.LEADING}

    assert ways_in == {(State.CLAIMING, Cue.CLAIMED), (State.UNDOING, Cue.UNDONE)}


def test_a_handoff_can_be_taken_back_until_the_sealing_begins_and_never_after() -> None:
    undoable = {state for state, row in TRANSITIONS.items() if Cue.UNDO in row}

    assert undoable == {State.ANNOUNCING, State.YIELDING}
    assert State.UNDOING not in TRANSITIONS[State.SEALING].values()
    assert State.LEADING not in {*TRANSITIONS[State.SEALING].values(), *TRANSITIONS[State.RELEASING].values()}


def test_releasing_is_entered_only_by_a_known_seal() -> None:
    ways_in = {(state, cue) for state, row in TRANSITIONS.items() for cue, to in row.items() if to is State.RELEASING}

    assert ways_in == {(State.SEALING, Cue.SEAL_KNOWN)}


def test_every_holding_state_can_be_left_without_an_answer() -> None:
    for state in HOLDING:
        assert {Cue.LEFT, Cue.ENDED} & set(TRANSITIONS[state])


def test_stopped_is_for_good() -> None:
    assert TRANSITIONS[State.STOPPED] == {}
