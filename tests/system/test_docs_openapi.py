"""docs/openapi.yaml against a running gateway: Schemathesis asks what it describes, and much that it does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fencegate.errors import PROBLEMS
from system.serving import Serving

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SCHEMA = Path(__file__).parents[2] / "docs" / "openapi.yaml"
SECRET = "a-token-that-may-act"
CHECKS = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
CONFIGURATION = """
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "{dsn}"
[election]
source = "postgres"
[admin]
token_file = "{token}"
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[[route]]
path = "/-/authz/ledger-behind-a-proxy"
role = "ledger-behind-a-proxy"
target = "authz"
"""


@pytest.fixture
def gateway(
    fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str], tmp_path: Path
) -> Serving:
    secret = tmp_path / "token"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    text = CONFIGURATION.format(dsn=fresh_dsn, token=secret)
    started = serve("--migrate", "--config", configuration(text)).listens()
    assert started.discovered() == 1, "the example token of the schema"
    assert started.write(1).status == 201, "the example entry"
    return started


@pytest.mark.parametrize("listener", ["data", "admin"])
def test_a_running_gateway_answers_as_the_schema_says(gateway: Serving, listener: str, tmp_path: Path) -> None:
    schema = yaml.safe_load(SCHEMA.read_text())
    # Left to chance, hardly a question would be about a role that there is.
    schema["components"]["parameters"]["Role"]["schema"]["enum"] = ["ledger", "ledger-behind-a-proxy", "nobodys"]
    (tmp_path / SCHEMA.name).write_text(yaml.safe_dump(schema))
    program = [sys.executable, "-m", "schemathesis.cli", "run", SCHEMA.name, "--no-color"]
    bounds = ["--phases", "examples,fuzzing", "--max-examples", "40", "--seed", "26", "--no-shrink"]
    where = ["--url", f"http://{getattr(gateway, listener)}", "--include-tag", listener]
    who = ["--header", f"Authorization: Bearer {SECRET}"] if listener == "admin" else []
    done = subprocess.run(
        [*program, *bounds, *where, *who, "--checks", ",".join(CHECKS), "--continue-on-failure"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert gateway.process.poll() is None


def test_the_schema_knows_every_problem_code_and_no_other() -> None:
    assert yaml.safe_load(SCHEMA.read_text())["components"]["schemas"]["Code"]["enum"] == list(PROBLEMS)
