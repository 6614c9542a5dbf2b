"""What ``fencegate status`` makes of the admin listener's answer."""

from __future__ import annotations

import io
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner
from rich.console import Console

from fencegate.cli.asking import roles
from fencegate.cli.look import THEME
from fencegate.cli.status import status
from fencegate.cli.status_view import lines, picture, zombie_picture
from fencegate.errors import FencegateError

LEADING: dict[str, Any] = {
    "role": "ledger",
    "fence": {"max_token_seen": 42, "open": True, "valid_for_s": 9.5, "draining": False},
    "leader": {"url": "https://eu.example", "region": "eu", "token": 42, "lease_expires_in_ms": 11800},
    "leadership_known": True,
    "candidacy": "leading",
    "rejections": {"stale_token": 3, "token_required": 1},
    "observed": False,
}
NOBODY: dict[str, Any] = {
    "role": "other",
    "fence": {"max_token_seen": 7, "open": False, "valid_for_s": 0.0, "draining": False},
    "leader": None,
    "leadership_known": True,
    "candidacy": "campaigning",
    "rejections": {},
    "observed": False,
}
UNKNOWN: dict[str, Any] = {**NOBODY, "role": "third", "fence": None, "leadership_known": False, "candidacy": ""}
DOCUMENT = {
    "node": "gw-1",
    "region": "eu",
    "store": {"up": True, "reason": None},
    "timings": {"lease_duration": 15.0, "renew_deadline": 10.0, "retry_period": 2.0},
    "roles": [LEADING, NOBODY, UNKNOWN],
    "stale_senders": [
        {
            "role": "ledger",
            "client": "10.0.0.7",
            "agent": "billing/3.1 \x1b[31m",
            "forwarded_for": "203.0.113.9",
            "refused": 1204,
            "let_through": 2,
            "reason": "not_leader",
            "token": 41,
            "first_age_s": 1210.0,
            "last_age_s": 0.4,
        }
    ],
}


class Listener:
    """A stand-in for the admin listener: one answer, and what was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] = (200, json.dumps(DOCUMENT).encode())
        self.asked: list[tuple[str, str | None]] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.asked.append((self.path, self.headers.get("Authorization")))
                code, body = listener.answer
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(status, list(arguments))


def test_plain_lines_hold_everything_one_role_each(listener: Listener) -> None:
    result = run("--admin", listener.address)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "role=ledger leader=eu token=42 lease_left=11.8s max_token_seen=42 fence=open this_node=leading "
        "rejections=stale_token:3,token_required:1",
        "role=other leader=nobody token=- lease_left=- max_token_seen=7 fence=closed this_node=campaigning "
        "rejections=-",
        "role=third leader=unknown token=- lease_left=- max_token_seen=- fence=none this_node=- rejections=-",
    ]
    assert listener.asked == [("/-/roles", None)]


def test_json_is_the_answer_as_it_came(listener: Listener) -> None:
    result = run("--admin", f"http://{listener.address}", "--json")
    assert json.loads(result.output) == DOCUMENT


def test_a_store_that_is_down_and_a_drain_are_said() -> None:
    draining = {**LEADING, "fence": {**LEADING["fence"], "draining": True}, "leader": None}
    down = {**DOCUMENT, "store": {"up": False, "reason": "no answer"}, "roles": [draining]}
    first, second = lines(down)
    assert first == 'store=down reason="no answer"'
    assert "fence=draining" in second
    assert "lease_left=9.5s" in second


def test_a_region_is_no_line_of_its_own_whatever_a_record_calls_it() -> None:
    hostile = {**LEADING, "leader": {**LEADING["leader"], "region": "eu\nrole=ledger leader=dr \x1b[2J"}}
    (line,) = lines({**DOCUMENT, "roles": [hostile]})
    assert "leader=eu\\nrole=ledger_leader=dr_\\x1b[2J token=42" in line


def test_of_several_stores_each_role_is_told_with_its_own() -> None:
    (line,) = lines({**DOCUMENT, "roles": [{**LEADING, "store": "north"}]})
    assert line.endswith(" store=north")


def shown(document: dict[str, Any], view: Any = picture, *, width: int = 112, height: int = 50) -> str:
    """The picture as a terminal of this size shows it, without colours."""
    screen = Console(
        width=width, height=height, theme=THEME, record=True, color_system=None, force_terminal=True, file=io.StringIO()
    )
    screen.print(view(document, screen))
    return screen.export_text()


def test_the_picture_shows_every_role() -> None:
    out = shown(DOCUMENT)
    for word in ("gw-1", "ledger", "11.8 s", "OPEN", "CLOSED", "leading", "stale_token 3", "nobody", "unknown",
                 "max seen", "█", "1 of 3 roles led"):  # fmt: skip
        assert word in out
    assert out.index("other") < out.index("ledger"), "those in trouble first"


def test_eighty_columns_are_enough_and_cut_no_number() -> None:
    etcds = {**LEADING, "leader": {**LEADING["leader"], "token": 1234567}}
    out = shown({**DOCUMENT, "roles": [etcds, NOBODY]}, width=80)
    assert max(len(line) for line in out.splitlines()) <= 80
    for word in ("1234567", "11.8 s", "OPEN", "nobody"):
        assert word in out


def test_of_more_roles_than_lines_those_in_trouble_are_shown() -> None:
    many = [{**LEADING, "role": f"shard/{n}"} for n in range(100)]
    out = shown({**DOCUMENT, "roles": [*many, NOBODY]}, height=24)
    assert len(out.splitlines()) < 24
    assert "nobody" in out
    assert "and 85 roles more, each with a leader" in out


def test_of_more_roles_in_trouble_than_lines_the_others_are_told_of() -> None:
    lost = [{**NOBODY, "role": f"shard/{n}"} for n in range(100)]
    out = shown({**DOCUMENT, "roles": [LEADING, *lost]}, height=24)
    assert "and 85 roles more, 84 of them without a leader or draining" in out


def test_a_drain_a_route_that_only_observes_and_a_store_that_is_down_are_loud() -> None:
    role = {**LEADING, "observed": True, "fence": {**LEADING["fence"], "draining": True}}
    out = shown({**DOCUMENT, "roles": [role], "store": {"up": False, "reason": "no \x1b answer"}})
    assert " DRAINING " in out
    assert "OBSERVE MODE: nothing stale is refused on ledger" in out
    assert "STORE DOWN: no \\x1b answer" in out


def test_the_token_of_a_file_is_sent(listener: Listener, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("s3cret-of-sixteen\n")
    assert run("--admin", listener.address, "--token-file", str(path)).exit_code == 0
    assert listener.asked == [("/-/roles", "Bearer s3cret-of-sixteen")]


def test_the_settings_say_where_to_ask(listener: Listener, tmp_path: Path) -> None:
    config = tmp_path / "f.toml"
    config.write_text(f'[listen]\nadmin = "{listener.address}"\n')
    assert run("--config", str(config)).exit_code == 0
    assert run("--set", f"listen.admin={listener.address}").exit_code == 0
    assert len(listener.asked) == 2


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (401, b"{}", "asks for a token"),
        (404, b"not found", "is that the admin listener"),
        (200, b"hello", "is that the admin listener"),
        (200, b"[]", "is that the admin listener"),
        (500, b"{}", "answers 500"),
    ],
)
def test_an_answer_that_is_not_ours_is_one_sentence(code: int, body: bytes, words: str, listener: Listener) -> None:
    listener.answer = (code, body)
    with pytest.raises(FencegateError, match=words):
        roles(listener.address, None)


def test_no_answer_is_one_sentence(listener: Listener) -> None:
    listener.server.server_close()
    with pytest.raises(FencegateError, match=r"no answer from the admin listener.* --admin names another address$"):
        roles("127.0.0.1:9", None)


def test_a_listener_that_speaks_no_tls_is_told_of(listener: Listener) -> None:
    with pytest.raises(FencegateError, match=r"no answer from the admin listener.*http:// or https:// there\?$"):
        roles(f"https://{listener.address}", None)


def test_a_certificate_that_is_not_trusted_says_where_a_ca_goes(listener: Listener, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    listener.server.socket = context.wrap_socket(listener.server.socket, server_side=True)
    with pytest.raises(FencegateError, match="SSL_CERT_FILE"):
        roles(f"https://{listener.address}", None)


@pytest.mark.parametrize(
    "address", ["ftp://h:1", "http://", "h:no", "h:99999999", "[::1", "a..b:1", "x" * 64 + ".eu:1"]
)
def test_an_address_that_is_none_is_wrong_usage(address: str) -> None:
    with pytest.raises(click.UsageError, match="host:port or a URL"):
        roles(address, None)


def test_watching_in_a_pipe_prints_plain_lines_again(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("fencegate.cli.status.time.sleep", sleep)
    result = run("--admin", listener.address, "--watch", "--interval", "0.5")
    assert result.output.count("role=ledger") == 3
    assert turns == [0.5, 0.5, 0.5]


def test_zombies_are_shown_by_sender(listener: Listener) -> None:
    plain = CliRunner().invoke(status, ["--admin", listener.address, "--zombies"])
    assert plain.output == (
        "role=ledger client=10.0.0.7 refused=1204 let_through=2 reason=not_leader token=41 first_age_s=1210.0 "
        'last_age_s=0.4 agent="billing/3.1 \\u001b[31m" forwarded_for="203.0.113.9"\n'
    )
    told = shown(DOCUMENT, zombie_picture, width=140)
    assert "1204, 2 LET THROUGH" in told
    assert "10.0.0.7 (for 203.0.113.9)" in told
    assert "20:10" in told
    assert "\x1b" not in told


def test_a_zombie_that_has_an_identity_is_called_by_it(listener: Listener) -> None:
    document = {**DOCUMENT, "stale_senders": [{**DOCUMENT["stale_senders"][0], "caller": "CN=billing,O=Example"}]}
    listener.answer = (200, json.dumps(document).encode())
    plain = CliRunner().invoke(status, ["--admin", listener.address, "--zombies"])
    assert 'last_age_s=0.4 caller="CN=billing,O=Example" agent="billing' in plain.output
    assert "CN=billing,O=Example at 10.0.0.7 (for 203.0.113.9)" in shown(document, zombie_picture, width=180)


def test_without_zombies_it_says_so() -> None:
    told = shown({**DOCUMENT, "stale_senders": []}, zombie_picture)
    assert "Nobody: no stale write reached gw-1 in the last hour." in told
