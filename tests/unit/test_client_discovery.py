"""Reading a discovery document. What discovery does is in tests/integration/test_client_aio.py."""

from __future__ import annotations

import pytest

from fencegate.client.discovery import read_discovery
from fencegate.client.machine import Found


@pytest.mark.parametrize(
    ("body", "leader", "token"),
    [
        (b'{"leader": {"url": "https://b.example", "token": 7}, "token": 7}', "https://b.example", 7),
        (b'{"leader": {"url": "https://b.example", "token": 7}}', "https://b.example", 7),
        (b'{"leader": "https://b.example", "token": "9007199254740993"}', "https://b.example", 9007199254740993),
        (b'{"leader": "nonsense", "token": 7}', None, 7),
        (b'{"token": 7}', None, 7),
    ],
)
def test_a_discovery_document_is_read(body: bytes, leader: str | None, token: int) -> None:
    assert read_discovery("https://a.example", body) == Found("https://a.example", leader, token)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": -1}', b'{"token": 1.5}', b"[" * 100_000, b"\xff"])
def test_a_discovery_document_without_a_token_names_nobody(body: bytes) -> None:
    assert read_discovery("https://a.example", body) is None
