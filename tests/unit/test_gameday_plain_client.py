"""What an answer says is the same whether it is read by itself or as one of very many."""

from __future__ import annotations

import pytest

from fencegate.gameday.plain_client import heard, said
from fencegate.gameday.plain_http import Answer, NoAnswer, NotSent
from fencegate.gameday.plain_line import Raw

ACCEPTED = (("X-Fencing-Outcome", "accepted"), ("X-Fencing-Region", "eu"), ("Content-Type", "application/json"))
REFUSED = (("X-Fencing-Outcome", "not_leader"), ("X-Fencing-Applied", "no"), ("X-Fencing-Retry", "rediscover"))
PROBLEM = ("Content-Type", "application/problem+json")
HEADERS = {
    "accepted": (201, ACCEPTED),
    "replayed": (201, (*ACCEPTED, ("X-Fencing-Replayed", "true"))),
    "accepted by an upstream": (200, (("X-Fencing-Outcome", "accepted"),)),
    "refused by an upstream": (409, ACCEPTED),
    "refused": (409, (*REFUSED, PROBLEM)),
    "refused without a promise": (409, REFUSED[:1]),
    "a code under another status": (503, REFUSED),
    "an outcome that came twice": (201, (*ACCEPTED, ACCEPTED[0])),
    "unknown": (502, (("X-Fencing-Outcome", "outcome_unknown"), PROBLEM)),
    "nothing of the gateway's": (500, ()),
}


def raw(status: int, headers: tuple[tuple[str, str], ...], number: int) -> Raw:
    body = b'{"seq":%d,"hash":"%d"}' % (number, number)
    more = (("Date", f"{number}"), ("Location", f"/{number}"), ("Content-Length", str(len(body))))
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {text}" for name, text in (*headers, *more))]
    return Raw("\r\n".join(lines).encode(), body)


@pytest.mark.parametrize("name", HEADERS)
def test_an_answer_means_the_same_by_itself_and_among_many(name: str) -> None:
    status, headers = HEADERS[name]
    for number in (1, 22):
        answer = raw(status, headers, number)
        alone = said(Answer(status, headers, answer.body))
        meaning, entry = heard(answer)
        assert (meaning.answered, meaning.reason, meaning.replayed, meaning.status) == (
            alone.answered, alone.reason, alone.replayed, alone.status,
        )  # fmt: skip
        if alone.answered == "accepted" and ("Content-Type", "application/json") in headers:
            assert entry == alone.entry == {"seq": number, "hash": str(number)}


def test_what_never_left_is_refused_and_what_was_not_answered_is_unknown() -> None:
    assert heard(NotSent("x"))[0].answered == "refused"
    assert heard(NoAnswer("x"))[0].answered == "unknown"


def test_a_body_that_is_not_what_its_head_announces_is_an_error() -> None:
    status, headers = HEADERS["accepted"]
    with pytest.raises(ValueError, match="unexpected end"):
        heard(raw(status, headers, 1)._replace(body=b"{"))
