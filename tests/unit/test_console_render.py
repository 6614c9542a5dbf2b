"""HTML out of pictures: everything from outside is text, and the page reads without script, colour or sight."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from fencegate.console.picture import Believer, Box, Health, Link, Picture
from fencegate.console.render import page, sections_of


def picture(text: str = "ledger", **more: object) -> Picture:
    found = {
        "role": text,
        "health": Health.ONE,
        "verdict": text,
        "age": 0.4,
        "chain": tuple(Box(text, text, text, link) for link in Link),
        "line": ((1000.0, 1), (60.0, 0), (30.0, 1)),
        "rejections": ((text, text, 3),),
        "believers": (
            Believer(text, text, "eu", "leading", "open", 42, 0.1, ""),
            Believer(text, text, text, text, text, None, 0.1, text),
        ),
        "renewals": {"last": 0.01, "p50": 0.01, "p99": 0.02},
        "checks": {"last": None},
        "region": "eu",
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
    event = {"age": 1.0, "alarming": True, "node": text, "text": text}
    names = ("role", "client", "agent", "refused", "reason", "token", "node")
    sections = sections_of([picture(text)], text, [event], [{**dict.fromkeys(names, text), "last_age_s": 2.0}])
    return page(sections, list(sections), text)


HOSTILE = ["<script>alert(1)</script>", '" onload="x', "'><img src=x onerror=y>", "</title><b>", "&lt;", "\u202e"]


@given(st.text(min_size=1) | st.sampled_from(HOSTILE))
def test_no_text_from_outside_becomes_an_element_or_an_attribute(text: str) -> None:
    plain, hostile = read(whole("x")), read(whole(text))
    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]


def test_a_hostile_holder_name_is_read_as_it_is() -> None:
    assert "<script>alert(1)</script>" in read(whole(HOSTILE[0])).text


def test_colour_is_never_alone() -> None:
    html = whole("ledger")
    assert "✓ one leader" in html
    for mark in ("✓ holds", "✗ fails here", "– says nothing now"):
        assert mark in html


def test_the_line_of_leader_count_says_in_words_what_it_shows() -> None:
    sections = sections_of([picture()], "gw", [])
    assert 'aria-label="leader_count, the last 15 minutes: now 1, 2 changes."' in sections["line-0"]
    assert 'points="20,48 841,48 841,80 871,80 871,48 900,48"' in sections["line-0"]
    nothing = sections_of([picture(line=())], "gw", [])["line-0"]
    assert "No node has gained or lost this role" in nothing


def test_a_handoff_is_offered_where_this_node_leads_and_another_region_is_seen() -> None:
    assert 'action="/-/roles/ledger/handoff"' in sections_of([picture()], "gw", [])["actions-0"]
    here = Believer("a", "a", "eu", "leading", "open", 1, 0.0, "")
    alone = sections_of([picture(believers=(here,))], "gw", [])["actions-0"]
    elsewhere = sections_of([picture(region="dr")], "gw", [])["actions-0"]
    nobody = sections_of([picture(region="")], "gw", [])["actions-0"]
    assert "<form" not in alone + elsewhere + nobody
    assert "Nobody leads" in nobody


def test_the_page_needs_no_script_and_loads_nothing_from_elsewhere() -> None:
    reader = read(whole("ledger"))
    assert reader.tags.count("script") == 1
    links = [value or "" for name, value in reader.attributes if name in ("src", "href")]
    assert all(link.startswith("/-/console/") or link == "data:," for link in links)
    assert ("http-equiv", "refresh") in reader.attributes
    assert ("lang", "en") in reader.attributes
