"""Reads that some upstreams would take for writes: where another method hides in a query or in a form.

The headers that do this (``X-HTTP-Method-Override`` and its like) are refused on every fenced path, whatever the
method. Here are the places that only frameworks know, and they matter for what passes without a token alone: a
``GET`` that its upstream carries out as a ``DELETE`` would be a write past the fence.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_plus

from fencegate.gateway.header_lines import Headers, read_fields
from fencegate.gateway.request import Request

_PARAMETERS: Final = frozenset(
    {"_method", "_httpmethod", "x_http_method_override", "x_http_method", "x_method_override"}
)
"""As :func:`_as_read` gives them. Rails, Laravel, Symfony and Express know the first, Salesforce the second."""
_BETWEEN: Final = re.compile(r"[&;]")
_FOLDED: Final = str.maketrans(" .-+", "____")
_FORMS: Final = (b"application/x-www-form-urlencoded", b"multipart/")


def names_a_method(query: str) -> bool:
    """Whether a raw query has a parameter that a framework may take its method from, however it is spelled."""
    # Most queries have neither this word nor anything encoded that could become it.
    if "%" not in query and "method" not in query.lower():
        return False
    return any(_as_read(part) in _PARAMETERS for part in _BETWEEN.split(query))


def _as_read(part: str) -> str:
    """The parameter's name as the most lenient of frameworks reads it: PHP folds characters, others take arrays."""
    name = unquote_plus(part.partition("=")[0]).strip().casefold()
    return (name[:1].replace("[", "_") + name[1:].partition("[")[0]).translate(_FOLDED)


def carries_a_form(headers: Headers) -> bool:
    """Whether the body is declared as a form, in which such a parameter could be."""
    return any(
        name.lower().replace(b"_", b"-") == b"content-type" and any(form in value.lower() for form in _FORMS)
        for name, value in headers
    )


def hides_a_method(request: Request) -> bool:
    """Whether an upstream may carry this request out under another method than its own."""
    fields = request.fields or read_fields(request.headers)
    return (
        fields.override
        or (bool(request.query) and names_a_method(request.query))
        or (request.content_length != 0 and carries_a_form(request.headers))
    )
