"""What is in ``deploy/``: whole, and such that what it promises holds."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import kubernetes_validate
import pytest
import yaml
from envoy_data_plane.envoy.extensions.filters.http.ext_authz.v3 import ExtAuthz

from fencegate.cli.serve import serve
from fencegate.cli.supervisor import END_LIMIT
from fencegate.cli.wiring import LAST_SPANS, RESIGN_LIMIT
from fencegate.config import parse
from fencegate.embedded.postgres import EmbeddedPostgres

DEPLOY = Path(__file__).parents[1] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
LABELS = {"app.kubernetes.io/name": "fencegate"}


def manifests() -> Iterator[dict[str, Any]]:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {file.name for file in KUBERNETES.glob("*.yaml")}
    for name in listed:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def of_kind(kind: str, name: str = "fencegate") -> dict[str, Any]:
    (found,) = [m for m in manifests() if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_every_manifest_is_what_kubernetes_takes(version: str) -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_what_selects_the_gateways_selects_them_and_nothing_else() -> None:
    assert of_kind("Deployment")["spec"]["template"]["metadata"]["labels"] == LABELS
    assert of_kind("Deployment")["spec"]["selector"]["matchLabels"] == LABELS
    assert of_kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == LABELS
    assert of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == LABELS
    for name in ("fencegate", "fencegate-admin"):
        assert of_kind("Service", name)["spec"]["selector"] == LABELS


def test_the_upstream_is_reached_through_the_gate_only() -> None:
    policy = of_kind("NetworkPolicy", "upstream-only-behind-fencegate")["spec"]
    (rule,) = policy["ingress"]
    assert policy["policyTypes"] == ["Ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": LABELS}}]
    route = tomllib.loads((KUBERNETES / "fencegate.toml").read_text())["route"][0]
    assert route["target"].endswith(f":{rule['ports'][0]['port']}")


def test_the_elector_may_do_what_an_election_needs_and_can_never_delete_a_lease() -> None:
    rules = of_kind("Role")["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"create", "get", "list", "update", "watch"}
    assert all(rule["apiGroups"] == ["coordination.k8s.io"] and rule["resources"] == ["leases"] for rule in rules)
    (named,) = [rule for rule in rules if "update" in rule["verbs"]]
    roles = {route["role"] for route in tomllib.loads((KUBERNETES / "fencegate.toml").read_text())["route"]}
    assert set(named["resourceNames"]) == roles


def test_its_configuration_is_one_that_the_gateway_takes() -> None:
    container = of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]
    given = {entry["name"]: entry.get("value", "gw-1") for entry in container["env"]}
    given["FENCEGATE_STORE_DSN"] = "postgresql://u@h/d"
    # What the kubelet adds about each Service of the namespace that has an address of its own.
    for service in (m for m in manifests() if m["kind"] == "Service" and m["spec"].get("clusterIP") != "None"):
        name, (port,) = service["metadata"]["name"].upper().replace("-", "_"), service["spec"]["ports"]
        given |= {f"{name}_SERVICE_HOST": "10.96.0.7", f"{name}_PORT": f"tcp://10.96.0.7:{port['port']}"}
        given |= {f"{name}_SERVICE_PORT_{port['name'].upper()}": str(port["port"])}
    path = KUBERNETES / "fencegate.toml"
    settings = parse(file=(str(path), path.read_text()), environment=given)
    assert settings.listen.data.endswith(f":{container['ports'][0]['containerPort']}")
    assert settings.listen.admin.endswith(f":{container['ports'][1]['containerPort']}")
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert any(str(settings.admin.token_file).startswith(mount) for mount in mounts)


def test_it_renders_where_kubectl_is_there() -> None:
    kubectl = shutil.which("kubectl")
    command = [kubectl, "kustomize", str(KUBERNETES)] if kubectl else ["true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if kubectl:
        kinds = sorted(m["kind"] for m in yaml.safe_load_all(done.stdout))
        assert kinds == sorted([*(m["kind"] for m in manifests()), "ConfigMap"])


def test_what_the_pages_say_to_envoy_is_in_its_own_words_and_in_none_that_it_gives_up() -> None:
    pages = (DEPLOY.parent / "docs" / "authorizer.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", pages, re.DOTALL)]
    filters = [each["typed_config"] for block in blocks for each in block.get("http_filters", ())]
    assert len(filters) == 2
    for told in filters:
        assert told.pop("@type").endswith(".ext_authz.v3.ExtAuthz")
        read = ExtAuthz.from_dict(_in_json(told))  # a field that it does not know, or that is deprecated, is an error
        assert not read.failure_mode_allow


def _in_json(told: object) -> Any:
    if isinstance(told, dict):
        return {re.sub(r"_(.)", lambda found: found[1].upper(), key): _in_json(value) for key, value in told.items()}
    return [_in_json(each) for each in told] if isinstance(told, list) else told


def test_the_systemd_unit_is_sound_and_well_closed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    unit = tmp_path / "fencegate.service"
    text = (DEPLOY / "systemd" / "fencegate.service").read_text()
    assert "Type=notify" in text
    assert "WatchdogSec=" in text
    unit.write_text(text.replace("/opt/fencegate/bin/fencegate", "/bin/true"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    offline = [analyze, "security", "--offline=yes", "--threshold=20", str(unit)]
    done = subprocess.run(offline, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_compose_file_is_whole_and_its_services_know_one_another() -> None:
    """Its engine is not at hand where the tests run: what is looked at here is what can be looked at without."""
    root = DEPLOY.parent
    compose = yaml.safe_load((root / "docker-compose.yml").read_text())
    services = compose["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            assert (root / volume.split(":")[0]).exists(), volume
        assert set(service.get("depends_on", ())) <= set(services), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "for trying out: nothing is offered to others"
    targets = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"]
    assert {target.split(":")[0] for target in targets[0]["targets"]} <= set(services)

    path = DEPLOY / "compose" / "fencegate.toml"
    for name in ("gateway-eu", "gateway-dr"):
        settings = parse(file=(str(path), path.read_text()), environment=services[name]["environment"])
        assert set(settings.rehearsals) == {"canary"}
        members = {endpoint.split("//")[1].split(":")[0] for endpoint in settings.election.endpoints}
        assert members <= set(services)


def test_a_gateway_is_killed_nowhere_before_its_orderly_end_is_over() -> None:
    grace = next(option.default for option in serve.params if option.name == "grace")
    needed = grace + END_LIMIT + RESIGN_LIMIT + LAST_SPANS
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]
    unit = (DEPLOY / "systemd" / "fencegate.service").read_text()
    given = {
        "kubernetes": of_kind("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"],
        "systemd": int(unit.partition("TimeoutStopSec=")[2].split()[0]),
        **{name: int(compose[name]["stop_grace_period"].removesuffix("s")) for name in ("gateway-eu", "gateway-dr")},
    }
    assert {name: seconds for name, seconds in given.items() if seconds < needed} == {}


async def test_a_primary_of_the_compose_file_is_made_before_it_has_a_standby_and_waits_for_one_from_then_on(
    tmp_path: Path,
) -> None:
    """The image gives a service's options to the server that makes the database, and then runs the scripts."""
    service = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())["services"]["postgres-eu"]
    options = dict(word.split("=", 1) for word in service.get("command", ()) if "=" in word)
    async with EmbeddedPostgres(tmp_path / "primary", settings=options) as server:
        connection = await asyncpg.connect(server.dsn)
        await asyncio.wait_for(connection.execute("CREATE DATABASE ledger"), 20)
        await connection.close()
        environment = os.environ | {"PGDATA": str(tmp_path / "primary" / "data")}
        subprocess.run(["bash", DEPLOY / "compose" / "allow-standbys.sh"], env=environment, check=True)
        await server.restart()
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("SHOW synchronous_standby_names") == "*"
        await connection.close()
