"""The report: its document, its page and its JUnit file, for any texts and figures that a run can bring."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencegate.gameday import report_pictures, scenario_file
from fencegate.gameday.history import Attempt
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.report import document
from fencegate.gameday.report_html import page
from fencegate.gameday.report_junit import junit
from fencegate.gameday.scene import Happening
from fencegate.gameday.tail import Tail
from fencegate.gameday.verify import Kind, Verdict, Violation
from fencegate.gameday.watch import Change

VOID = {"meta", "br", "link", "rect", "line", "path"}
NEVER = math.inf


class Strict(HTMLParser):
    """Fails where an element is not closed in order, and keeps what an attacker would want to see."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> out of order"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> Strict:
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def attempt(
    at: float, answered: Any = "accepted", reason: str = "", region: str = "primary", token: int = 2
) -> Attempt:
    return Attempt("dns-1", "k", region, token, at - 0.1, at, answered, reason, 1, "ab")


def made(**changes: Any) -> Report:
    report = Report(
        scenario=scenario_file.load("drill-26"),
        kind="embedded",
        role="ledger",
        called={"primary": "primary", "dr": "dr"},
        fenced=True,
        seed=7,
        lease=5.0,
        stale_for=1200.0,
        speed=60.0,
        verdict=Verdict({"primary": 3, "dr": 3}, {"primary": 0, "dr": 0}, (), ()),
        accepted={"primary": 2, "dr": 1},
        stale_clients=8,
        stale_accepted=0,
        tail=Tail(125.0, 140.0, True, Counter({"not_leader": 4, "stale_token": 1}), 139.0),
        turns=(Turn("failover", "primary", "dr", 110.0, 4.9, 5.5, 0.6, 6.0),),
        terms=(2, 9, 14),
        leader="primary",
        most_leaders=1,
        unfinished=0,
        elapsed=50.0,
        started=100.0,
        began=104.0,
        ended=145.0,
        changes=(
            Change(103.0, "primary", True, 2),
            Change(114.9, "primary", False, 2),
            Change(115.5, "dr", True, 9),
        ),
        attempts=(
            attempt(105.2),
            attempt(105.9),
            attempt(126.0, "refused", "not_leader", "dr", 9),
            attempt(126.5, "refused", "unreachable"),
            attempt(127.0, "accepted", "", "dr", 9),
        ),
        timeline=(Happening(0.0, "begin"), Happening(10.0, "killed", "act")),
    )
    return replace(report, **changes)


def test_the_document_holds_the_verdict_its_checks_and_the_series_by_second() -> None:
    found = json.loads(json.dumps(document(made(), replay="again")))
    assert (found["verdict"], found["as_expected"], found["seed"], found["replay"]) == ("pass", True, 7, "again")
    assert all(check["ok"] for check in found["checks"])
    assert found["series"]["leader_count"] == [[4.0, 1], [14.9, 0], [15.5, 1]]
    assert found["series"]["accepted"] == [[5, "primary", 2, 2], [27, "dr", 9, 1]]
    assert found["series"]["refused"] == [[26, {"not_leader": 1}]], "what never reached a gateway was not refused"
    assert found["tail"]["last_s"] == 39.0
    assert [(term["token"], term["region"]) for term in found["terms"]] == [(2, "primary"), (9, "dr")]


def test_the_documentation_names_every_key_of_the_document() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gameday.md").read_text("utf-8")
    described = text[text.index("## The report") :]

    def keys(value: object) -> set[str]:
        if isinstance(value, list):
            return {key for one in value for key in keys(one)}
        return set(value) | keys(list(value.values())) if isinstance(value, dict) else set()

    broken = made(verdict=replace(made().verdict, violations=(Violation(Kind.LOST, 1, ("one",)),)))
    found = document(broken)
    given = {"primary", "dr", *found["tail"]["refused"], *found["scenario"], *found["pace"], "fencegate"}
    assert {key for key in keys(found) - given if key not in described} == set()


def test_what_never_happened_is_null_and_fails() -> None:
    never = replace(made().turns[0], opened=NEVER, leaderless=NEVER, pause=NEVER)
    found = document(made(turns=(never,)))
    assert (found["verdict"], found["turns"][0]["open_s"]) == ("fail", None)
    assert "never" in page(found)


def test_the_page_needs_nothing_from_outside_and_no_script() -> None:
    html = page(document(made()))
    found = parsed(html)
    assert found.tags["script"] == found.tags["link"] == found.tags["img"] == 0
    assert not {name for name in found.attributes if name.startswith("on")} | ({"src", "href"} & found.attributes)
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src &#x27;none&#x27;" in html
    assert found.tags["svg"] == 4
    assert "prefers-color-scheme:dark" in html
    assert "@media print" in html


def test_the_page_says_the_verdict_in_words_and_not_by_colour_alone() -> None:
    passed = "".join(parsed(page(document(made()))).text)
    assert "✓ PASSED" in passed
    broken = made(verdict=replace(made().verdict, violations=(Violation(Kind.LOST, 4, ("one", "two")),)))
    failed = "".join(parsed(page(document(broken))).text)
    assert "✗ FAILED: 4 found: one; two" in failed
    assert "acknowledged write lost: 4" in failed


def test_speed_is_said_to_leave_the_leases_alone() -> None:
    text = "".join(parsed(page(document(made()))).text)
    assert "Stale DNS of 1200 s was played 60 times as fast; the lease of 5 s was not." in text


NASTY = st.text(max_size=30) | st.sampled_from(
    [
        "<script>alert(1)</script>",
        "</title></svg></style>",
        '" onload="x',
        "]]>",
        "&amp;",
        "\x00\x1b[31m",
        "'/><b>",
        "\ud800",
    ]
)
TIMES = st.floats(0, 60) | st.just(NEVER)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    names = draw(st.lists(NASTY, min_size=2, max_size=2, unique=True))
    base = made()
    scenario = replace(base.scenario, title=draw(NASTY), about=draw(NASTY), name=draw(NASTY))
    turns = tuple(
        Turn(draw(NASTY), names[0], names[1], 100 + draw(st.floats(0, 50)), *(draw(TIMES) for _ in range(4)))
        for _ in range(draw(st.integers(0, 3)))
    )
    changes = tuple(
        Change(100 + at, draw(st.sampled_from(names)), draw(st.booleans()), draw(st.integers(1, 2**63 - 1)))
        for at in sorted(draw(st.lists(st.floats(0, 50), max_size=5)))
    )
    return replace(
        base,
        scenario=scenario,
        role=draw(NASTY),
        called={"primary": names[0], "dr": names[1]},
        leader=names[0],
        verdict=Verdict(dict.fromkeys(names, 1), {}, (), (Violation(Kind.TWICE, 1, (draw(NASTY), draw(NASTY))),)),
        accepted=dict.fromkeys(names, 1),
        tail=Tail(*(100 + draw(TIMES) for _ in range(2)), True, Counter({draw(NASTY): 2}), 120.0, 1, (draw(NASTY),)),
        turns=turns,
        changes=changes,
        attempts=tuple(attempt(100 + draw(st.floats(0, 50)), region=names[0], token=3) for _ in range(3)),
        timeline=(Happening(1.0, draw(NASTY)),),
        elapsed=draw(st.floats(0, 5000)),
        failed=draw(NASTY),
    )


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(reports(), NASTY)
def test_whatever_the_texts_the_page_is_well_formed_and_shows_them_as_text(report: Report, replay: str) -> None:
    found = document(report, replay=replay)
    plain = parsed(page(document(made())))
    nasty = parsed(page(found))
    assert set(nasty.tags) <= set(plain.tags) | {"ul", "li", "code"}
    assert nasty.attributes <= plain.attributes
    for picture in (report_pictures.rejections, report_pictures.accepted, report_pictures.leader_count):
        svg = picture(found).partition("<ul")[0]
        if not set(svg) & set(map(chr, (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF))) and svg.isprintable():
            ElementTree.fromstring(svg)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(reports(), NASTY)
def test_whatever_the_texts_the_junit_file_is_xml_with_a_case_for_each_check(report: Report, replay: str) -> None:
    found = document(report, replay=replay)
    root = ElementTree.fromstring(junit(found).encode("utf-8", "surrogatepass"))
    cases = root.findall("./testsuite/testcase")
    assert len(cases) == len(found["checks"]) == int(root.attrib["tests"])
    assert len(root.findall(".//failure")) == sum(not check["ok"] for check in found["checks"])
