"""The demo's words: what it shows, what it concludes, what it refuses. The drill itself: tests/system/test_demo.py."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fencegate.cli import demo_verdict
from fencegate.cli.demo import Wanted, demo
from fencegate.cli.demo_view import PlainLines, picture, status_line
from fencegate.cli.look import console as make_console
from fencegate.gameday import scenario_file
from fencegate.gameday.judge import Report, Turn
from fencegate.gameday.scene import Countdown, RegionScene, Scene
from fencegate.gameday.tail import Tail
from fencegate.gameday.verify import Fork, Kind, Verdict, Violation


def turn(name: str, old: str, new: str, leaderless: float, pause: float) -> Turn:
    return Turn(name, old, new, 10.0, 4.0, 5.0, leaderless, pause)


GOOD = Report(
    scenario=scenario_file.load("drill-26"),
    kind="embedded",
    role="ledger",
    called={"primary": "primary", "dr": "dr"},
    fenced=True,
    seed=1,
    lease=5.0,
    stale_for=1200.0,
    speed=60.0,
    verdict=Verdict({"primary": 900, "dr": 900}, {"primary": 0, "dr": 0}, (), ()),
    accepted={"primary": 600, "dr": 300},
    stale_clients=8,
    stale_accepted=0,
    tail=Tail(20.0, 40.0, True, Counter({"not_leader": 98}), 39.0),
    turns=(turn("failover", "primary", "dr", 0.84, 4.1), turn("failback", "dr", "primary", 0.1, 0.3)),
    terms=(2, 11, 30),
    leader="primary",
    most_leaders=1,
    unfinished=0,
    elapsed=58.0,
)
FORK = Fork(513, "primary", "dr", 101, 88)
DIVERGED = replace(
    GOOD,
    verdict=Verdict(
        {"primary": 613, "dr": 600},
        {"primary": 0},
        (FORK,),
        (
            Violation(Kind.DIVERGED, 1, ("from sequence 513 on, …",)),
            Violation(Kind.LOST, 88, ("one", "two", "three")),
        ),
    ),
    tail=replace(GOOD.tail, refused=Counter()),
    stale_accepted=88,
)


def shown(report: Report, *, fenced: bool) -> str:
    stream = io.StringIO()
    demo_verdict.show(report, make_console(stream), fenced=fenced)
    return stream.getvalue()


def row(text: str, what: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(what)).strip()[len(what) :].strip()


def test_a_good_verdict_says_passed_with_its_figures():
    text = shown(GOOD, fenced=True)
    assert "PASSED: one ledger, whole and the same in both regions." in text
    assert row(text, "entries in dr's ledger") == "900"
    assert row(text, "divergent entries") == "0"
    assert row(text, "acknowledged writes lost") == "0"
    assert row(text, "writes applied twice") == "0"
    assert row(text, "stale writes refused") == "98  (not_leader 98)"
    assert row(text, "without a leader at failover") == "0.8 s  (no write accepted for 4.1 s)"
    assert "\x1b" not in text


def test_without_the_fence_the_fork_is_explained():
    text = shown(DIVERGED, fenced=False)
    assert row(text, "divergent entries") == "189"
    assert row(text, "acknowledged writes lost") == "88"
    assert "DIVERGED: 88 stale writes landed in dr" in text
    assert "part at sequence 513: 101 entries that only primary has, 88 that only dr has" in text
    assert "This is what the fence is for" in text
    assert "and 85 more" in text


def test_a_divergence_behind_the_fence_is_a_failure_that_must_be_reported():
    text = shown(DIVERGED, fenced=True)
    assert "FAILED" in text
    assert "Please report it" in text
    assert "PASSED" not in text


def test_a_drill_that_was_only_too_slow_is_a_failure_and_no_divergence():
    text = shown(replace(GOOD, turns=(replace(GOOD.turns[0], closed=99.0), GOOD.turns[1])), fenced=True)
    assert "FAILED: it does not hold that failover: closed in time." in text
    assert "The ledgers and the answers do hold together" in text
    assert "This must never happen" not in text


def test_two_leaders_at_once_fail_the_drill_even_where_the_ledgers_agree():
    assert GOOD.ok
    assert not replace(GOOD, most_leaders=2).ok
    assert not DIVERGED.ok


def test_decisions_that_were_never_answered_are_shown():
    assert row(shown(replace(GOOD, unfinished=3), fenced=True), "decisions never answered") == "3"


def scene() -> Scene:
    dr = RegionScene("dr", "running", False, 7, 618, 316, Counter({"not_leader": 75, "no_leader": 6}))
    made = Scene(lambda: 0.0, {"primary": RegionScene("primary", "running", True, 21, 626, 301), "dr": dr}, True)
    made.stale_total, made.stale_left, made.stale_refused, made.refusals_per_second = 8, 5, 69, 12.0
    made.tell("primary leads under token 21", "good")
    return made


def drawn(scene: Scene, width: int = 100, height: int = 34) -> str:
    stream = io.StringIO()
    console = make_console(stream)
    console.width, console.height = width, height
    console.print(picture(scene, console))
    return stream.getvalue()


def test_the_picture_shows_who_leads_what_was_refused_and_the_tail():
    text = drawn(scene())
    assert "OPEN   leads under token 21" in text
    assert "CLOSED   its store refuses every write" in text
    assert "not_leader 75" in text
    assert "5 of 8   69 stale writes refused, now 12/s" in text
    assert "primary leads under token 21" in text


def test_the_picture_shows_a_killed_gateway_whose_store_is_still_open():
    killed = scene()
    killed.regions["primary"].process = "killed"
    assert "KILLED   its store is still open" in drawn(killed)


def test_without_the_fence_the_picture_says_so():
    naive = scene()
    naive.fenced, naive.wrongly, naive.fork = False, 88, "FORK at sequence 513"
    text = drawn(naive)
    assert "THE FENCE IS OFF" in text
    assert "but lets every write in" in text
    assert "88 stale writes ACCEPTED by dr" in text
    assert "FORK at sequence 513" in text


@pytest.mark.parametrize("height", [12, 24, 40])
def test_the_picture_keeps_its_height_while_the_timeline_grows(height):
    short, long = scene(), scene()
    for n in range(30):
        long.tell(f"event {n}")
    assert len(drawn(short, height=height).splitlines()) == len(drawn(long, height=height).splitlines())


def test_a_pipe_gets_each_event_once_and_the_state_now_and_then():
    stream, now = io.StringIO(), [0.0]
    told = scene()
    told.clock = lambda: now[0]
    lines = PlainLines(make_console(stream))
    for now[0] in (0.0, 1.0, 4.0, 5.0):
        lines.show(told)
    text = stream.getvalue()
    assert text.count("primary leads under token 21") == 1
    assert text.count("leader_count 1") == 1
    assert "\x1b" not in text
    assert "\r" not in text


def test_the_status_line_holds_every_figure():
    assert status_line(scene()) == (
        "leader_count 1 | primary open, token 21: 626 entries, 301 accepted, refused none | "
        "dr closed: 618 entries, 316 accepted, refused not_leader 75, no_leader 6 | "
        "stale records 5 of 8, 69 stale writes refused"
    )


@pytest.mark.parametrize(("clients", "stale"), [(20, 8), (2, 1), (3, 1), (200, 80)])
def test_two_in_five_clients_are_stale_and_never_none(clients, stale):
    assert Wanted(True, False, 60.0, clients).scenario.clients.stale_count == stale


@pytest.mark.parametrize("seconds", [30.0, 60.0, 600.0])
def test_the_drill_plays_for_the_time_that_it_was_given(seconds):
    wanted = Wanted(True, False, seconds, 20)
    played = sum(step.seconds for step in wanted.scenario.steps if step.do in ("play", "tail"))
    assert played + wanted.plan.tail == pytest.approx(seconds - 16)
    assert min(played, wanted.plan.tail) > 0


def test_a_step_that_did_not_come_true_fails_the_drill_and_is_said():
    failed = replace(GOOD, failed="step 4 (wait): waited 20 s for dr to lead")
    assert not failed.ok
    assert "waited 20 s for dr to lead" in shown(failed, fenced=True)


def test_the_picture_counts_down_and_shows_the_tail_second_by_second():
    waiting = scene()
    waiting.step, waiting.steps, waiting.countdown = 4, 12, Countdown("dr to lead", 12.0)
    waiting.tail = [8, 4, 0, 1, 0, 0]
    text = drawn(waiting)
    assert "step 4 of 12" in text
    assert "waiting for dr to lead: 12 s left at most" in text
    assert "█▄·▁··" in text.replace("▇", "█")


@pytest.mark.parametrize("arguments", [["--seconds", "3"], ["--clients", "1"], ["--seconds", "many"], ["--fast"]])
def test_what_cannot_be_played_is_refused_before_anything_starts(arguments):
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.output
