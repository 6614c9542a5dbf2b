"""The page of the console's game day."""

from __future__ import annotations

import pytest

from fencegate.console.forms import PATH, REPORT
from fencegate.console.rehearsal import Rehearsal
from fencegate.console.rehearsal_page import rehearsal_page


def played(code: int | None = None) -> Rehearsal:
    told = Rehearsal("canary", 100.0, 600.0)
    told.lines.append("eu leads <b>canary</b>")
    if code is not None:
        told.ended, told.code = 142.0, code
    return told


def test_before_the_first_one_it_says_so() -> None:
    assert "None was started here" in rehearsal_page(None, 0.0)


def test_while_it_goes_on_the_page_asks_again_and_tells_how_to_break_it_off() -> None:
    html = rehearsal_page(played(), 134.0)
    assert "… under way" in html
    assert "for 34 s of at most 600 s" in html
    assert 'http-equiv="refresh"' in html
    assert f'href="{PATH}?role=canary"' in html
    assert "eu leads &lt;b&gt;canary&lt;/b&gt;" in html
    assert REPORT not in html


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "✓ passed"), (1, "✗ failed"), (143, "– broken off"), (78, "✗ could not begin"), (-9, "✗ failed")],
)
def test_its_end_is_told_by_a_sign_and_in_words_and_the_page_stands_still(code: int, words: str) -> None:
    html = rehearsal_page(played(code), 999.0)
    assert words in html
    assert "after 42 s" in html
    assert 'http-equiv="refresh"' not in html


def test_a_report_is_linked_where_there_is_one() -> None:
    told = played(0)
    told.report = "<html>"
    assert f'href="{REPORT}"' in rehearsal_page(told, 999.0)
