"""``fencegate serve`` with a configuration: its faults, its store, SIGHUP, and ``fencegate migrate`` beside it."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.cli.data_plane import cannot_listen
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import ConfigurationError
from system.serving import Serving, ask, fencegate, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
Configuration = Callable[[str], str]

ROUTE = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'


def whole(dsn: str, more: str = "", *, node: str = "gw-1", region: str = "eu") -> str:
    return (
        f'node = "{node}"\nregion = "{region}"\nadvertise = "https://ledger.{region}.example"\n'
        f'[store]\ndsn = "{dsn}"\n{more}\n{ROUTE}'
    )


def test_a_wrong_configuration_says_all_its_faults_and_exits_78(configuration: Configuration) -> None:
    path = configuration(
        'node = "gw-1"\nregon = "eu"\nadvertise = "ledger"\n[store]\ndsn = "mysql://u:s3cret@h/d"\n'
        '[election]\nsource = "kafke"\nlease_duration = 5\n' + ROUTE
    )
    done = fencegate("serve", "--config", path, "--admin", "0.0.0.0:1", FENCEGATE_LIMITS_IN_FLIGHT="many")
    assert done.returncode == 78
    assert done.stdout == ""
    faults = done.stderr.splitlines()
    assert faults[0] == f"fencegate: the configuration has {len(faults) - 1} faults:"
    for part in (
        f"regon: no such key; did you mean region? (file {path}, line 2)",
        f"(file {path}, line 3)",
        "store.dsn",
        "kafke",
        "must be more than renew_deadline",
        "(variable FENCEGATE_LIMITS_IN_FLIGHT)",
        "(flag --admin)",
        "region: missing",
    ):
        assert any(part in fault for fault in faults), part
    assert "s3cret" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_without_tables_is_refused_until_it_is_migrated(
    fresh_dsn: str, serve: Serve, configuration: Configuration
) -> None:
    path = configuration(whole(fresh_dsn))
    unmigrated = fencegate("serve", "--config", path, "--data", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert unmigrated.returncode == 78
    assert "run fencegate migrate" in unmigrated.stderr

    check = fencegate("migrate", "--config", path, "--check")
    assert check.returncode == 1
    assert "lacks 0001_" in check.stdout
    first = fencegate("migrate", "--store-dsn", fresh_dsn)
    assert first.returncode == 0
    assert "applied 0001_" in first.stdout
    again = fencegate("migrate", "--config", path)
    assert again.returncode == 0
    assert again.stdout.rstrip().endswith("up to date")
    assert fencegate("migrate", "--config", path, "--check").returncode == 0
    for done in (check, first, again):
        assert "***@" in done.stdout
        assert fresh_dsn not in done.stdout

    gateway = serve("--config", path).listens()
    assert gateway.write(gateway.discovered()).status == 201
    assert gateway.stop() == 0


def test_a_flag_migrates_before_serving(fresh_dsn: str, serve: Serve, configuration: Configuration) -> None:
    gateway = serve("--config", configuration(whole(fresh_dsn)), "--migrate").listens()
    assert gateway.write(gateway.discovered()).status == 201


def test_a_role_cannot_be_moved_from_one_mode_to_the_other(
    fresh_dsn: str, serve: Serve, configuration: Configuration
) -> None:
    path = configuration(whole(fresh_dsn))
    gateway = serve("--config", path, "--migrate").listens()
    gateway.leads()
    assert gateway.stop() == 0
    moved = fencegate(
        "serve", "--config", path, "--data", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--set", "election.mode=follow"
    )
    assert moved.returncode == 78
    assert "cannot be moved" in moved.stderr


def test_an_address_in_use_is_said_and_may_be_free_at_the_next_start(
    fresh_dsn: str, configuration: Configuration
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = fencegate(
            "serve",
            "--migrate",
            "--config",
            configuration(whole(fresh_dsn)),
            "--admin",
            "127.0.0.1:0",
            "--data",
            address,
        )
    assert done.returncode == 1, "with 78 systemd would not start it again"
    assert f'listen.data = "{address}": cannot listen there' in done.stderr


def test_a_port_that_may_not_be_listened_on_is_a_fault_of_the_configuration() -> None:
    said = cannot_listen("listen.data", "127.0.0.1:80", PermissionError(13, "Permission denied"))
    assert isinstance(said, ConfigurationError)
    assert said.faults == ['listen.data = "127.0.0.1:80": cannot listen there: Permission denied']


@pytest.mark.parametrize("apply", [(), ("--migrate",)])
def test_a_database_of_a_newer_version_is_no_reason_to_start_again_and_again(
    migrated_dsn: str, configuration: Configuration, apply: tuple[str, ...]
) -> None:
    async def migrated_by_a_newer_one() -> None:
        connection = await asyncpg.connect(migrated_dsn)
        await connection.execute("INSERT INTO fencegate.migration VALUES ('9999_from_the_future', 'x')")
        await connection.close()

    asyncio.run(migrated_by_a_newer_one())
    path = configuration(whole(migrated_dsn))
    done = fencegate("serve", *apply, "--config", path, "--data", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert done.returncode == 78, done.stderr
    assert "store.dsn: the database was migrated by a newer fencegate (it has 9999_from_the_future)" in done.stderr


def test_with_its_store_down_it_comes_up_closed_and_opens_when_the_store_comes(
    make_postgres: Callable[..., EmbeddedPostgres], serve: Serve, configuration: Configuration
) -> None:
    postgres = make_postgres(port=0)
    postgres.start_sync()
    dsn = postgres.dsn
    assert fencegate("migrate", "--store-dsn", dsn).returncode == 0
    postgres.stop_sync()

    gateway = serve("--config", configuration(whole(dsn))).listens()
    assert ask(gateway.admin, "GET", "/live").status == 200
    ready = ask(gateway.admin, "GET", "/ready")
    assert ready.status == 503
    assert ready.json["ready"] is False
    refused = gateway.write(1)
    assert (refused.status, refused.outcome, refused.headers["x-fencing-applied"]) == (503, "fence_unavailable", "no")
    assert fencegate("status", "--admin", gateway.admin).stdout.startswith("store=down")

    postgres.start_sync()
    until("readiness", lambda: ask(gateway.admin, "GET", "/ready").status == 200)
    assert gateway.write(gateway.leads()).status == 201
    assert gateway.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_who_is_told_to_end_while_still_starting_ends_at_once_and_in_order(
    serve: Serve, configuration: Configuration, workers: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        text = whole(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?sslmode=disable")
        gateway = serve("--config", configuration(text), "--workers", str(workers))
        with silent.accept()[0]:
            assert gateway.stop() == 0
    assert not gateway.out
    assert not any("Traceback" in line for line in gateway.err)


def test_a_hangup_during_the_start_ends_nothing_and_is_taken_once_requests_are(
    serve: Serve, configuration: Configuration
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = whole(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?sslmode=disable")
        gateway = serve("--config", configuration(slow))
        with silent.accept()[0]:
            configuration(f'{slow}[log]\nlevel = "debug"\n')
            gateway.signal(signal.SIGHUP)
            time.sleep(0.2)  # so that a process that it ends is gone before the start goes on
    gateway.listens()
    fact = until("the reload", lambda: gateway.facts_of("reloaded"))[0]
    assert fact["changed"] == ["log.level"]
    assert gateway.stop() == 0


def reloaded(gateway: Serving, event: str = "reloaded") -> dict[str, Any]:
    count = len(gateway.facts_of(event))
    gateway.signal(signal.SIGHUP)
    return dict(until(f"the fact {event}", lambda: gateway.facts_of(event)[count:])[0])


def test_a_hangup_reloads_what_can_be_and_says_what_cannot(
    fresh_dsn: str, serve: Serve, configuration: Configuration, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    path = configuration(whole(fresh_dsn))
    gateway = serve("--config", path, "--migrate").listens()
    issued = gateway.discovered()
    assert not gateway.facts_of("write_accepted")
    assert ask(gateway.admin, "POST", "/-/roles/ledger/resign").status == 403

    token.write_text("first-token-of-the-admin\n")
    more = f'[log]\nlevel = "debug"\n[limits]\nheader_bytes = 1024\n[admin]\ntoken_file = "{token}"\n'
    configuration(whole(fresh_dsn, more, region="us"))
    fact = reloaded(gateway)
    assert fact["changed"] == ["admin.token_file", "limits.header_bytes", "log.level"]
    assert fact["needs_restart"] == ["advertise", "region"]
    assert gateway.write(issued).status == 201
    until("a fact at the new level", lambda: gateway.facts_of("write_accepted"))
    assert gateway.write(issued, **{"X-Long": "a" * 1100}).outcome == "headers_too_large"
    assert ask(gateway.admin, "POST", "/-/roles/ledger/resign").status == 401
    bearer = {"Authorization": "Bearer first-token-of-the-admin"}
    assert ask(gateway.admin, "POST", "/-/roles/none/resign", **bearer).status == 404

    token.write_text("second-token-of-the-admin\n")
    assert reloaded(gateway)["changed"] == ["admin tokens"]
    assert ask(gateway.admin, "POST", "/-/roles/none/resign", **bearer).status == 401
    assert gateway.stop() == 0


def test_a_hangup_reloads_the_routes_while_their_roles_stay(
    fresh_dsn: str, serve: Serve, configuration: Configuration
) -> None:
    gateway = serve("--config", configuration(whole(fresh_dsn)), "--migrate").listens()
    issued = gateway.discovered()
    assert gateway.write(issued).status == 201

    moved = ROUTE.replace("/v1/entries", "/v2/entries") + "max_body_bytes = 20\n"
    configuration(whole(fresh_dsn).replace(ROUTE, moved))
    fact = reloaded(gateway)
    assert (fact["changed"], fact.get("needs_restart", [])) == (["route.0.max_body_bytes", "route.0.path"], [])
    assert gateway.write(issued).outcome == "unknown_route"
    assert gateway.write(issued, {"n": 1}, "/v2/entries").status == 201
    assert gateway.write(issued, {"n": "a" * 20}, "/v2/entries").outcome == "body_too_large"

    # A role that has no elector here: none of the routes changes.
    configuration(whole(fresh_dsn) + ROUTE.replace("/v1/entries", "/other").replace('"ledger"', '"other"', 1))
    fact = reloaded(gateway)
    assert fact.get("changed", []) == []
    assert "route.1.role" in fact["needs_restart"]
    assert gateway.write(issued, {"n": 2}, "/v2/entries").status == 201
    assert gateway.write(issued, {"n": 2}, "/other").outcome == "unknown_route"

    # An observing route says so at once.
    configuration(whole(fresh_dsn) + 'mode = "observe"\n')
    assert reloaded(gateway)["changed"] == ["route.0.max_body_bytes", "route.0.mode", "route.0.path"]
    assert 'fencing_enforcing{role="ledger"} 0.0' in ask(gateway.admin, "GET", "/metrics").body.decode()
    assert ask(gateway.admin, "GET", "/-/roles").json["roles"][0]["observed"] is True
    assert gateway.facts_of("not_enforcing")
    configuration(whole(fresh_dsn))
    reloaded(gateway)
    assert ask(gateway.admin, "GET", "/-/roles").json["roles"][0]["observed"] is False
    assert gateway.stop() == 0


def test_a_hangup_takes_no_half_that_does_not_hold_without_the_other(
    fresh_dsn: str, serve: Serve, configuration: Configuration
) -> None:
    gateway = serve("--config", configuration(whole(fresh_dsn)), "--migrate").listens()
    issued = gateway.discovered()
    known = '[identity]\nheader = "X-Caller"\nfrom = ["127.0.0.0/8"]\n'
    configuration(whole(fresh_dsn, known) + 'callers = ["*"]\n')
    (fault,) = reloaded(gateway, "reload_refused")["faults"]
    assert "callers" in fault
    assert "identity.header" in fault
    assert gateway.write(issued).status == 201
    assert gateway.stop() == 0


def test_a_hangup_with_a_faulty_file_keeps_the_settings_and_says_why(
    fresh_dsn: str, serve: Serve, configuration: Configuration
) -> None:
    gateway = serve("--config", configuration(whole(fresh_dsn)), "--migrate").listens()
    issued = gateway.discovered()
    configuration(whole(fresh_dsn, '[log]\nlevel = "loud"\n[limits]\nin_flight = 0\n'))
    fact = reloaded(gateway, "reload_refused")
    assert fact["level"] == "error"
    assert len(fact["faults"]) == 2
    assert any("log.level" in fault for fault in fact["faults"])
    assert gateway.write(issued).status == 201
    configuration(whole(fresh_dsn, '[log]\nlevel = "info"\n'))
    assert reloaded(gateway)["changed"] == []


def test_the_metrics_tell_what_happened(fresh_dsn: str, serve: Serve, configuration: Configuration) -> None:
    gateway = serve("--config", configuration(whole(fresh_dsn)), "--migrate").listens()
    token = gateway.discovered()
    assert gateway.write(token).status == 201
    assert gateway.ask("POST", "/v1/entries", {}).status == 428
    page = ask(gateway.admin, "GET", "/metrics").body.decode().splitlines()
    for line in (
        'fencing_checks_total{outcome="accepted",role="ledger"} 1.0',
        'fencing_rejections_total{reason="token_required",region="eu",role="ledger"} 1.0',
        'fencing_rejections_total{reason="stale_token",region="eu",role="ledger"} 0.0',
        'fencing_leader{node="gw-1",region="eu",role="ledger"} 1.0',
        f'fencing_token_issued{{role="ledger"}} {float(token)}',
        "fencing_store_up 1.0",
    ):
        assert line in page, line


def test_an_operator_can_make_it_resign(
    fresh_dsn: str, serve: Serve, configuration: Configuration, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-the-admin")
    path = configuration(whole(fresh_dsn, f'[admin]\ntoken_file = "{token}"\n'))
    gateway = serve("--config", path, "--migrate").listens()
    issued = gateway.discovered()
    bearer = {"Authorization": "Bearer a-token-of-the-admin"}
    assert ask(gateway.admin, "POST", "/-/roles/ledger/resign", **bearer).status == 200
    assert until("the seal", lambda: gateway.facts_of("term_sealed"))[-1]["known"] is True
    refused = gateway.write(issued)
    assert refused.headers["x-fencing-applied"] == "no"
    assert refused.status in (409, 503)
    assert ask(gateway.admin, "POST", "/-/roles/ledger/resign", **bearer).status == 409
