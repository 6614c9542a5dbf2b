"""Settings become the parts that they mean, whole."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fencegate import observations
from fencegate.cli import elections, parts
from fencegate.config import Flag, Settings, parse
from fencegate.election.storeless import StorelessTerm
from fencegate.errors import ConfigurationError
from fencegate.gateway.caller import Allowed
from fencegate.gateway.granting import Granting
from fencegate.gateway.routes import RouteTable
from fencegate.key_ring import SharedKey
from fencegate.telemetry.logs import Logs
from fencegate.telemetry.senders import StaleSenders

TEXT = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"
[store]
dsn = "postgresql://localhost/ledger"
[limits]
header_bytes = 2048
connections = 5
connections_per_peer = 4
in_flight = 6
header_timeout = 1
body_timeout = 2
idle_timeout = 3
[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"
[[route]]
path = "/shards/{shard}/*"
role = "shards/{shard}"
members = 3
target = "http://upstream:9000/base/"
methods = ["PUT"]
idempotency = "required"
max_body_bytes = 7
timeout = 2.5
mode = "observe"
[[route]]
path = "/f"
role = "ledger"
target = "function:app.record_decision"
"""


def settings(*flags: tuple[str, str]) -> Settings:
    return parse(file=("F", TEXT), flags=[Flag("--set", key, text) for key, text in flags])


def test_routes_carry_every_key_and_hold_together_in_the_table() -> None:
    ledger, shards, function = parts.routes(settings())
    assert (ledger.target, ledger.argument, ledger.methods) == ("ledger", "", None)
    assert (function.target, function.argument) == ("function", "app.record_decision")
    assert (shards.target, shards.argument) == ("http", "http://upstream:9000/base")
    assert shards.methods == {"PUT"}
    assert shards.members == {"0", "1", "2"}
    assert (shards.idempotency, shards.max_body_bytes, shards.timeout, shards.mode) == ("required", 7, 2.5, "observe")
    table = RouteTable(parts.routes(settings()))
    match = table.match(("shards", "2", "x"))
    assert match is not None
    assert match.role == "shards/2"
    assert table.family_of("shards/2") == "shards/{shard}"


def test_limits_carry_every_key() -> None:
    found = parts.limits(settings())
    assert (found.header_bytes, found.connections, found.in_flight) == (2048, 5, 6)
    assert found.connections_per_peer == 4
    assert (found.header_timeout, found.body_timeout, found.idle_timeout) == (1, 2, 3)


async def test_campaigning_makes_an_elector_per_role_and_following_a_follower() -> None:
    for mode, electing in (("campaign", True), ("follow", False)):
        chosen = settings(("election.mode", mode))
        backend = elections.source(chosen, "postgresql://localhost/ledger")
        electors = parts.electors(chosen, backend, StorelessTerm(), observations.ignore)
        followers = parts.followers(chosen, backend, StorelessTerm(), observations.ignore)
        roles = ["ledger", "shards/0", "shards/1", "shards/2"]
        assert list(electors) == (roles if electing else [])
        assert (followers is None) if electing else (followers is not None and list(followers.by_role) == roles)
        for role, elector in electors.items():
            assert elector.role == role
            assert elector.candidate.url == "https://ledger.eu.example"
            assert elector.candidate.holder == "eu/gw-1"
        await backend.close()


def test_a_listener_that_fails_disturbs_neither_the_others_nor_the_observed() -> None:
    heard: list[observations.Observation] = []
    failures: list[Exception] = []

    def failing(observation: observations.Observation) -> None:
        raise ValueError("broken")

    fan = parts.Observers(failures.append, [failing, heard.append])
    fan(observations.KeysExpired(1))
    assert heard == [observations.KeysExpired(1)]
    assert [str(error) for error in failures] == ["broken"]


def test_a_listener_is_spared_what_it_does_not_hear() -> None:
    class Listener(list[observations.Observation]):
        hears = frozenset({observations.KeysExpired})
        __call__ = list.append

    some, every = Listener(), list[observations.Observation]()
    fan = parts.Observers(print, [some, every.append])
    for fact in (observations.KeysExpired(1), observations.StoreWentDown("gone"), observations.KeysExpired(2)):
        fan(fact)
    assert some == [observations.KeysExpired(1), observations.KeysExpired(2)]
    assert len(every) == 3


def test_what_comes_with_every_write_is_told_to_the_log_only_while_it_writes_such_lines() -> None:
    logger, lines = logging.getLogger("fencegate.test.parts"), io.StringIO()
    logger.propagate = False
    logger.addHandler(logging.StreamHandler(lines))
    logger.setLevel(logging.INFO)
    fan = parts.Observers(pytest.fail, [Logs(["ledger"], logger=logger)])
    accepted = observations.WriteAccepted("ledger", 42, False, 0.001)
    fan(accepted)
    logger.setLevel(logging.DEBUG)
    fan.ask_again()
    fan(accepted)
    fan(observations.KeysExpired(1))
    logger.setLevel(logging.INFO)
    fan.ask_again()
    fan(accepted)
    fan(observations.KeysExpired(1))
    assert lines.getvalue().split() == ["write_accepted", "keys_expired", "keys_expired"]


def test_a_route_with_a_key_file_signs_with_the_files_first_key(tmp_path: Path) -> None:
    file = tmp_path / "proof.keys"
    file.write_text(f"new {'n' * 32}\nold {'o' * 32}\n")
    proved = parse(file=("F", TEXT.replace("timeout = 2.5", f'timeout = 2.5\nproof_key_file = "{file}"')))
    assert [route.proof_key for route in parts.routes(proved)] == [None, SharedKey("new", b"n" * 32), None]
    file.write_text(f"next {'x' * 32}\n")
    assert parts.routes(proved)[1].proof_key == SharedKey("next", b"x" * 32)
    file.unlink()
    with pytest.raises(ConfigurationError, match="proof_key_file: cannot read"):
        parts.routes(proved)


def test_a_route_that_requires_grants_knows_every_key_and_takes_nobody_without_an_identity(tmp_path: Path) -> None:
    file = tmp_path / "grant.keys"
    file.write_text(f"new {'n' * 32}\nold {'o' * 32}\n")
    identity = '[identity]\nheader = "X-User"\nfrom = ["10.0.0.1"]\n'
    granting = f'timeout = 2.5\ngrant_key_file = "{file}"\ngrant_lifetime = 60\n'
    for mode, hands_out in (("campaign", True), ("follow", False)):
        text = TEXT.replace("timeout = 2.5", granting + 'grant = "required"')
        found = parse(file=("F", text + identity), flags=[Flag("--set", "election.mode", mode)])
        route = parts.routes(found)[1]
        keys = (SharedKey("new", b"n" * 32), SharedKey("old", b"o" * 32))
        assert route.granting == Granting(keys, required=True, hands_out=hands_out, lifetime=60.0)
        assert route.callers == Allowed(["*"])
        assert parts.routes(found)[0].granting is None
    offered = parts.routes(parse(file=("F", TEXT.replace("timeout = 2.5", granting) + identity)))[1]
    assert (offered.granting is not None and offered.granting.required, offered.callers) == (False, None)


def test_an_operators_listener_that_the_network_reaches_is_warned_of() -> None:
    assert parts.exposures(settings()) == []
    network = (("listen.admin", "0.0.0.0:8081"), ("admin.token_file", "/t"))
    clear, open_to_all = parts.exposures(settings(*network))
    assert "in the clear" in clear
    assert "[listen.tls]" in clear
    assert "admin.read_token_file" in open_to_all
    tls = (("listen.tls.cert", "/c"), ("listen.tls.key", "/k"), ("admin.read_token_file", "/r"))
    assert parts.exposures(settings(*network, *tls)) == []


def test_a_store_in_portability_mode_is_warned_of_by_its_table() -> None:
    assert parts.weaker(settings()) == []
    elsewhere = (("election.source", "etcd"), ("election.endpoints", "http://etcd-1:2379"))
    portable = settings(*elsewhere, ("store.portability", "true"), ("store.clock_offset", "0.5"))
    [sentence] = parts.weaker(portable)
    assert sentence.startswith("store: portability = true")
    assert "run fencegate rebase" in sentence


def test_spans_need_the_extra_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "fencegate.telemetry.otlp", raising=False)
    with pytest.raises(ConfigurationError) as raised:
        parts.tracing(settings(("otel.enabled", "true")))
    assert raised.value.faults == ["otel: tracing needs OpenTelemetry: pip install 'fencegate[otel]'"]
    assert parts.tracing(settings()) is None


@pytest.mark.parametrize("make", ["parts.tracing(settings)", "parts.envoy_authorizer(settings, None)"])
def test_who_else_needs_protobuf_leaves_the_choice_of_its_implementation_to_etcd3(make: str) -> None:
    text = TEXT + '[otel]\nenabled = true\n[envoy]\nlisten = "127.0.0.1:0"\n'
    text += '[election]\nsource = "etcd"\nclient = "etcd3"\nendpoints = ["http://etcd:2379"]\n'
    look = (
        "from fencegate.cli import parts\nfrom fencegate.config import parse\n"
        f"settings = parse(file=('F', {text!r}))\n{make}\nimport fencegate.election.etcd_grpc"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS")}
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_authorizer_over_grpc_needs_the_extra_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "fencegate.gateway.envoy", raising=False)
    gateway: Any = None  # It is not come by.
    with pytest.raises(ConfigurationError) as raised:
        parts.envoy_authorizer(settings(("envoy.listen", "127.0.0.1:9191")), gateway)
    assert raised.value.faults == ["envoy.listen: the gRPC authorizer needs gRPC: pip install 'fencegate[envoy]'"]
    assert parts.envoy_authorizer(settings(), gateway) is None


def test_where_nobody_asks_for_spans_or_for_grpc_nothing_of_them_is_imported() -> None:
    look = (
        "import sys, fencegate.cli.serve, fencegate.cli.worker, fencegate.client, fencegate.client.sync\n"
        "heavy = ('opentelemetry', 'fencegate.gateway.traced', 'grpc', 'google')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_sender_that_an_observing_route_lets_through_is_told_to_whoever_counts_senders() -> None:
    senders = StaleSenders()
    tell = parts.Observers(pytest.fail, [senders])
    tell(observations.WouldRefuse("ledger", "stale_token", 41, "10.0.0.7", "billing/3.1"))
    tell(observations.WriteRefused("ledger", "stale_token", 41, 42, "10.0.0.7", "billing/3.1"))
    (one,) = senders.document()
    assert (one["refused"], one["let_through"]) == (1, 1)


@pytest.mark.parametrize(("mode", "told"), [("campaign", True), ("follow", False)])
def test_a_gateway_that_only_follows_says_nothing_of_whether_it_leads(mode: str, told: bool) -> None:
    _, page = parts.metrics(settings(("election.mode", mode))).render()
    assert (b"\nfencing_leader{" in page) is told
    assert b'\nfencing_token_issued{role="ledger"} 0.0' in page
