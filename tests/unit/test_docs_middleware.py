"""The snippets of docs/middleware.md: each is a part of an example that is served in tests/system, or runs here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencegate.middleware import Gatekeeper
from fencegate.middleware.gatekeeper import Arrival
from fencegate.middleware.refusals import Refused

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", (DOCS / "middleware.md").read_text(), re.MULTILINE | re.DOTALL)
WHOLE = [snippet for snippet in SNIPPETS if snippet.startswith("from ")]
EXAMPLES = "\n".join(path.read_text() for path in DOCS.glob("examples/middleware/*.py"))


@pytest.mark.parametrize("snippet", [snippet for snippet in SNIPPETS if snippet not in WHOLE])
def test_a_snippet_is_a_part_of_an_example(snippet: str) -> None:
    assert snippet in EXAMPLES


def test_the_service_without_a_gateway_in_front_does_what_the_page_says() -> None:
    [snippet] = WHOLE
    made: dict[str, Any] = {}
    exec(snippet, made)
    gatekeeper = made["gatekeeper"]
    assert isinstance(gatekeeper, Gatekeeper)

    def write(path: bytes, token: bytes) -> str:
        def values(name: str) -> list[bytes]:
            return [token] if name == "X-Fencing-Token" else []

        try:
            examined = gatekeeper.examine(Arrival("POST", path, path, b"", values))
            assert examined is not None
            highest = gatekeeper.ask_fence(examined.fencing)
            assert isinstance(highest, int)
            gatekeeper.judge(examined.fencing, highest)
        except Refused as error:
            return error.refusal.problem.code
        return "taken"

    assert [write(b"/v1/entries", token) for token in (b"41", b"42", b"41")] == ["taken", "taken", "stale_token"]
    assert write(b"/v2", b"42") == "unknown_role"
