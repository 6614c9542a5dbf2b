"""What operators load: rules, runbooks and dashboard, by their own tools and before a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.telemetry.metrics import Metrics
from fencegate.telemetry.shares import Whole
from system.regions import brisk
from system.serving import Serving, ask, until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/fencegate.rules.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/fencegate.json").read_text())
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]

# A panel that shows only what goes wrong is empty while nothing does.
QUIET = re.compile(r"> 0$")


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (apt-get install prometheus)")
    return found


# -- by their own tools, and against our own metrics ------------------------------------------------


# Field case 103.
def test_promtool_takes_the_rules_and_each_alert_fires_and_stays_quiet_where_it_should() -> None:
    promtool = needs("promtool")
    for arguments in (
        ["check", "rules", str(RULES)],
        ["test", "rules", str(RULES.with_suffix("").with_suffix(".test.yml"))],
    ):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    promtool = needs("promtool")
    page = Metrics(["ledger"], node="gw-1", region="eu", backend="etcd", version="1").render()[1]
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_says_what_it_is_and_has_a_runbook_that_names_it(alert: dict[str, Any]) -> None:
    notes = alert["annotations"]
    assert notes["summary"]
    assert notes["description"]
    assert alert["labels"]["severity"] in ("page", "ticket")
    page = (ROOT / notes["runbook_url"]).read_text()
    assert f"`{alert['alert']}`" in page
    assert "## Look" in page
    assert "## Do" in page
    assert alert["alert"] in RULES.with_suffix("").with_suffix(".test.yml").read_text(), "never seen firing"


def test_every_runbook_belongs_to_an_alert_and_every_link_between_them_leads_somewhere() -> None:
    folder = ROOT / "docs/runbooks"
    assert {ROOT / alert["annotations"]["runbook_url"] for alert in ALERTS} == set(folder.glob("*.md"))
    for page in folder.glob("*.md"):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (folder / link.partition("#")[0]).is_file(), (page.name, link)


def test_rules_and_dashboard_ask_for_metrics_that_there_are() -> None:
    page = Whole(Metrics(["ledger"], node="gw-1", region="eu", backend="etcd", version="1")).render()[1].decode()
    asked = RULES.read_text() + json.dumps(DASHBOARD)
    names = [{_base(name) for name in re.findall(r"\bfencing_\w+", text)} for text in (page, asked)]
    assert names[1] == names[0], "asked for and not there, or there and looked at by nobody"


def _base(name: str) -> str:
    return re.sub(r"_(bucket|count|sum|total)$", "", name)


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "role"]
    first_row = [panel["title"] for panel in DASHBOARD["panels"] if panel["gridPos"]["y"] == 1]
    assert first_row[:2] == ["leader_count", "Rejections by reason"]
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["description"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


# -- a real Prometheus over two real gateways -------------------------------------------------------


class Prometheus:
    """A server of its own on loopback, every second where the shipped files say five."""

    def __init__(self, folder: Path, port: int, targets: list[str]) -> None:
        text = RULES.read_text()
        text = re.sub(r"for: \d+[sm]", "for: 2s", text).replace("interval: 5s", "interval: 1s")
        (folder / "fencegate.rules.yml").write_text(text)
        config = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.address = f"127.0.0.1:{port}"
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                needs("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query; none while the server is starting."""
        try:
            answer = ask(self.address, "GET", "/api/v1/query?" + urlencode({"query": expression}))
        except OSError:
            return []
        if answer.status == 503:
            return []
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.json["data"]["result"]
        return found

    def value(self, expression: str) -> float | None:
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        return {sample["metric"]["alertname"] for sample in self.query('ALERTS{alertstate="firing"}')}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self.log.close()


@pytest.fixture
def prometheus_at(tmp_path: Path, unused_ports: list[int]) -> Iterator[Callable[[list[str]], Prometheus]]:
    needs("prometheus")
    started: list[Prometheus] = []

    def start(targets: list[str]) -> Prometheus:
        started.append(Prometheus(tmp_path, unused_ports[0], targets))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.mark.timeout(180)
def test_through_a_lost_leader_the_alerts_fire_and_clear_and_every_panel_can_be_asked(
    serve: Callable[..., Serving],
    etcd: EmbeddedEtcd,
    fresh_prefix: str,
    fresh_dsn: str,
    make_postgres: Callable[..., EmbeddedPostgres],
    prometheus_at: Callable[[list[str]], Prometheus],
    tmp_path: Path,
) -> None:
    other = make_postgres(port=0)
    other.start_sync()
    eu = serve(*brisk("eu", fresh_dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()
    token = eu.leads()
    dr = serve(*brisk("dr", other.dsn, etcd.endpoints, fresh_prefix, tmp_path)).listens()
    assert eu.write(token).status == 201
    prometheus = prometheus_at([eu.admin, dr.admin])
    until("one leader", lambda: prometheus.value("leader_count") == 1)
    until("both scraped twice", lambda: prometheus.value("sum(min_over_time(up[3s]))") == 2)
    until("rates", lambda: prometheus.query("rate(fencing_checks_total[5s])"))

    empty = [title for title, asked in PANELS if not prometheus.query(filled(asked)) and not QUIET.search(asked)]
    assert not empty, "panels without a series while all is well"
    for _, asked in PANELS:
        prometheus.query(filled(asked))
    until("quiet", lambda: not prometheus.firing())

    other.freeze()  # so that nobody can succeed
    eu.signal(signal.SIGKILL)
    gone = "fencing_leader{region='eu'}"
    until("the dead leader's gauge to go", lambda: not prometheus.query(gone))
    until("the page", lambda: {"FencegateNoLeader", "FencegateStoreDown"} <= prometheus.firing())
    assert prometheus.value("leader_count") == 0
    assert "FencegateGatewayDown" in until("the ticket", prometheus.firing)

    other.thaw()
    dr.leads()
    until("the page to clear", lambda: not {"FencegateNoLeader", "FencegateStoreDown"} & prometheus.firing())
    assert prometheus.value("leader_count") == 1
    assert "FencegateTwoLeaders" not in prometheus.firing()


def filled(expression: str) -> str:
    """A panel's query with the dashboard's variables put in."""
    return expression.replace("$role", ".*").replace("$__rate_interval", "5s").replace("$__interval", "5s")
