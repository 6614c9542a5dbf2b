"""How many connections there may be, in all and of each peer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.guests import Guests, peer_of
from fencegate.gateway.limits import Limits


@dataclass(eq=False)
class Guest:
    peer: str
    busy: bool = False


@pytest.mark.parametrize(
    ("address", "who"),
    [
        *(
            ("10.0.0.1", "10.0.0.1"),
            ("", ""),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::1", "::"),
            ("no:address", "no:address"),
        ),
        *(("2001:db8::1", "2001:db8::"), ("2001:db8:0:0:ffff::9", "2001:db8::"), ("2001:db8:0:1::1", "2001:db8:0:1::")),
    ],
)
def test_a_peer_is_an_address_or_a_network_of_64_bits(address: str, who: str) -> None:
    assert peer_of(address) == who


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "2001:db8::1", "2001:db8::2"])), max_size=60),
    st.integers(1, 8),
    st.integers(0, 3),
)
def test_there_are_never_more_than_fit_and_whoever_leaves_makes_room(
    steps: list[tuple[bool, str]], most: int, each: int
) -> None:
    guests: Guests[Guest] = Guests()
    limits = Limits(connections=most, connections_per_peer=each)
    there: list[Guest] = []
    for comes, peer in steps:
        if comes:
            guest, counts = Guest(peer), Counter(peer_of(one.peer) for one in there)
            fits = len(there) < most and (not each or counts[peer_of(peer)] < each)
            assert guests.admit(guest, limits) == fits
            there += [guest] if fits else []
            if not fits:
                guests.left(guest)  # as its connection tells, admitted or not
        elif there:
            guests.left(there.pop(0))
        assert sorted(map(id, guests)) == sorted(map(id, there))
        assert len(guests) == len(there)
