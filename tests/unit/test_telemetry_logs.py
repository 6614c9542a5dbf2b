"""Log lines: one per fact, unbreakable by a client, and a flood of refusals is sampled."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate import observations as seen
from fencegate.telemetry.logs import SAMPLE, JsonLines, Logs, TextLines, configure


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root() -> Iterator[None]:
    logger, ours = logging.getLogger(), logging.getLogger("fencegate")
    handlers, level, our_level = list(logger.handlers), logger.level, ours.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    ours.setLevel(our_level)


class Hearing:
    """A logger of its own whose lines are kept, and a clock moved by hand."""

    def __init__(self, formatter: logging.Formatter | None = None, level: int = logging.INFO) -> None:
        self.stream = io.StringIO()
        self.now = 100.0
        logger = logging.Logger("fencegate.test", level)
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(formatter or JsonLines())
        logger.addHandler(handler)
        self.logger = logger
        self.logs = Logs(["ledger", "ledger/{shard}"], logger=logger, clock=lambda: self.now)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def facts(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


def refused(role: str = "ledger", code: str = "stale_token", agent: str = "curl/8") -> seen.WriteRefused:
    return seen.WriteRefused(role, code, 41, 42, "192.0.2.1", agent)


# Field case 105: apache/bookkeeper#4326.
def test_a_refusal_is_one_line_with_its_facts_and_no_trace() -> None:
    hearing = Hearing()
    hearing.logs(refused())
    (fact,) = hearing.facts
    assert fact.pop("time")
    assert fact == {
        "level": "info",
        "event": "write_refused",
        "role": "ledger",
        "code": "stale_token",
        "presented_token": 41,
        "max_token_seen": 42,
        "client": "192.0.2.1",
        "agent": "curl/8",
    }


def test_text_lines_are_plain_words() -> None:
    hearing = Hearing(TextLines())
    hearing.logs(seen.LeadershipGained("ledger", 42))
    hearing.logs(seen.StoreWentDown("connection refused"))
    first, second = hearing.lines
    assert first.endswith("INFO    leadership_gained role=ledger token=42")
    assert second.endswith('ERROR   store_went_down detail="connection refused"')
    assert first[10] == "T"
    assert first[23] == "Z"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_a_client_can_neither_break_nor_fake_a_line(formatter: logging.Formatter) -> None:
    hearing = Hearing(formatter)
    hearing.logs(refused(agent='x" role=admin\r\n2026 INFO leadership_gained role=ledger \x1b[31m\u2028\x85'))
    assert len(hearing.lines) == 1
    assert "\x1b" not in hearing.lines[0]


@given(st.text())
def test_whatever_the_agent_a_fact_stays_one_line(agent: str) -> None:
    for formatter in (TextLines(), JsonLines()):
        hearing = Hearing(formatter)
        hearing.logs(refused(agent=agent))
        assert hearing.stream.getvalue().count("\n") == 1
        assert hearing.stream.getvalue().isascii()


def test_a_very_long_value_is_cut() -> None:
    hearing = Hearing()
    hearing.logs(refused(agent="a" * 100_000))
    assert len(hearing.lines[0]) < 1000


def test_what_happens_on_every_request_is_said_at_debug_only() -> None:
    quiet, loud = Hearing(), Hearing(level=logging.DEBUG)
    for hearing in (quiet, loud):
        hearing.logs(seen.WriteAccepted("ledger", 42, replayed=False, check_duration=0.01))
        hearing.logs(seen.LeaseRenewed("ledger", "etcd", 0.1, 1.0))
    assert quiet.lines == []
    assert [fact["event"] for fact in loud.facts] == ["write_accepted", "lease_renewed"]


def test_a_flood_of_refusals_is_sampled_and_the_rest_is_counted() -> None:
    hearing = Hearing()
    for _ in range(1000):
        hearing.logs(refused())
    assert len(hearing.lines) == SAMPLE
    hearing.now += 1.1
    hearing.logs(refused())
    assert hearing.facts[-1]["suppressed"] == 1000 - SAMPLE
    hearing.now += 1.1
    hearing.logs(refused())
    assert "suppressed" not in hearing.facts[-1]


def test_what_was_left_out_is_said_even_if_nothing_follows() -> None:
    hearing = Hearing()
    for _ in range(SAMPLE + 3):
        hearing.logs(refused())
    hearing.logs.flush()
    assert len(hearing.lines) == SAMPLE
    hearing.now += 1.1
    hearing.logs.flush()
    hearing.logs.flush()
    assert len(hearing.lines) == SAMPLE + 1
    assert hearing.facts[-1]["suppressed"] == 3


def test_each_role_and_code_is_sampled_for_itself() -> None:
    hearing = Hearing()
    for _ in range(SAMPLE + 1):
        hearing.logs(refused())
        hearing.logs(refused(code="token_required"))
        hearing.logs(refused(role="ledger/eu-1"))
    assert len(hearing.lines) == 3 * SAMPLE


def test_the_sampling_does_not_grow_with_what_clients_send() -> None:
    hearing = Hearing()
    for number in range(1000):
        hearing.logs(refused(role=f"nonsense-{number}"))
    assert len(hearing.lines) == SAMPLE


def test_the_same_leader_is_news_once() -> None:
    hearing = Hearing()
    for token in (7, 7, 8, 8):
        hearing.logs(seen.LeaderObserved("ledger", token, "eu", "gw-1"))
    assert [fact["token"] for fact in hearing.facts] == [7, 8]


def test_losing_leadership_in_order_is_no_warning() -> None:
    hearing = Hearing()
    hearing.logs(seen.LeadershipLost("ledger", 1, "shutdown"))
    hearing.logs(seen.LeadershipLost("ledger", 1, "lost"))
    hearing.logs(seen.TokenRegressed("ledger", 1, 9))
    hearing.logs(seen.StrangerLeads("ledger", 9, "staging", "gw-1"))
    assert [fact["level"] for fact in hearing.facts] == ["info", "warning", "error", "error"]


def test_an_exception_of_another_library_is_one_line_too() -> None:
    for formatter in (JsonLines(), TextLines()):
        hearing = Hearing(formatter)
        try:
            raise ValueError("odd\nthing")
        except ValueError:
            hearing.logger.exception("it broke\nhere")
        assert len(hearing.lines) == 1
        assert "ValueError" in hearing.lines[0]


@pytest.mark.usefixtures("root")
def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    configure("auto", "info", terminal)
    Logs(["ledger"])(seen.LeadershipGained("ledger", 42))
    configure("auto", "info", pipe)
    Logs(["ledger"])(seen.LeadershipGained("ledger", 42))
    assert terminal.getvalue().endswith("leadership_gained role=ledger token=42\n")
    assert terminal.getvalue().count("\n") == 1
    assert json.loads(pipe.getvalue())["event"] == "leadership_gained"


@pytest.mark.usefixtures("root")
def test_the_level_can_be_changed_while_running_and_other_libraries_stay_quiet() -> None:
    stream = io.StringIO()
    configure("text", "warning", stream)
    Logs([])(seen.LeadershipGained("ledger", 42))
    logging.getLogger("some.library").info("chatter")
    assert stream.getvalue() == ""
    configure("text", "debug", stream)
    Logs([])(seen.LeaseRenewed("ledger", "etcd", 0.1, 1.0))
    logging.getLogger("some.library").warning("trouble")
    first, second = stream.getvalue().splitlines()
    assert "lease_renewed" in first
    assert second.endswith("trouble logger=some.library")
