"""The commands of docs/quick-start.md, and the clients of docs/other-clients.md, through a real gateway."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from system.serving import Serving

pytestmark = pytest.mark.system

DOCS = Path(__file__).parents[2] / "docs"
Serve = Callable[..., Serving]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def curl() -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (Debian: curl)")


@pytest.mark.usefixtures("curl")
def test_the_quick_start_goes_as_it_says(serve: Serve, tmp_path: Path) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg")).listens()
    assert gateway.discovered() == 1, "the page says that the first token is 1"
    text = (DOCS / "quick-start.md").read_text()
    found = [line.replace("127.0.0.1:8080", gateway.data) for line in re.findall(r"^\$ (curl .*)", text, re.MULTILINE)]
    who, write, bare, forged, read = [shlex.split(line) for line in found]
    assert json.loads(run(who).stdout)["token"] == 1
    assert re.match(r"HTTP/1.1 201 .*X-Fencing-Outcome: accepted", run(write).stdout, re.DOTALL | re.IGNORECASE)
    assert re.match(r"HTTP/1.1 201 .*Idempotent-Replayed: true", run(write).stdout, re.DOTALL | re.IGNORECASE)
    assert run(bare).stdout.startswith("HTTP/1.1 428 ")
    assert run(forged).stdout.startswith("HTTP/1.1 403 ")
    assert [entry["seq"] for entry in json.loads(run(read).stdout)["entries"]] == [1]
    assert gateway.stop() == 0
    again = serve("--embedded", str(tmp_path / "pg")).listens()
    again.discovered()
    stale = [word.replace(gateway.data, again.data).replace("pay-1", "pay-2") for word in write]
    assert re.match(r"HTTP/1.1 409 .*X-Fencing-Outcome: stale_token", run(stale).stdout, re.DOTALL | re.IGNORECASE)


@pytest.mark.usefixtures("curl")
def test_the_shell_script_and_the_python_one_write_once_per_key(
    fresh_dsn: str, serve: Serve, configuration: Callable[[str], str], unused_ports: list[int]
) -> None:
    # The gateway names itself to its clients: its port has to be known beforehand.
    address = f"127.0.0.1:{unused_ports[0]}"
    text = (
        f'node = "gw-1"\nregion = "eu"\nadvertise = "http://{address}"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[election]\nsource = "postgres"\n'
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )
    gateway = serve("--migrate", "--data", address, "--config", configuration(text)).listens()
    gateway.discovered()
    for name, command in {"sh": ["sh", "write.sh"], "py": [sys.executable, "with_requests.py"]}.items():
        folder = DOCS / "examples" / "other_clients"
        whole = [command[0], str(folder / command[1]), "ledger", "/v1/entries", name, '{"n": 1}', f"http://{address}"]
        first, again = run(whole), run(whole)
        assert first.returncode == again.returncode == 0, first.stderr
        assert first.stdout == again.stdout
    assert len(gateway.ask("GET", "/v1/entries").json["entries"]) == 2
