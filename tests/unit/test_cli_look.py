from __future__ import annotations

import io

import pytest

from fencegate.cli.look import bar, console, counted, duration, minutes, tally


def test_a_file_gets_no_control_characters():
    stream = io.StringIO()
    made = console(stream)
    made.print("plain", style="bad")
    assert not made.is_terminal
    assert stream.getvalue() == "plain\n"


@pytest.mark.parametrize(("seconds", "text"), [(0, "00:00"), (14.9, "00:14"), (61, "01:01"), (-1, "00:00")])
def test_a_time_is_minutes_and_seconds(seconds, text):
    assert minutes(seconds) == text


def test_words_for_counts_and_durations():
    assert (counted(1, "write"), counted(0, "write")) == ("1 write", "0 writes")
    assert (duration(0.94), duration(float("inf"))) == ("0.9 s", "never")
    assert tally({"b": 2, "a": 2, "c": 9, "none_of_it": 0}) == "c 9, a 2, b 2"
    assert tally({}) == "none"


@pytest.mark.parametrize(("left", "full"), [(8, 24), (4, 12), (0, 0)])
def test_the_bar_is_full_at_first_and_empty_at_zero(left, full):
    text = bar(left, 8, 24).plain
    assert (text.count("█"), len(text)) == (full, 24)


def test_the_bar_shows_the_last_one_left():
    assert bar(1, 1000, 24).plain.count("█") == 1
