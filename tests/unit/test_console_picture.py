"""The picture of a role out of what each node says: one leader, none, two, or not known; and where the chain breaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.console.picture import Health, Link, Seen, picture_of, roles_of

Json = dict[str, Any]


def node(name: str, region: str, **role: Any) -> Seen:
    """One node's word; a leader's unless told otherwise."""
    fence = {"open": True, "valid_for_s": 11.8, "max_token_seen": 42, "draining": False} | role.pop("fence", {})
    word = {
        "role": "ledger",
        "fence": fence,
        "leader": {"region": "eu", "url": "https://eu.example", "token": 42},
        "leadership_known": True,
        "candidacy": "leading",
        "rejections": {},
        "observed": False,
        "memory": {"leading": [[60.0, 1]], "renewals": {"last_age": 1.2, "last": 0.01}, "checks": {"last": None}},
    } | role
    document = {"node": name, "region": region, "store": {"up": True, "reason": None}, "roles": [word], "events": []}
    return Seen(name, 0.5, document)


def standing(name: str = "gw-dr", region: str = "dr", **role: Any) -> Seen:
    quiet = {"leading": [], "renewals": {"last": None}, "checks": {"last": None}}
    closed = {"open": False, "valid_for_s": 0.0, "max_token_seen": 41}
    return node(name, region, **({"candidacy": "campaigning", "fence": closed, "memory": quiet} | role))


def unseen(place: str = "http://gw-dr:8081") -> Seen:
    return Seen(place, 0.0, None, "no answer within 2 s")


def links(picture: Any) -> list[Link]:
    return [box.link for box in picture.chain]


def test_one_leader_is_told_with_token_and_lease() -> None:
    picture = picture_of("ledger", [standing(), node("gw-eu", "eu")])
    assert picture.health is Health.ONE
    assert picture.verdict == "ledger: led by gw-eu in eu, token 42, lease 11.8 s left"
    assert links(picture) == [Link.HOLDS] * 5
    assert picture.region == "eu"
    assert picture.line == ((60.0, 1),)


def test_nobody_is_told_with_how_long_and_the_chain_breaks_at_its_first_link() -> None:
    lost = {"leading": [[60.0, 1], [7.2, 0]], "renewals": {}, "checks": {}}
    gone = standing("gw-eu", "eu", leader=None, memory=lost)
    picture = picture_of("ledger", [gone, standing(leader=None)])
    assert picture.health is Health.NOBODY
    assert picture.verdict == "NO LEADER of ledger for 7 s"
    assert links(picture) == [Link.FAILS, *[Link.MOOT] * 4]


def test_two_that_lead_are_both_named() -> None:
    picture = picture_of("ledger", [node("gw-eu", "eu"), node("gw-dr", "dr", leader=None)])
    assert picture.health is Health.TWO
    assert picture.verdict == "TWO LEADERS of ledger: gw-eu in eu (token 42) and gw-dr in dr (token 42)"
    assert links(picture)[0] is Link.FAILS


def test_a_node_that_cannot_be_seen_is_said_and_may_lead() -> None:
    picture = picture_of("ledger", [node("gw-eu", "eu"), unseen()])
    assert picture.verdict.endswith("; http://gw-dr:8081 cannot be seen")
    alone = picture_of("ledger", [standing(leader=None), unseen()])
    assert alone.health is Health.BLIND
    assert alone.verdict == "ledger: whether anybody leads is not known; http://gw-dr:8081 cannot be seen"
    assert alone.believers[1].problem == "no answer within 2 s"


def test_without_its_peers_the_elections_word_is_shown_as_such() -> None:
    picture = picture_of("ledger", [standing(), unseen()])
    assert picture.health is Health.BLIND, "the one that leads has not said so"
    assert "led in eu, token 42, by the election's word" in picture.verdict
    assert links(picture)[:3] == [Link.HOLDS, Link.MOOT, Link.HOLDS]
    assert picture.chain[1].value == "not seen"
    followers = picture_of("ledger", [standing(candidacy=""), standing("gw-3", candidacy="")])
    assert followers.health is Health.ONE


def test_where_the_election_cannot_be_asked_nothing_is_claimed() -> None:
    picture = picture_of("ledger", [standing(leader=None, leadership_known=False)])
    assert picture.health is Health.BLIND


def test_a_leader_whose_store_does_not_answer_holds_no_lease() -> None:
    leader = node("gw-eu", "eu", fence={"open": False, "valid_for_s": 0.0})
    assert links(picture_of("ledger", [leader, standing()])) == [Link.HOLDS, Link.FAILS, *[Link.MOOT] * 3]


def test_two_stores_that_are_open_break_the_fourth_link() -> None:
    other = standing(fence={"open": True, "valid_for_s": 3.0, "max_token_seen": 41})
    assert links(picture_of("ledger", [node("gw-eu", "eu"), other]))[3] is Link.FAILS


def test_rejections_of_every_region_are_listed_the_most_frequent_first() -> None:
    seen = [node("gw-eu", "eu", rejections={"stale_token": 2}), standing(rejections={"not_leader": 9})]
    picture = picture_of("ledger", seen)
    assert picture.rejections == (("dr", "not_leader", 9), ("eu", "stale_token", 2))
    assert picture.chain[4].value == "11 refused"


TURNS = st.lists(st.tuples(st.floats(0, 900), st.integers(0, 1)), max_size=8)


@given(TURNS, TURNS)
def test_leader_count_is_the_sum_of_what_each_node_says_of_itself(first: list[Any], second: list[Any]) -> None:
    def of(turns: list[Any]) -> Json:
        return {"leading": [list(t) for t in sorted(turns, reverse=True)], "renewals": {}, "checks": {}}

    picture = picture_of("ledger", [node("a", "eu", memory=of(first)), node("b", "dr", memory=of(second))])
    ages = [age for age, _ in picture.line]
    assert ages == sorted(ages, reverse=True)
    assert len(picture.line) == len(first) + len(second)
    assert all(0 <= count <= 2 for _, count in picture.line)


@pytest.mark.parametrize("seen", [[], [unseen()]])
def test_roles_are_those_that_somebody_speaks_of(seen: list[Seen]) -> None:
    assert roles_of(seen) == []
    assert roles_of([*seen, standing()]) == ["ledger"]


def told(picture: Any) -> list[str]:
    return [notice.text for notice in picture.notices]


def test_what_only_observes_is_above_everything_and_breaks_the_last_link() -> None:
    picture = picture_of("ledger", [node("gw-eu", "eu", observed=True), standing()])
    assert told(picture) == ["OBSERVE MODE at gw-eu in eu: stale writes are counted there, and go through."]
    assert links(picture) == [*[Link.HOLDS] * 4, Link.FAILS]
    assert picture.chain[4].value == "let through"


def test_a_drain_is_told_and_is_no_alarm() -> None:
    picture = picture_of("ledger", [node("gw-eu", "eu", fence={"draining": True}), standing()])
    assert picture.notices[0].text.startswith("DRAINING at gw-eu in eu")
    assert not picture.notices[0].alarming
    assert picture.chain[3].remark == "draining: eu"
    assert picture.own.draining


def test_a_store_that_is_down_and_a_node_that_is_not_seen_are_told_without_seconds() -> None:
    down = node("gw-eu", "eu", fence={"open": False})
    assert down.document is not None
    down.document["store"] = {"up": False, "reason": "no connection"}
    picture = picture_of("ledger", [down, Seen("gw-dr in dr (http://x)", 0.0, None, "no answer; last seen 7 s ago")])
    assert told(picture) == [
        "The store of gw-eu in eu does not answer (no connection).",
        "gw-dr in dr (http://x) cannot be seen: whatever happens there is missing here.",
    ]
    assert picture.believers[1].problem == "no answer; last seen 7 s ago"


def test_of_several_stores_only_the_roles_own_is_told_of() -> None:
    for own, notices in (("north", []), ("south", ["The store of gw-eu in eu does not answer (gone)."])):
        one = node("gw-eu", "eu", store=own)
        assert one.document is not None
        one.document["store"] = {"up": False, "reason": "south: gone"}
        one.document["stores"] = {"north": {"up": True, "reason": None}, "south": {"up": False, "reason": "gone"}}
        assert told(picture_of("ledger", [one])) == notices


def test_what_is_read_out_has_no_seconds() -> None:
    seen = [node("gw-eu", "eu"), standing()]
    picture = picture_of("ledger", seen)
    assert picture.spoken == "ledger: led by gw-eu in eu, token 42"
    assert picture.left == 11.8


def test_a_lease_without_an_end_is_not_told_as_a_number() -> None:
    picture = picture_of("ledger", [node("gw-eu", "eu", fence={"valid_for_s": None}), standing()])
    assert picture.verdict == "ledger: led by gw-eu in eu, token 42"
    assert (picture.left, picture.chain[1].value) == (None, "without an end")


def test_the_node_that_shows_the_picture_knows_what_it_can_act_on() -> None:
    assert picture_of("ledger", [node("gw-eu", "eu"), standing()]).own.leads
    own = picture_of(
        "ledger", [standing(fence={"max_token_seen": 41, "sealed": 41, "open": False}), node("a", "eu")]
    ).own
    assert (own.leads, own.term, own.sealed) == (False, 41, True)
