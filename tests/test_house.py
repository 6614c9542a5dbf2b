"""The rules of the house: imports only go down, every module has its tests, the wheel is whole.

Each check runs the tool itself, so that what fails here fails for a contributor in the same words.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fencegate"

TESTED_IN: dict[str, str] = {
    "cli.asking": "unit/test_cli_handoff.py",
    "cli.drain": "unit/test_cli_handoff.py",
    "cli.seal": "unit/test_cli_handoff.py",
    "cli.status_view": "unit/test_cli_status.py",
    "election.sealing": "unit/test_election_drain.py",
    "gateway.actions": "integration/test_gateway_admin.py",
    "gateway.admin_connection": "integration/test_gateway_admin.py",
    "cli.diff": "integration/test_gameday_compare.py",
    "cli.demo_verdict": "unit/test_cli_demo.py",
    "cli.demo_view": "unit/test_cli_demo.py",
    "cli.doctor_checks": "unit/test_cli_doctor.py",
    "cli.doctor_election_checks": "unit/test_cli_doctor.py",
    "cli.doctor_findings": "unit/test_cli_doctor.py",
    "cli.doctor_transport_checks": "unit/test_cli_doctor.py",
    "cli.doctor_postgres_checks": "unit/test_cli_doctor.py",
    "cli.doctor_measures": "integration/test_cli_doctor.py",
    "cli.elect_term": "system/test_elect.py",
    "cli.elect_warden": "system/test_elect.py",
    "access.key_file": "unit/test_middleware_gatekeeper.py",
    "cli.data_plane": "system/test_serve_configured.py",
    "cli.wiring": "system/test_serve_configured.py",
    "cli.worker": "system/test_workers.py",
    "client.exchange": "integration/test_client_aio.py",
    "client.policy": "unit/test_client_machine.py",
    "client.term": "integration/test_client_leader.py",
    "client.loop_thread": "integration/test_client_sync.py",
    "election.consul_line": "integration/test_election_consul.py",
    "election.consul_agent": "integration/test_election_consul.py",
    "election.errands": "unit/test_election_elector.py",
    "election.etcd_txn": "contract/test_election_backends.py",
    "election.survey": "integration/test_cli_doctor.py",
    "election.postgres_records": "integration/test_election_postgres.py",
    "election.postgres_hints": "integration/test_election_postgres.py",
    "election.kubernetes_api": "integration/test_election_kubernetes.py",
    "steady_clock": "unit/test_election_elector.py",
    "election.sentinel_bounds": "integration/test_hostile_elections.py",
    "testing.hostile_server": "integration/test_hostile_elections.py",
    "election.zookeeper_calls": "integration/test_election_zookeeper.py",
    "election.zookeeper_link": "integration/test_election_zookeeper.py",
    "election.zookeeper_line": "integration/test_election_zookeeper.py",
    "gameday.chaos": "system/test_chaos.py",
    "gameday.loiterers": "system/test_load.py",
    "gameday.chaos_stage": "system/test_chaos.py",
    "gameday.clocks": "integration/test_gameday_breakage.py",
    "gameday.effects_upstream": "system/test_chaos_upstream.py",
    "gameday.measured": "system/test_chaos.py",
    "gameday.parts": "system/test_chaos.py",
    "gameday.private_network": "system/test_chaos_packets.py",
    "gameday.season": "system/test_chaos.py",
    "gameday.small_disk": "integration/test_gameday_breakage.py",
    "gameday.strikes.clock_step": "system/test_chaos_strikes.py",
    "gameday.strikes.contract": "unit/test_gameday_faults.py",
    "gameday.strikes.disk_full": "system/test_chaos_strikes.py",
    "gameday.strikes.failover": "system/test_chaos_strikes.py",
    "gameday.strikes.freeze": "system/test_chaos_strikes.py",
    "gameday.strikes.handoff": "system/test_chaos.py",
    "gameday.strikes.kill": "system/test_chaos_strikes.py",
    "gameday.strikes.kill_at_step": "system/test_chaos_strikes.py",
    "gameday.strikes.link": "system/test_chaos_strikes.py",
    "gameday.strikes.menu": "unit/test_gameday_faults.py",
    "gameday.strikes.packets_lost": "system/test_chaos_packets.py",
    "gameday.strikes.pooler": "system/test_chaos_strikes.py",
    "gameday.strikes.quorum_restored": "system/test_chaos_strikes.py",
    "gameday.strikes.read_only": "system/test_chaos_strikes.py",
    "gameday.strikes.sessions_gone": "system/test_chaos_strikes.py",
    "gameday.walk": "system/test_chaos_steps.py",
    "gameday.hammer": "system/test_chaos.py",
    "gameday.door": "system/test_demo.py",
    "gameday.regions": "system/test_demo.py",
    "cli.gameday_verdict": "unit/test_cli_gameday.py",
    "cli.rehearsing": "system/test_demo.py",
    "gameday.breakable": "system/test_gameday_scenarios.py",
    "gameday.embedded_stage": "system/test_gameday_scenarios.py",
    "gameday.stage": "system/test_gameday_scenarios.py",
    "gameday.standby": "system/test_gameday_scenarios.py",
    "gameday.report_html": "unit/test_gameday_report.py",
    "gameday.report_junit": "unit/test_gameday_report.py",
    "gameday.report_pictures": "unit/test_gameday_report.py",
    "gameday.watch": "system/test_demo.py",
    "gateway.granting": "contract/test_wire_grants.py",
    "gateway.limits": "contract/test_wire_refusals.py",
    "gateway.authz": "contract/test_wire_authz.py",
    "gateway.connection_flow": "contract/test_wire_connection.py",
    "gateway.cut_off": "contract/test_wire_connection.py",
    "gateway.edge_aiohttp": "contract/test_wire_refusals.py",
    "gateway.edge_connection": "contract/test_wire_refusals.py",
    "gateway.edge_parts": "contract/test_wire_framing.py",
    "gateway.edge_protocol": "contract/test_wire_connection.py",
    "gateway.envoy": "contract/test_wire_envoy.py",
    "gateway.envoy_messages": "contract/test_wire_envoy.py",
    "gateway.exchange": "contract/test_wire_refusals.py",
    "gateway.listener": "contract/test_wire_tls.py",
    "gateway.protocol_connection": "contract/test_wire_connection.py",
    "gateway.reply_bytes": "contract/test_wire_refusals.py",
    "gateway.ending": "contract/test_wire_field_cases.py",
    "gateway.targets.answers": "integration/test_gateway_targets_pool.py",
    "gateway.targets.function": "contract/test_wire_ledger.py",
    "gateway.targets.http": "contract/test_wire_http.py",
    "gateway.targets.ledger": "contract/test_wire_ledger.py",
    "gateway.targets.outcomes": "contract/test_wire_http.py",
    "gateway.targets.payload": "contract/test_wire_uploads.py",
    "gateway.targets.sending": "unit/test_gateway_targets_upstream.py",
    "gateway.targets.signing": "contract/test_wire_proof.py",
    "gateway.targets.traced_http": "contract/test_wire_traced.py",
    "gateway.traced": "contract/test_wire_traced.py",
    "gateway.traced_store": "contract/test_wire_traced.py",
    "gateway.targets.stored": "contract/test_wire_refusals.py",
    "store.admissions": "integration/store/test_forward.py",
    "store.copies": "integration/test_gameday_compare.py",
    "store.postgres": "integration/store/test_rules.py",
    "leadership.asking": "unit/test_leadership_machine.py",
    "leadership.handing": "unit/test_leadership_machine.py",
    "testing.etcd_snapshot": "system/test_restores.py",
    "testing.postgres_owner": "integration/test_gameday_breakage.py",
    "embedded.base_backup": "system/test_chaos_strikes.py",
    "testing.background": "unit/test_election_view.py",
    "testing.standby": "system/test_chaos_strikes.py",
    "testing.election_endurance": "contract/test_election_backends.py",
    "testing.election_faults": "contract/test_election_backends.py",
    "telemetry.tracing": "unit/test_telemetry_otel.py",
    "testing.spans": "contract/test_wire_traced.py",
    "testing.stalling_relay": "contract/test_election_backends.py",
    "election.followed_cluster": "contract/test_followed_sources.py",
    "election.installed": "unit/test_cli_elections.py",
    "election.shared_read": "unit/test_election_view.py",
    "election.zookeeper_followed": "contract/test_followed_backends.py",
    "testing.compiled_programs": "integration/test_plain_stacks.py",
    "testing.client_go": "integration/test_election_kubernetes.py",
    "testing.followed_suite": "contract/test_followed_sources.py",
    "testing.kafka_quorum": "integration/test_election_kafka.py",
    "testing.patroni_pair": "integration/test_election_patroni.py",
    "testing.redis_sentinels": "integration/test_election_redis_sentinel.py",
    "testing.tcp_link": "contract/test_followed_sources.py",
    "testing.tcp_server": "integration/test_election_kafka.py",
    "testing.waiting": "integration/test_election_patroni.py",
    "testing.election_handoffs": "contract/test_election_backends.py",
    "testing.election_rebases": "contract/test_election_backends.py",
    "testing.election_scene": "contract/test_election_backends.py",
    "testing.consul_agent": "integration/test_election_consul.py",
    "gateway.reply_stream": "contract/test_wire_http.py",
    "testing.election_suite": "contract/test_election_backends.py",
    "testing.faulty_http": "integration/test_election_http_endpoints.py",
    "testing.kubernetes_api": "integration/test_election_kubernetes.py",
    "testing.memory_election": "contract/test_election_backends.py",
    "testing.pgbouncer": "integration/test_cli_doctor.py",
    "testing.postgres_tls": "integration/store/test_tls.py",
    "testing.postgres_stage": "contract/test_wire_refusals.py",
    "testing.raw_http": "contract/test_wire_refusals.py",
    "testing.recording_upstream": "contract/test_wire_http.py",
    "testing.scripted_gate": "integration/test_client_aio.py",
    "testing.scripted_view": "unit/test_gateway_admission.py",
    "testing.wire_world": "contract/test_wire_refusals.py",
}
"""Modules without a test file of their name: the file whose tests go through them."""

LONGEST = 400
"""Lines of a module: at that size, ask what second job moved in."""


def modules() -> list[str]:
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return sorted(found)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def tracked() -> list[Path]:
    """The files of the project: what git knows, or everything in a tree that was unpacked without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    hidden = (".venv", ".git", "build", "dist")
    return [path for path in ROOT.rglob("*") if path.is_file() and not set(hidden) & set(path.parts)]


def test_imports_only_go_down() -> None:
    # Without its cache, so that a run reads what is there and writes nothing into the tree.
    done = run("-c", "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c(['--no-cache']))")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    done = run("-m", "ruff", "check", "--no-cache", ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_formatting_is_ruffs() -> None:
    done = run("-m", "ruff", "format", "--no-cache", "--check", ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_mypy_in_strict_mode_finds_nothing() -> None:
    done = run("-m", "mypy", "fencegate")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_its_tests() -> None:
    # tests/integration/store/test_ledger.py is as good as tests/unit/test_store_ledger.py.
    tests = set()
    for path in (ROOT / "tests").glob("*/**/test_*.py"):
        folders = path.relative_to(ROOT / "tests").parts[1:-1]
        tests.add("_".join((*folders, path.stem.removeprefix("test_"))))
    bare, needless = [], []
    for module in modules():
        name = module.removeprefix("fencegate.")
        parts = name.split(".")
        # One file for a whole folder will do as well.
        has_tests = any("_".join(parts[:count]) in tests for count in range(1, len(parts) + 1))
        if name in TESTED_IN:
            assert (ROOT / "tests" / TESTED_IN[name]).is_file(), TESTED_IN[name]
            needless += [name] if has_tests else []
        elif not has_tests:
            bare.append(name)
    assert not bare, f"without tests (write them, or name the file that has them in TESTED_IN): {', '.join(bare)}"
    assert not needless, f"with tests of their own (take them off TESTED_IN): {', '.join(needless)}"
    assert {f"fencegate.{name}" for name in TESTED_IN} <= set(modules())


@pytest.mark.parametrize("module", modules())
def test_no_module_has_grown_out_of_sight(module: str) -> None:
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    assert len(path.read_text().splitlines()) <= LONGEST


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert not [module for module in modules() if empty & set(module.split("."))]


THIRD_PARTY = {
    "asyncpg": ("fencegate/store/", "fencegate/election/postgres", "fencegate/testing/"),
    "kazoo": ("fencegate/election/zookeeper",),
    "redis": ("fencegate/election/redis_sentinel.py", "fencegate/testing/redis_sentinels.py"),
    "kafka": (),
    "patroni": (),
    "grpc": ("fencegate/election/etcd_grpc.py", "fencegate/gateway/envoy.py"),
    "envoy_data_plane": (),
    "etcd3": ("fencegate/election/etcd_grpc.py",),
    "aiohttp": (
        "fencegate/gateway/",
        "fencegate/console/",
        "fencegate/client/",
        "fencegate/election/",
        "fencegate/testing/",
    ),
    "prometheus_client": ("fencegate/telemetry/",),
    "opentelemetry": ("fencegate/telemetry/ot", "fencegate/testing/spans.py"),
    "pydantic": ("fencegate/config/",),
    "click": ("fencegate/cli/", "fencegate/gameday/"),
    "rich": ("fencegate/cli/", "fencegate/gameday/"),
}


@pytest.mark.parametrize("library", THIRD_PARTY)
def test_each_third_party_library_stays_in_its_place(library: str) -> None:
    pattern = re.compile(rf"^\s*(?:import|from) {library}\b", re.MULTILINE)
    users = [str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py") if pattern.search(p.read_text())]
    assert [user for user in users if not user.startswith(THIRD_PARTY[library])] == []


def test_the_project_names_no_machine_and_no_registry() -> None:
    # Spelt in pieces, or this file would name them itself.
    forbidden = [
        "/wor" + "k/",
        "/ro" + "ot/",
        "/ho" + "me/",
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "index-" + "url =",
    ]
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in forbidden if word in text]
    assert found == []


def test_the_lock_holds_exact_versions_of_every_dependency() -> None:
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9._-]+==[0-9][^ ]*( ; .+)?", line) for line in lines)
    locked = {line.split("==")[0] for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=;! ]", name)[0].lower() for name in wanted} - {"fencegate"}
    assert names <= locked


@pytest.mark.timeout(300)
def test_the_wheel_holds_the_migrations_the_types_and_the_licence(tmp_path: Path) -> None:
    done = run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licence = next(name for name in names if name.endswith("licenses/LICENSE"))
        assert "Apache License" in archive.read(licence).decode()
    folder = ROOT / "migrations"
    migrations = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.sql"))
    assert migrations
    assert sorted(name for name in names if name.endswith(".sql") and "_migrations" in name) == [
        f"fencegate/_migrations/{name}" for name in migrations
    ]
    assert "fencegate/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "migrations/"))]
    assert {f"{module.replace('.', '/')}.py" for module in modules()} <= set(names)


def test_migrations_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in (ROOT / "migrations").glob("*.sql"))
    assert [re.fullmatch(r"(\d{4})_[a-z]+_[a-z_]+\.sql", name) is not None for name in names] == [True] * len(names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
