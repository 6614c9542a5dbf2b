"""Where another method hides in a read: queries and forms, as frameworks read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.gateway.method_override import carries_a_form, names_a_method


@pytest.mark.parametrize(
    "query",
    [
        *("_method=DELETE", "a=1&_method=DELETE", "a=1;_method=DELETE", "_METHOD=delete", "_method", "_method[]=PUT"),
        *("%5fmethod=PUT", "%5Fm%65thod=PUT", "_%6d%65%74%68%6f%64=PUT", "+_method=PUT", ".method=PUT", "[method=PUT"),
        *("_HttpMethod=PATCH", "X-HTTP-Method-Override=PUT", "x_http_method_override=PUT", "X-Method-Override=PUT"),
    ],
)
def test_a_parameter_that_some_framework_takes_its_method_from_is_found(query: str) -> None:
    assert names_a_method(query)


@pytest.mark.parametrize("query", ["", "method=card", "a=_method", "payment_method=card", "a=%5fmethod", "%"])
def test_other_parameters_are_nobodys_business(query: str) -> None:
    assert not names_a_method(query)


@given(st.text(), st.lists(st.integers(0, 6), max_size=7), st.text())
def test_it_is_found_wherever_it_stands_and_whatever_of_it_is_encoded(
    before: str, encoded: list[int], after: str
) -> None:
    name = "".join(f"%{ord(c):02x}" if at in encoded else c for at, c in enumerate("_method"))
    assert names_a_method(f"{before}&{name}={after}")


def test_a_form_is_known_by_any_of_its_lines() -> None:
    assert carries_a_form([(b"Accept", b"*/*"), (b"Content-Type", b"Application/X-WWW-Form-urlencoded; charset=x")])
    assert carries_a_form([(b"content_type", b"multipart/form-data; boundary=x")])
    assert carries_a_form([(b"content-type", b"text/plain"), (b"content-type", b"multipart/mixed")])
    assert not carries_a_form([(b"content-type", b"application/json"), (b"x", b"multipart/form-data")])
