"""What a server echoes of our secrets is in no message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencegate.election.http_endpoints import Answer
from fencegate.election.masking import masked

SECRET = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=4, max_size=40)


@given(
    st.lists(st.one_of(st.text(max_size=20), st.integers(0, 2)), max_size=8), st.lists(SECRET, min_size=3, max_size=3)
)
def test_no_secret_is_left_wherever_it_was(pieces: list[str | int], secrets: list[str]) -> None:
    text = "".join(secrets[piece] if isinstance(piece, int) else piece for piece in pieces)
    found = masked(text, secrets)
    assert not any(secret in found for secret in secrets if "*" not in secret)


def test_nothing_else_is_changed_and_what_is_not_set_is_no_secret() -> None:
    assert masked("HTTP 403: rpc error", [None, "", "e"]) == "HTTP 403: rpc error"
    assert masked("a secret-and-more, secret", ["secret", "secret-and-more"]) == "a ***, ***"


def test_an_answer_is_quoted_without_what_it_was_asked_with() -> None:
    secret = "s" * 64
    answer = Answer(403, {}, b"x" * 280 + secret.encode() + b"\nmore", ("Bearer " + secret, "none"))
    assert answer.text == "x" * 280 + "***"
    assert answer.quoted(f"no: {secret}") == "no: ***"
