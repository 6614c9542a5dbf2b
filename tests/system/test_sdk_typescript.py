"""The TypeScript client: its own tests under Node, and a write of it through a real gateway."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from system.serving import Serving

pytestmark = pytest.mark.system

SDK = Path(__file__).parents[2] / "sdk"
SCRIPT = """
import { FencedClient } from "./dist/src/index.js";
const client = new FencedClient({ urls: [process.argv[2]], role: "ledger" });
const first = await client.post("/v1/entries", { json: { decision: "approve" }, idempotencyKey: "k-1" });
const again = await client.post("/v1/entries", { json: { decision: "approve" }, idempotencyKey: "k-1" });
const entries = await client.get("/v1/entries");
let stale = null;
await client.post("/v1/entries", { json: {}, token: 9n }).catch((error) => { stale = [error.kind, error.code]; });
console.log(JSON.stringify({
  status: first.status, token: String(first.token), replayed: again.replayed, same: first.body === again.body,
  count: JSON.parse(entries.body).entries.length, stale,
}));
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the client with its development packages, built by its own ``npm`` script."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed (Debian: npm)")
    folder = tmp_path_factory.mktemp("sdk")
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(SDK, folder / "sdk", ignore=ignored)
    copy = folder / "sdk" / "typescript"
    for command in ([npm, "ci", "--no-audit", "--no-fund"], [npm, "run", "build"]):
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return copy


def test_its_own_tests_pass_the_conformance_vectors_among_them(built: Path) -> None:
    done = subprocess.run(
        ["node", "--test", "dist/test/"], cwd=built, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    vectors = sum(len(json.loads(file.read_text())) for file in SDK.glob("conformance/vectors/*.json"))
    (passed,) = [line for line in done.stdout.splitlines() if line.startswith(("# pass ", "ℹ pass "))]
    assert int(passed.rpartition(" ")[2]) > vectors


def test_it_writes_through_a_real_gateway_once_per_key(
    built: Path, fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    text = (
        'node = "gw-1"\nregion = "eu"\nadvertise = "http://127.0.0.1:1"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[election]\nsource = "postgres"\n'
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )
    gateway = serve("--migrate", "--config", configuration(text)).listens()
    token = gateway.leads()
    (built / "write.mjs").write_text(SCRIPT)

    done = subprocess.run(
        ["node", "write.mjs", f"http://{gateway.data}"],
        cwd=built,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "status": 201,
        "token": str(token),
        "replayed": True,
        "same": True,
        "count": 1,
        "stale": ["refused", "token_not_issued"],
    }
