"""A game day on a running deployment: the canary is handed over and back, the real role is left alone, always.

Two real gateways with a store each share one etcd; nothing copies between the stores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from system.serving import Answer, Serving, ask, environment, fencegate, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SECRET = "secret-of-the-operators"
BRISK = ("--stale-for", "20m", "--speed", "400", "--clients", "8", "--seed", "5")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LONG = bool(os.environ.get("FENCEGATE_LONG_TESTS"))
MOMENTS = (
    "begin to write",
    "the role is handed to dr",
    "dr leads under token",
    "cached records still name dr",
    "the last stale record has expired",
)
"""A sentence of each kind of step, in the order in which they come."""


class Deployment:
    """Regions ``eu``, which leads both roles, and ``dr``; ``canary`` may be rehearsed with, ``ledger`` may not."""

    def __init__(self, eu: Serving, dr: Serving, token_file: Path) -> None:
        self.regions = {"eu": eu, "dr": dr}
        self.token_file = token_file

    @property
    def arguments(self) -> list[str]:
        targets = [part for one in self.regions.values() for part in ("--target", f"http://{one.admin}")]
        return [*targets, "--token-file", str(self.token_file)]

    def leader(self, role: str) -> str:
        opened = [name for name, one in self.regions.items() if fence(one, role)["open"]]
        return opened[0] if len(opened) == 1 else ""

    def settled(self) -> None:
        """Until eu leads both, and dr stands in line."""
        until("eu to lead", lambda: self.leader("canary") == "eu" and self.leader("ledger") == "eu", 40)

    def written(self, region: str, path: str) -> int:
        found = self.regions[region].ask("GET", f"{path}?after=0&limit=1000").json["entries"]
        return len(found)


def fence(one: Serving, role: str) -> dict[str, object]:
    document = ask(one.admin, "GET", "/-/roles", Authorization=f"Bearer {SECRET}").json
    return next(each["fence"] or {"open": False} for each in document["roles"] if each["role"] == role)


@pytest.fixture
def deployment(
    serve: Callable[..., Serving],
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    unused_ports: list[int],
    tmp_path: Path,
) -> Deployment:
    other = make_postgres(port=0)
    other.start_sync()
    (tmp_path / "token").write_text(SECRET)
    started = []
    for region, dsn, port in (("eu", fresh_dsn, unused_ports[0]), ("dr", other.dsn, unused_ports[1])):
        path = tmp_path / f"{region}.toml"
        path.write_text(
            f'node = "gw-{region}"\nregion = "{region}"\nadvertise = "http://127.0.0.1:{port}"\n'
            f'[store]\ndsn = "{dsn}"\n'
            f'[election]\nsource = "etcd"\nendpoints = {etcd.endpoints}\nprefix = "{fresh_prefix.rstrip("/")}"\n'
            "lease_duration = 7\nrenew_deadline = 5.5\nretry_period = 0.4\nmargin = 0.5\n"
            f'[admin]\ntoken_file = "{tmp_path / "token"}"\nread_token_file = "{tmp_path / "read"}"\n'
            + (f'[console]\npeers = ["http://{started[0].admin}"]\n' if started else "")
            + f'token_file = "{tmp_path / "read"}"\n' * bool(started)
            + '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
            '[[route]]\npath = "/v1/canary"\nrole = "canary"\ntarget = "ledger"\nrehearsal = true\n'
        )
        (tmp_path / "read").write_text("read-token-of-the-operators")
        started.append(serve("--config", str(path), "--migrate", "--data", f"127.0.0.1:{port}").listens())
        until("the terms of eu", lambda: len(started[0].facts_of("leadership_gained")) >= 2)
    made = Deployment(started[0], started[1], tmp_path / "token")
    made.settled()
    return made


def rehearse(deployment: Deployment, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "fencegate", "gameday", *deployment.arguments, *BRISK, *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(PYTHONUNBUFFERED="1")
    )


def read_until(process: subprocess.Popen[str], sentence: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if sentence in line:
            return text
    raise AssertionError(f"{sentence!r} never came in:\n{text}")


def test_the_canary_goes_there_and_back_and_nothing_else_is_touched(deployment: Deployment, tmp_path: Path) -> None:
    real = fence(deployment.regions["eu"], "ledger")["max_token_seen"]
    process = rehearse(deployment, "--report", str(tmp_path / "report"))
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert "PASSED" in text
    assert "eu leads canary, as it was found" in text
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["verdict"], report["stage"], report["role"]) == ("pass", "target", "canary")
    assert report["regions"] == {"primary": "eu", "dr": "dr"}
    assert sum(report["tail"]["refused"].values()) >= 1
    assert min(ledger["accepted"] for ledger in report["ledgers"].values()) > 0
    assert deployment.leader("canary") == deployment.leader("ledger") == "eu"
    assert fence(deployment.regions["eu"], "ledger")["max_token_seen"] == real
    assert deployment.written("eu", "/v1/entries") == deployment.written("dr", "/v1/entries") == 0

    # Again, over what the first rehearsal left in the ledgers.
    process = rehearse(deployment)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text


def test_aborted_at_any_step_the_canary_is_handed_back_and_nobody_writes_any_more(deployment: Deployment) -> None:
    for number, moment in enumerate(MOMENTS if LONG else MOMENTS[1:4]):
        process = rehearse(deployment)
        said = read_until(process, moment)
        how, code = (signal.SIGTERM, 143) if number % 2 else (signal.SIGINT, 130)
        process.send_signal(how)
        text, _ = process.communicate(timeout=90)
        assert process.returncode == code, said + text
        assert "Traceback" not in said + text
        assert deployment.leader("canary") == "eu", said + text
        count = deployment.written("eu", "/v1/canary"), deployment.written("dr", "/v1/canary")
        assert (deployment.written("eu", "/v1/canary"), deployment.written("dr", "/v1/canary")) == count
        deployment.settled()


def test_the_console_starts_one_for_whoever_may_act_and_shows_it_and_its_report(deployment: Deployment) -> None:
    dr = deployment.regions["dr"]
    reading = {"Authorization": "Bearer read-token-of-the-operators"}

    def act(action: str, secret: str = SECRET, role: str = "canary") -> Answer:
        term = fence(dr, role)["max_token_seen"]
        form = {"action": action, "role": role, "term": term, "typed": role, "secret": secret, "limit": "300"}
        return ask(dr.admin, "POST", "/-/console/act", urlencode(form).encode(), **reading, **FORM)

    def shown() -> str:
        return ask(dr.admin, "GET", "/-/console/gameday", **reading).body.decode()

    assert "None was started here" in shown()
    assert act("gameday", "read-token-of-the-operators").status == 403
    assert (act("gameday", role="ledger").status, act("break-off").status) == (409, 409)
    begun = act("gameday")
    assert (begun.status, begun.headers["location"]) == (303, "/-/console/gameday")
    assert act("gameday").status == 409, "one at a time"
    assert "under way" in shown()
    until("the role to be written to", lambda: "begin to write" in shown())
    assert act("break-off").status == 202
    until("its end", lambda: "broken off" in shown(), 90)
    assert SECRET not in shown()
    deployment.settled()

    assert act("gameday").status == 303
    until("its verdict", lambda: "✓ passed" in shown() or "✗" in shown(), 150)
    assert "✓ passed" in shown(), shown()
    report = ask(dr.admin, "GET", "/-/console/gameday/report", **reading)
    assert (report.status, "sandbox" in report.headers["content-security-policy"]) == (200, True)
    assert b"canary" in report.body
    assert deployment.leader("canary") == deployment.leader("ledger") == "eu"


def test_a_step_that_fails_ends_the_rehearsal_with_a_verdict_and_the_canary_where_it_was(
    deployment: Deployment,
) -> None:
    # Frozen, dr can neither be handed anything nor be seen: the drill must stop, and give its reason.
    process = rehearse(deployment)
    said = read_until(process, "begin to write")
    deployment.regions["dr"].signal(signal.SIGSTOP)
    text, _ = process.communicate(timeout=120)
    deployment.regions["dr"].signal(signal.SIGCONT)
    assert process.returncode == 1, said + text
    assert "no gateway of dr has answered" in text or "was not made" in text, text
    assert "FAILED" in text or "cannot be read" in text
    deployment.settled()


def test_a_real_role_and_a_scenario_that_breaks_things_are_refused(deployment: Deployment) -> None:
    refused = fencegate("gameday", *deployment.arguments, "--role", "ledger")
    assert (refused.returncode, "not marked for rehearsals" in refused.stderr) == (1, True), refused.stderr
    refused = fencegate("gameday", *deployment.arguments, "--scenario", "drill-26")
    assert refused.returncode == 2
    assert "For --target there are: failback, flapping, zombie" in refused.stderr
    refused = fencegate("gameday", *deployment.arguments[:2], "--token-file", str(deployment.token_file))
    assert (refused.returncode, "expected gateways of two regions" in refused.stderr) == (1, True), refused.stderr
    asked = ask(
        deployment.regions["eu"].admin, "POST", "/-/roles/ledger/handoff", {"to": "dr", "rehearsal": True},
        Authorization=f"Bearer {SECRET}",
    )  # fmt: skip
    assert asked.status == 403
    assert deployment.leader("ledger") == "eu"
