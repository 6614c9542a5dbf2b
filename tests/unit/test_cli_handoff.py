"""``fencegate handoff``, ``drain`` and ``seal``: what they send, say and exit with; over a scripted admin listener."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fencegate.cli.drain import drain
from fencegate.cli.handoff import handoff
from fencegate.cli.main import main
from fencegate.cli.seal import seal
from fencegate.errors import FencegateError


class Listener:
    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {})
        self.asked: list[tuple[str, str | None, Any]] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                listener.asked.append((self.path, self.headers.get("Authorization"), body))
                status, document = listener.answer
                text = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

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


def call(listener: Listener, *more: str) -> Any:
    return CliRunner().invoke(handoff, ["ledger/eu-1", "--to", "dr", "--admin", listener.address, *more])


def outcome(name: str, **more: object) -> dict[str, object]:
    return {"role": "ledger/eu-1", "to": "dr", "outcome": name, "detail": "So it is.", **more}


def test_it_sends_the_region_the_limit_and_the_token(listener: Listener, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-of-operators\n")
    listener.answer = (200, outcome("done", token=9, paused_ms=41))

    result = call(listener, "--limit", "3", "--token-file", str(tmp_path / "token"))

    assert result.exit_code == 0
    path, authorization, body = listener.asked[0]
    assert path == "/-/roles/ledger/eu-1/handoff"
    assert authorization == "Bearer secret-of-operators"
    assert body == {"to": "dr", "limit": 3.0}
    assert result.output == "ledger/eu-1: done, token 9, writes paused for 41 ms at most\n  So it is.\n"


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("done", 200, 0),
        ("already", 200, 0),
        ("busy", 409, 69),
        ("no_candidate", 409, 69),
        ("not_here", 409, 69),
        ("undone", 503, 75),
        ("pending", 202, 1),
        ("lapsing", 503, 1),
        ("abandoned", 503, 1),
    ],
)
def test_each_outcome_has_its_exit_code_and_says_why(listener: Listener, name: str, status: int, code: int) -> None:
    listener.answer = (status, outcome(name, token=None, paused_ms=None))

    result = call(listener)

    assert result.exit_code == code
    assert name.replace("_", " ") in result.output
    assert "So it is." in result.output
    assert "\x1b" not in result.output


def test_json_is_the_answer_as_it_came(listener: Listener) -> None:
    listener.answer = (503, outcome("undone", token=None, paused_ms=None))

    result = call(listener, "--json")

    assert json.loads(result.output) == listener.answer[1]
    assert result.exit_code == 75


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, {"error": "Nothing was begun: time-out"}), "503: Nothing was begun: time-out"),
        ((404, b"<html>"), "is that the admin listener"),
        ((200, b"[]"), "is that the admin listener"),
    ],
)
def test_what_is_no_answer_is_an_error_that_says_so(listener: Listener, answer: Any, words: str) -> None:
    listener.answer = answer

    result = call(listener)

    assert isinstance(result.exception, FencegateError)
    assert words in str(result.exception)


@pytest.mark.parametrize(
    ("status", "sentence"), [(401, "A token is needed."), (403, "Actions are off."), (404, "No role of this name.")]
)
@pytest.mark.parametrize("command", [["handoff", "ledger", "--to", "dr"], ["drain", "ledger"]], ids=lambda it: it[0])
def test_a_request_that_the_listener_does_not_take_exits_as_refused_and_not_as_perhaps_begun(
    listener: Listener, capsys: pytest.CaptureFixture[str], command: list[str], status: int, sentence: str
) -> None:
    listener.answer = (status, {"error": sentence})
    with pytest.raises(SystemExit) as ended:
        main([*command, "--admin", listener.address])
    assert ended.value.code == 69
    told = capsys.readouterr().err
    assert told.startswith(f"fencegate: {listener.address} answers {status}: {sentence}")
    assert ("--token-file" in told) == (status == 401)


def test_nobody_there_and_a_wrong_address_are_told() -> None:
    runner = CliRunner()
    gone = runner.invoke(handoff, ["ledger", "--to", "dr", "--admin", "127.0.0.1:1"])
    wrong = runner.invoke(handoff, ["ledger", "--to", "dr", "--admin", "ftp://x"])

    assert isinstance(gone.exception, FencegateError)
    assert "no answer" in str(gone.exception)
    assert wrong.exit_code == 2


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("drained", 200, 0),
        ("draining", 202, 1),
        ("resumed", 200, 75),
        ("not_here", 409, 69),
        ("other_term", 409, 69),
        ("busy", 409, 69),
        ("undone", 503, 75),
    ],
)
def test_a_drain_sends_its_limit_and_says_when_writes_come_back(
    listener: Listener, name: str, status: int, code: int
) -> None:
    listener.answer = (status, {"role": "ledger", "outcome": name, "detail": "So it is.", "token": 42, "left_s": 28.6})
    result = CliRunner().invoke(drain, ["ledger", "--limit", "30", "--admin", listener.address])
    assert listener.asked[0][0] == "/-/roles/ledger/drain"
    assert listener.asked[0][2] == {"limit": 30.0}
    assert result.exit_code == code
    assert result.output == (f"ledger: {name.replace('_', ' ')}, writes are taken again in 29 s\n  So it is.\n")


def test_resuming_sends_nothing_but_that(listener: Listener) -> None:
    listener.answer = (200, {"role": "ledger", "outcome": "resumed", "detail": "Taken.", "token": 42, "left_s": None})
    result = CliRunner().invoke(drain, ["ledger", "--resume", "--admin", listener.address, "--json"])
    assert (listener.asked[0][0], listener.asked[0][2]) == ("/-/roles/ledger/resume", {})
    assert json.loads(result.output) == listener.answer[1]
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("name", "status", "code"), [("sealed", 200, 0), ("already", 200, 0), ("other_term", 409, 69), ("lapsing", 503, 1)]
)
def test_a_seal_names_the_term_that_it_ends(listener: Listener, name: str, status: int, code: int) -> None:
    listener.answer = (status, {"role": "ledger", "outcome": name, "detail": "So it is.", "token": 42})
    result = CliRunner().invoke(seal, ["ledger", "--token", "42", "--limit", "5", "--admin", listener.address])
    assert (listener.asked[0][0], listener.asked[0][2]) == ("/-/roles/ledger/seal", {"token": 42, "limit": 5.0})
    assert result.exit_code == code
    assert result.output == f"ledger: {name.replace('_', ' ')}, token 42\n  So it is.\n"
    assert CliRunner().invoke(seal, ["ledger", "--admin", listener.address]).exit_code == 2, "a seal needs the token"
