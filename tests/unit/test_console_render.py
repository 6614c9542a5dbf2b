"""HTML out of pictures: everything from outside is text, and the page reads without script, colour or sight."""

from __future__ import annotations

from html.parser import HTMLParser
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fencegate.console import forms
from fencegate.console.picture import Believer, Box, Health, Link, Notice, Own, Picture
from fencegate.console.render import FEW, MOST_ROWS, Wanted, page, shown_of


def picture(text: str = "ledger", **more: object) -> Picture:
    found = {
        "role": text,
        "health": Health.ONE,
        "verdict": text,
        "spoken": text,
        "age": 0.4,
        "chain": tuple(Box(text, text, text, link) for link in Link),
        "line": ((1000.0, 1), (60.0, 0), (30.0, 1)),
        "rejections": ((text, text, 3),),
        "believers": (
            Believer(text, text, "eu", "leading", "open", 42, 0.1, "", text),
            Believer(text, text, f"not eu {text}", text, text, None, 0.1, text),
        ),
        "renewals": {"last": 0.01, "p50": 0.01, "p99": 0.02, "series": [[30.0, 0.02], [0.0, 11.0]]},
        "checks": {"last": None, "series": []},
        "region": "eu",
        "token": text,
        "notices": (Notice(text), Notice(text, alarming=False)),
        "timings": {"retry_period": 2.0, "renew_deadline": 10.0, "lease_duration": 15.0},
        "own": Own(leads=True, term=42, sealed=False, draining=True),
        "rehearsal": True,
    } | more
    return Picture(**found)  # type: ignore[arg-type]


class Reader(HTMLParser):
    """Which elements and attributes there are, and what a reader reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


def whole(text: str) -> str:
    """Every page there is, with ``text`` wherever a client or an election store has the word."""
    event = {"age": 1.0, "alarming": True, "node": text, "text": text}
    names = ("role", "client", "caller", "agent", "forwarded_for", "reason", "token", "node")
    sender = {**dict.fromkeys(names, text), "refused": 3, "let_through": 1, "last_age_s": 2.0}
    wanted = Wanted(role=text, filter=text)
    shown = shown_of([picture(text), picture(f"{text} too")], text, text, [event], [sender], wanted)
    found = {"outcome": text, "detail": text, "token": text, "left_s": text}
    acting = forms.page(picture(text), text, text) + forms.result_page(text, text, 200, found)
    return page(shown, wanted) + acting


HOSTILE = ["<script>alert(1)</script>", '" onload="x', "'><img src=x onerror=y>", "</title><b>", "&lt;", "\u202e"]


@given(st.text(min_size=1) | st.sampled_from(HOSTILE))
def test_no_text_from_outside_becomes_an_element_or_an_attribute(text: str) -> None:
    plain, hostile = read(whole("x")), read(whole(text))
    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]


def test_a_hostile_holder_name_is_read_as_it_is() -> None:
    assert "<script>alert(1)</script>" in read(whole(HOSTILE[0])).text


def test_a_sender_of_an_older_version_has_no_caller_and_is_shown() -> None:
    known = {"role": "ledger", "client": "10.0.0.7", "agent": "a", "forwarded_for": "", "reason": "stale_token"}
    sender = {**known, "token": 41, "node": "gw-1", "refused": 3, "let_through": 0, "last_age_s": 2.0}
    told = read(page(shown_of([picture("ledger")], "", "", [], [sender], Wanted()), Wanted())).text
    assert "10.0.0.7" in told
    assert "caller" not in told
    sender["caller"] = "CN=billing,O=Example"
    told = read(page(shown_of([picture("ledger")], "", "", [], [sender], Wanted()), Wanted())).text
    assert "caller" in told
    assert "CN=billing,O=Example" in told


def test_colour_is_never_alone() -> None:
    html = whole("ledger")
    assert "✓ one leader" in html
    assert "⚠ ledger" in html
    for mark in ("✓ holds", "✗ fails here", "– says nothing now"):
        assert mark in html


def test_without_a_role_in_trouble_many_are_one_line_each_and_can_be_filtered() -> None:
    many = [picture(f"shard/{n}") for n in range(300)]
    shown = shown_of(many, "gw", "", [])
    assert shown.title == "fencegate: 300 of 300 roles have one leader"
    assert not [name for name in shown.parts if name.startswith("verdict")]
    assert shown.parts["roles"].count("<tr>") == MOST_ROWS + 1
    assert f"And {300 - MOST_ROWS} more: filter for them." in shown.parts["roles"]
    few = shown_of(many, "gw", "", [], wanted=Wanted(filter="shard/29")).parts["roles"]
    assert few.count("<tr>") == 1 + 11
    none = shown_of(many, "gw", "", [], wanted=Wanted(filter="<b>")).parts["roles"]
    assert "No role has &#x27;&lt;b&gt;&#x27; in its name." in none


def test_of_many_roles_those_in_trouble_come_first_and_in_full() -> None:
    many = [picture(f"shard/{n}") for n in range(9)]
    many += [picture("blind", health=Health.BLIND), picture("twice", health=Health.TWO)]
    shown = shown_of(many, "gw", "", [])
    rows = shown.parts["roles"]
    assert rows.index("twice") < rows.index("blind") < rows.index("shard/0")
    assert "twice" in shown.parts["verdict-0"]
    assert "blind" in shown.parts["verdict-1"]
    assert "verdict-2" not in shown.parts
    assert shown.spoken.startswith("9 of 11 roles have one leader. ")
    chosen = shown_of(many, "gw", "", [], wanted=Wanted(role="shard/3"))
    assert "shard/3" in chosen.parts["verdict-0"]
    assert 'aria-current="true">shard/3' in chosen.parts["roles"]
    assert len([name for name in shown_of(many[:FEW], "gw", "", []).parts if name.startswith("verdict")]) == FEW


def test_what_is_read_out_does_not_change_with_every_second() -> None:
    first, second = (
        shown_of([picture(verdict=f"led, lease {left} s left", age=left)], "gw", f"12:00:0{left}", [])
        for left in (7, 8)
    )
    assert first.spoken == second.spoken
    assert first.parts["verdict-0"] != second.parts["verdict-0"]


def test_headings_are_in_order_and_every_table_has_a_name() -> None:
    shown = shown_of([picture()], "gw", "", [{"age": 1.0, "alarming": False, "node": "n", "text": "t"}])
    levels = [
        int(tag[1]) for tag in read(page(shown, Wanted())).tags if len(tag) == 2 and tag[0] == "h" and tag != "hr"
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    assert levels.count(1) == 1


def test_a_page_can_be_held_still() -> None:
    shown = shown_of([picture()], "gw", "", [])
    assert 'http-equiv="refresh"' in page(shown, Wanted())
    assert "Hold it still" in page(shown, Wanted())
    still = page(shown, Wanted(role="a b", still=True))
    assert 'http-equiv="refresh"' not in still
    assert 'href="?role=a%20b"' in still


# -- the page of actions ----------------------------------------------------------------------------


def test_where_this_node_leads_everything_is_offered_with_its_command() -> None:
    two = (
        Believer("a", "a", "eu", "leading", "open", 42, 0.0, ""),
        Believer("b", "b", "dr", "campaigning", "closed", 41, 0.0, ""),
    )
    html = forms.page(picture(believers=two), "12:00:00 UTC", "http://here")
    for command in (
        "fencegate handoff ledger --to dr --limit 10",
        "fencegate drain ledger --limit 30",
        "fencegate drain ledger --resume",
        "fencegate seal ledger --token 42",
        "fencegate gameday --target http://here --role ledger",
    ):
        assert f"<code>{command}" in html
    assert "A seal is final." in html
    reader = read(html)
    assert reader.tags.count("form") == 4
    assert reader.attributes.count(("name", "typed")) == reader.attributes.count(("name", "secret")) == 4
    assert "script" not in reader.tags, "nothing moves under whoever types"
    assert ("http-equiv", "refresh") not in reader.attributes


def test_elsewhere_only_a_seal_of_the_own_store_is_offered_and_the_way_to_the_leader() -> None:
    seen = (
        Believer("b", "b", "dr", "campaigning", "closed", 41, 0.0, ""),
        Believer("x", "gw-eu", "eu", "leading", "open", 42, 0.0, "", "http://gw-eu:8081"),
    )
    own = Own(leads=False, term=41, sealed=False, draining=False)
    html = forms.page(picture(believers=seen, own=own, rehearsal=False), "", "")
    assert read(html).tags.count("form") == 1
    assert 'href="http://gw-eu:8081/-/console/act?role=ledger">gw-eu in eu' in html
    sealed = Own(leads=False, term=41, sealed=True, draining=False)
    assert "form" not in read(forms.page(picture(own=sealed, region="", rehearsal=False), "", "")).tags


def test_a_rehearsal_is_offered_where_every_region_is_seen_and_can_be_broken_off() -> None:
    seen = (
        Believer("a", "a", "eu", "leading", "open", 42, 0.0, ""),
        Believer("b", "b", "dr", "campaigning", "closed", 41, 0.0, "", "http://gw-dr:8081"),
    )
    html = forms.page(picture(believers=seen), "", "http://here")
    assert '<form method="post" action="/-/console/act" aria-labelledby="gameday">' in html
    assert "<code>fencegate gameday --target http://here --target http://gw-dr:8081 --role ledger" in html
    under_way = forms.page(picture(believers=seen), "", "http://here", rehearsing=True)
    assert 'aria-labelledby="break-off"' in under_way
    assert 'aria-labelledby="gameday"' not in under_way
    alone = forms.page(picture(believers=seen[:1]), "", "http://here")
    assert 'aria-labelledby="gameday"' not in alone
    assert "[console] peers" in alone


def test_a_role_with_an_odd_name_is_quoted_for_the_shell() -> None:
    assert "fencegate drain &#x27;a; rm -rf /&#x27; --limit 30" in forms.page(picture("a; rm -rf /"), "", "")


def test_what_became_of_an_action_is_told_by_a_sign_and_in_words() -> None:
    done = forms.result_page("ledger", "seal", 200, {"outcome": "sealed", "detail": "So it is.", "token": 42})
    assert "✓ sealed" in done
    assert "token: 42" in done
    assert "✗ refused" in forms.result_page("ledger", "seal", 403, {"detail": "no"})
    assert "… draining" in forms.result_page("ledger", "drain", 202, {"outcome": "draining"})


def test_the_page_needs_no_script_and_loads_nothing_from_elsewhere() -> None:
    alone = Believer("a", "a", "eu", "leading", "open", 42, 0.0, "")
    reader = read(page(shown_of([picture(believers=(alone,))], "gw", "", []), Wanted()))
    assert reader.tags.count("script") == 1
    links = [value or "" for name, value in reader.attributes if name in ("src", "href")]
    assert all(link.startswith(("/-/console", "?", "#now")) or link == "data:," for link in links)
    assert ("http-equiv", "refresh") in reader.attributes
    assert ("lang", "en") in reader.attributes
