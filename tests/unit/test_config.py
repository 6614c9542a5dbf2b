"""Settings: precedence, every fault at once with its origin, and secrets that stay secret."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fencegate
from fencegate.config import Flag, Settings, Target, differences, faults_of_halves, parse, role_members, taken
from fencegate.config.layers import RESERVED, from_text, keys, line_numbers
from fencegate.config.parsing import FLAGS, shown
from fencegate.config.settings import NOT_YET
from fencegate.errors import ConfigurationError

GOOD = """\
node = "gw-1"
region = "eu"
advertise = "https://ledger.eu.example"

[store]
dsn = "postgresql://fencegate@localhost/ledger"

[election]
source = "etcd"
endpoints = ["http://etcd-1:2379", "http://etcd-2:2379", "http://etcd-3:2379"]
lease_duration = 15
renew_deadline = 10
retry_period = 2

[[route]]
path = "/v1/entries"
role = "ledger"
target = "ledger"

[[route]]
path = "/shards/{shard}/*"
role = "ledger/{shard}"
members = ["eu-1", "eu-2"]
target = "http://ledger-upstream:9000"
idempotency = "required"
"""


def settings(text: str = GOOD, **more: object) -> Settings:
    return parse(file=("F", text), **more)  # type: ignore[arg-type]


def faults(text: str = GOOD, **more: object) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settings(text, **more)
    return caught.value.faults


def with_line(line: str, table: str = "") -> str:
    """GOOD with one more line, at the top or under a table's header."""
    return GOOD.replace(f"[{table}]", f"[{table}]\n{line}", 1) if table else f"{line}\n{GOOD}"


def without(line_start: str) -> str:
    return "\n".join(line for line in GOOD.splitlines() if not line.startswith(line_start))


def route(**keys_of_it: str) -> str:
    base = {"path": '"/x"', "role": '"ledger"', "target": '"ledger"'} | keys_of_it
    return GOOD + "\n[[route]]\n" + "\n".join(f"{name} = {value}" for name, value in base.items() if value)


def test_the_minimal_configuration_is_taken_as_it_stands() -> None:
    found = settings()
    assert (found.node, found.region, found.advertise) == ("gw-1", "eu", "https://ledger.eu.example")
    assert found.listen.data == "127.0.0.1:8080"
    assert found.listen.admin == "127.0.0.1:8081"
    assert found.election.timings.faults() == []
    assert found.idempotency.keep == 86400
    assert found.election.store_mode == "lease"
    assert found.families == ["ledger", "ledger/{shard}"]
    assert found.roles == ["ledger", "ledger/eu-1", "ledger/eu-2"]
    assert found.route[1].parsed_target == Target("http", "http://ledger-upstream:9000")


def test_every_key_of_the_language_is_accepted_together() -> None:
    text = (
        ("workers = 3\n" + GOOD)
        .replace("http://etcd-", "https://etcd-")
        .replace("http://ledger-upstream", "https://ledger-upstream")
        .replace(
            'source = "etcd"',
            'source = "etcd"\nmode = "campaign"\nclient = "json"\nprefix = "/f"\nusername = "u"\n'
            'password_file = "/p"\nmargin = 2\nstrict_wait = true\nholders = ["eu/*", "pg-1"]',
        )
        + 'methods = ["POST", "PUT"]\nmax_body_bytes = 5\ntimeout = 2.5\nmode = "observe"\n'
        + "".join(
            f'[{table}.tls]\nca = "/ca"\ncert = "/c"\nkey = "/k"\nserver_name = "inside.example"\n'
            for table in ("store", "election", "upstream")
        )
        + '[admin]\ntoken_file = "/t"\nread_token_file = "/r"\n'
        + "[limits]\nheader_bytes = 2048\nconnections = 5\nin_flight = 6\nheader_timeout = 1\nbody_timeout = 2\n"
        + 'idle_timeout = 3\n[idempotency]\nkeep = 3600\n[log]\nformat = "json"\nlevel = "debug"\n'
        + '[listen]\ndata = "[::1]:1"\nadmin = "127.0.0.1:0"\n'
        + '[listen.tls]\ncert = "/c"\nkey = "/k"\nclient_ca = "/ca"\nclient = "data"\n'
        + '[otel]\nenabled = false\nendpoint = "http://collector:4318"\nservice_name = "gate"\nsample_ratio = 0.1\n'
    )
    envoy = '[envoy]\nlisten = "127.0.0.1:9191"\nrole = "ledger"\n'
    assert settings(text.replace("workers = 3", "workers = 1") + envoy).envoy.role == "ledger"
    found = settings(text)
    assert found.election.strict_wait
    assert found.election.holders == ["eu/*", "pg-1"]
    assert found.election.margin == 2
    assert found.route[1].timeout == 2.5
    assert found.route[1].methods == ["POST", "PUT"]


def test_spans_are_sent_where_an_endpoint_is_set_or_they_are_asked_for() -> None:
    assert not settings().otel.on
    assert settings(GOOD + '[otel]\nendpoint = "https://collector.example/otlp"\n').otel.on
    assert not settings(GOOD + '[otel]\nendpoint = "http://c:4318"\nenabled = false\n').otel.on
    assert settings(environment={"FENCEGATE_OTEL_ENABLED": "true", "OTEL_SERVICE_NAME": "gate"}).otel.on


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("endpoint", '"collector:4317"', "expected an http:// or https:// URL"),
        ("endpoint", '"grpc://collector:4317"', "expected an http:// or https:// URL"),
        ("endpoint", '"http://c:4318/?key=s3cret"', "expected an http:// or https:// URL"),
        ("endpoint", '"https://u:s3cret@c"', "OTEL_EXPORTER_OTLP_HEADERS"),
        ("sample_ratio", "1.5", "expected a number of 0 to 1"),
        ("sample_ratio", "-0.1", "expected a number of 0 to 1"),
        ("service_name", '""', "expected a name"),
        ("enabled", '"yes"', "expected true or false"),
    ],
)
def test_a_wrong_word_about_spans_is_refused_by_name(key: str, value: str, words: str) -> None:
    (fault,) = faults(GOOD + f"[otel]\n{key} = {value}\n")
    assert fault.startswith(f"otel.{key}")
    assert words in fault


@pytest.mark.parametrize(
    ("before", "table", "words"),
    [
        ("", 'role = "ledger"', "expected envoy.listen with it"),
        ("", 'listen = "127.0.0.1:9191"\nrole = "ledger/eu-9"', "expected a role of a [[route]]"),
        ("", 'listen = "127.0.0.1:8080"', "expected another address"),
        ("workers = 2\n", 'listen = "127.0.0.1:9191"', "expected 1 together with envoy.listen"),
        ("", 'listen = "0.0.0.0:9191"\n[listen.tls]\ncert = "/c"\nkey = "/k"', "expected a loopback address"),
        ("", 'listen = "9191"', "expected host:port"),
    ],
)
def test_a_listener_for_envoy_that_makes_no_sense_is_refused(before: str, table: str, words: str) -> None:
    (fault,) = faults(before + GOOD + f"[envoy]\n{table}\n")
    assert words in fault


def test_a_variable_beats_the_file_and_a_flag_beats_both() -> None:
    environment = {"FENCEGATE_NODE": "from-env", "FENCEGATE_REGION": "us", "PATH": "/bin"}
    found = settings(environment=environment, flags=[Flag("--node", "node", "from-flag")])
    assert (found.node, found.region) == ("from-flag", "us")


def test_the_last_of_two_flags_for_one_key_wins() -> None:
    assert settings(flags=[Flag("--node", "node", "a"), Flag("--set", "node", "b")]).node == "b"


def test_variables_and_flags_carry_numbers_lists_and_booleans() -> None:
    environment = {
        "FENCEGATE_ELECTION_LEASE_DURATION": "20.5",
        "FENCEGATE_ELECTION_ENDPOINTS": "http://a:1, http://b:2",
        "FENCEGATE_LIMITS_IN_FLIGHT": "7",
    }
    found = settings(environment=environment, flags=[Flag("--set", "election.strict_wait", "true")])
    assert found.election.lease_duration == 20.5
    assert found.election.endpoints == ["http://a:1", "http://b:2"]
    assert found.limits.in_flight == 7
    assert found.election.strict_wait is True


def test_reserved_variables_are_no_settings() -> None:
    assert settings(environment=dict.fromkeys(RESERVED, "anything")).node == "gw-1"


def test_every_key_has_a_variable_of_its_own() -> None:
    names = [key.replace(".", "_").upper() for key in keys()]
    assert len(set(names)) == len(names)
    assert not {f"FENCEGATE_{name}" for name in names} & RESERVED
    package = Path(fencegate.__file__).parent
    read = {name for path in package.rglob("*.py") for name in re.findall(r"FENCEGATE_[A-Z_]*[A-Z]", path.read_text())}
    assert read <= RESERVED | {f"FENCEGATE_{name}" for name in names}
    assert set(FLAGS) <= set(keys())


def test_an_unknown_variable_is_a_fault_with_the_nearest_name() -> None:
    (fault,) = faults(environment={"FENCEGATE_ELECTON_SOURCE": "etcd"})
    assert fault == "variable FENCEGATE_ELECTON_SOURCE: no such setting; did you mean FENCEGATE_ELECTION_SOURCE?"


def test_a_name_that_was_left_half_written_is_recognized() -> None:
    (fault,) = faults(environment={"FENCEGATE_ELECTION_LEASE": "20"})
    assert fault.endswith("did you mean FENCEGATE_ELECTION_LEASE_DURATION?")


def test_a_table_is_no_key() -> None:
    (fault,) = faults(flags=[Flag("--set", "election", "etcd")])
    assert fault == "flag --set: expected a key of the table election, such as election.source"


@pytest.mark.parametrize("text", ['["http://a:1", "http://b:2"]', "['http://a:1']", " [http://a:1] "])
def test_a_list_in_the_way_of_the_file_is_told_that_it_takes_commas(text: str) -> None:
    (fault,) = faults(flags=[Flag("--set", "election.endpoints", text)])
    assert fault == (
        "election.endpoints: expected its values with commas between them, no brackets or quotes "
        "(flag --set election.endpoints)"
    )
    unset = re.sub(r"endpoints = .*\n", "", GOOD)
    (fault,) = faults(unset, environment={"FENCEGATE_ELECTION_ENDPOINTS": text})
    assert fault.endswith("no brackets or quotes (variable FENCEGATE_ELECTION_ENDPOINTS)")


def test_the_brackets_of_an_address_are_none_of_a_list() -> None:
    given = [Flag("--set", "election.source", "zookeeper"), Flag("--set", "election.endpoints", "[::1]:1, [::2]:2")]
    assert settings(flags=given).election.endpoints == ["[::1]:1", "[::2]:2"]


def test_an_unknown_flag_key_is_a_fault_with_the_nearest_name() -> None:
    (fault,) = faults(flags=[Flag("--set", "store.dns", "postgresql://u:secret@h/d")])
    assert fault == "flag --set: no setting store.dns; did you mean store.dsn?"


def test_a_route_cannot_be_set_by_a_flag_and_the_fault_says_where() -> None:
    (fault,) = faults(flags=[Flag("--set", "route.0.path", "/x")])
    assert "routes are set in the file" in fault


def test_an_unknown_key_in_the_file_names_its_line_and_the_nearest_key() -> None:
    assert faults(with_line('regon = "eu"')) == ["regon: no such key; did you mean region? (file F, line 1)"]
    (fault,) = faults(with_line("lease_durration = 1", "election"))
    assert fault.startswith("election.lease_durration: no such key; did you mean lease_duration? (file F, line 9)")


def test_what_kubernetes_tells_a_pod_of_a_service_called_fencegate_is_no_setting() -> None:
    environment = {
        "FENCEGATE_SERVICE_HOST": "10.96.0.7",
        "FENCEGATE_SERVICE_PORT": "8080",
        "FENCEGATE_SERVICE_PORT_DATA": "8080",
        "FENCEGATE_PORT": "tcp://10.96.0.7:8080",
        "FENCEGATE_PORT_8080_TCP": "tcp://10.96.0.7:8080",
        "FENCEGATE_PORT_8080_TCP_PROTO": "tcp",
        "FENCEGATE_PORT_8080_TCP_PORT": "8080",
        "FENCEGATE_PORT_8080_TCP_ADDR": "10.96.0.7",
        "FENCEGATE_ADMIN_SERVICE_HOST": "10.96.0.8",
        "FENCEGATE_ADMIN_PORT": "tcp://10.96.0.8:8081",
    }
    assert settings(environment=environment).node == "gw-1"
    (fault,) = faults(environment=environment | {"FENCEGATE_PORTS": "8080"})
    assert fault.startswith("variable FENCEGATE_PORTS: no such setting")
    # Without a Service they are somebody's mistake.
    (fault,) = faults(environment={"FENCEGATE_PORT": "8080"})
    assert fault.startswith("variable FENCEGATE_PORT: no such setting")


def test_a_fault_names_key_value_expectation_and_origin() -> None:
    (fault,) = faults(environment={"FENCEGATE_LIMITS_IN_FLIGHT": "many"})
    assert fault == (
        'limits.in_flight = "many": expected a whole number of 1 to 1000000 (variable FENCEGATE_LIMITS_IN_FLIGHT)'
    )


def test_all_faults_of_all_sources_come_at_once() -> None:
    text = GOOD.replace('region = "eu"', "").replace('target = "ledger"', 'target = "ledgr"')
    text = text.replace("lease_duration = 15", "lease_duration = 5")
    found = faults(text, environment={"FENCEGATE_X": "1"}, flags=[Flag("--admin", "listen.admin", "0.0.0.0:1")])
    for part in ("FENCEGATE_X", "region: missing", "[[route]] 1 target", "renew_deadline", "admin.token_file"):
        assert any(part in fault for fault in found), part


def test_a_faulty_route_does_not_hide_nor_renumber_the_faults_of_the_others() -> None:
    text = GOOD.replace('target = "ledger"', 'target = "ledgr"') + 'methods = ["get"]\n'
    text += '[[route]]\npath = "/y"\nrole = "y/{z}"\ntarget = "ledger"\n'
    found = faults(text)
    assert any(fault.startswith("[[route]] 1 target") for fault in found)
    assert any(fault.startswith("[[route]] 2 methods") for fault in found)
    assert any(fault.startswith("[[route]] 3 role") and "expected {z} in the path" in fault for fault in found)


def test_a_missing_key_says_all_three_ways_to_set_it() -> None:
    (fault,) = faults(without("node"))
    assert "set node in the file, FENCEGATE_NODE, or --node" in fault


def test_text_that_is_not_toml_is_one_fault_with_its_place() -> None:
    (fault,) = faults("node = \n")
    assert fault.startswith("file F: expected TOML: ")
    assert "line 1" in fault
    _, other = faults("node = \n", environment={"FENCEGATE_WORKERS": "many"})
    assert other == 'workers = "many": expected a whole number of 1 to 64 (variable FENCEGATE_WORKERS)'


@pytest.mark.parametrize("secret", ["s3cret", "p@ss/w:rd"])
def test_no_fault_ever_shows_the_password_of_a_dsn(secret: str) -> None:
    dsn = f"mysql://user:{secret}@host/db?password={secret}"
    for path in ("store", "election", "peer"):
        for fault in faults(GOOD.replace(f"[{path}]", "[zzz]") + f'\n[{path}]\ndsn = "{dsn}"\n'):
            assert secret not in fault
    for fault in faults(environment={"FENCEGATE_STORE_DSN": f"password={secret} host=x"}):
        assert secret not in fault
    for fault in faults(GOOD.replace("http://etcd-1", f"http://u:{secret}@etcd-1")):
        assert secret not in fault


@given(st.text(alphabet=st.characters(codec="ascii", exclude_characters=' \t\n\r\v\f\x1c\x1d\x1e\x1f&"?#'), min_size=6))
def test_whatever_the_password_it_is_masked(secret: str) -> None:
    assert f":{secret}@" not in shown("store.dsn", f"postgresql://user:{secret}@host/ledger")


def test_a_misspelt_choice_suggests_the_right_one() -> None:
    (fault,) = faults(GOOD + '[log]\nlevel = "warn"\n')
    assert "expected debug, info, warning or error; did you mean warning?" in fault


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/path",
        "https://a.example?x",
        "ftp://a.example",
        "a.example",
        "https://u@a.example",
        "https://a.example:0",
        "https://a.example:99999",
        "https://",
        "https://exämple.org",
        "",
    ],
)
def test_advertise_is_an_origin_and_nothing_else(text: str) -> None:
    (fault,) = faults(GOOD.replace("https://ledger.eu.example", text))
    assert fault.startswith("advertise = ")


def test_advertise_is_kept_lower_case_without_a_trailing_slash() -> None:
    found = settings(GOOD.replace("https://ledger.eu.example", "https://Ledger.EU.example:8443/"))
    assert found.advertise == "https://ledger.eu.example:8443"


@pytest.mark.parametrize("address", ["8080", ":8080", "::1:8080", "h:http", "h:70000", "h:", "h:٣"])
def test_a_malformed_address_is_refused(address: str) -> None:
    (fault,) = faults(flags=[Flag("--data", "listen.data", address)])
    assert fault.startswith("listen.data = ")
    assert fault.endswith("(flag --data)")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "gateway.example:1"])
def test_an_admin_listener_that_a_network_can_reach_needs_a_token_file(address: str) -> None:
    assert "admin.token_file" in faults(flags=[Flag("--admin", "listen.admin", address)])[0]
    flags = [Flag("--admin", "listen.admin", address), Flag("--set", "admin.token_file", "/t")]
    assert settings(flags=flags).listen.admin == address


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_an_admin_listener_on_loopback_needs_no_token(address: str) -> None:
    assert settings(flags=[Flag("--admin", "listen.admin", address)]).listen.admin == address


def test_both_listeners_on_one_address_are_refused() -> None:
    (fault,) = faults(flags=[Flag("--admin", "listen.admin", "127.0.0.1:8080")])
    assert "another address than listen.data" in fault


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lease_duration", "10", "must be more than renew_deadline"),
        ("retry_period", "9", "must be more than retry_period"),
        ("margin", "6", "the store closes before the elector gives up"),
    ],
)
def test_timings_that_do_not_hold_together_are_refused(name: str, value: str, words: str) -> None:
    found = faults(flags=[Flag("--set", f"election.{name}", value)])
    assert any(words in fault for fault in found)
    assert any(f"flag --set election.{name}" in fault for fault in found)


@pytest.mark.parametrize(("value"), ["0", "-1", "nan", "inf", "1e3", "true", "15s"])
def test_a_duration_is_a_plain_number_of_seconds(value: str) -> None:
    (fault,) = faults(flags=[Flag("--set", "election.lease_duration", value)])
    assert "expected a number of seconds" in fault


@pytest.mark.parametrize("value", ["true", '"15"', "nan", "inf", "[1]"])
def test_a_duration_in_the_file_is_a_number_and_no_other_type(value: str) -> None:
    (fault,) = faults(GOOD.replace("lease_duration = 15", f"lease_duration = {value}"))
    assert fault.startswith("election.lease_duration")
    assert "expected a number of seconds" in fault


@pytest.mark.parametrize("value", ["-1", "60001", "1.5", "true", '"500"'])
def test_a_hold_is_a_whole_number_of_milliseconds_up_to_a_minute(value: str) -> None:
    (fault,) = faults(GOOD.replace('target = "ledger"', f'target = "ledger"\nhold_ms = {value}'))
    assert "hold_ms = " in fault
    assert "expected a whole number of milliseconds, 0 to 60000" in fault


def test_a_held_write_and_its_body_still_have_the_time_they_need() -> None:
    held = GOOD.replace('target = "ledger"', 'target = "ledger"\nhold_ms = 5000\ntimeout = 5')
    (fault,) = faults(held)
    assert "expected less than the route's timeout, 5 s" in fault
    assert settings(held.replace("timeout = 5", "timeout = 6")).route[0].hold_ms == 5000
    late = [Flag("--set", "limits.body_timeout", "9")]
    (fault,) = faults(held.replace("timeout = 5", "timeout = 6"), flags=late)
    assert "expected at most half of limits.body_timeout, 9 s" in fault


CANARY = '[[route]]\npath = "/v1/canary"\nrole = "canary"\ntarget = "ledger"\nrehearsal = true\n'


def test_a_role_is_for_rehearsals_only_where_a_route_says_so() -> None:
    assert settings().rehearsals == {}
    assert settings(GOOD + CANARY).rehearsals == {"canary": "/v1/canary"}
    family = CANARY.replace("/v1/canary", "/v1/{shard}").replace('"canary"', '"canary/{shard}"')
    assert settings(GOOD + family + "members = 2\n").rehearsals == {"canary/0": "/v1/0", "canary/1": "/v1/1"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('target = "ledger"', 'target = "http://upstream:9000"', "judged by the ledger's entries"),
        ("/v1/canary", "/{any}/canary", "must know where to write"),
        ('role = "canary"', 'role = "ledger"', "expected false, as [[route]] 1 says of the role ledger"),
        ("rehearsal = true", "rehearsal = 1", "expected true or false"),
    ],
)
def test_a_rehearsal_that_could_not_be_judged_or_would_take_a_real_role_is_refused(
    old: str, new: str, expected: str
) -> None:
    assert any(expected in fault and "rehearsal" in fault for fault in faults(GOOD + CANARY.replace(old, new)))


@pytest.mark.parametrize("key", sorted(NOT_YET))
def test_a_key_without_a_feature_is_refused_and_says_so(key: str) -> None:
    table, _, name = key.rpartition(".")
    text = route(role='"other"', **{name: '"x"'}) if table == "route" else f'{GOOD}\n[{key}]\ncert = "/c"\n'
    (fault,) = faults(text)
    assert NOT_YET[key] in fault
    assert "(file F, line " in fault


def test_a_variable_for_a_key_without_a_feature_is_refused_too() -> None:
    (fault,) = faults(environment={"FENCEGATE_PEER_DSN": "postgresql://u:secret@h/d"})
    assert fault.endswith("(variable FENCEGATE_PEER_DSN)")
    assert "not in this version" in fault
    assert "secret" not in fault


SENTINEL = """source = "redis-sentinel"
mode = "follow"
cluster = "mymaster"
endpoints = ["s-1:26379", "s-2:26379", "s-3:26379"]
"""
PATRONI = """source = "patroni"
mode = "follow"
cluster = "batman"
endpoints = ["http://pg-1:8008"]
dcs = ["http://etcd-1:2379"]
"""
KAFKA = 'source = "kafka"\nmode = "follow"\nendpoints = ["kafka-1:9092"]\n'


def followed(table: str) -> str:
    return re.sub(r'source = "etcd"\nendpoints = .*\n', table, GOOD)


def test_the_systems_that_elect_for_themselves_are_taken() -> None:
    assert settings(followed(SENTINEL)).election.cluster == "mymaster"
    assert settings(followed(PATRONI)).election.key_prefix == "/service"
    assert settings(followed(PATRONI + 'prefix = "/ours"\n')).election.key_prefix == "/ours"
    assert settings(followed(KAFKA)).election.store_mode == "token"
    assert settings().election.key_prefix == "/fencegate"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (SENTINEL.replace("follow", "campaign"), 'election.mode = "campaign": expected "follow" with redis-sentinel'),
        (SENTINEL.replace('cluster = "mymaster"\n', ""), "election.cluster: missing"),
        (SENTINEL.replace("s-1:26379", "http://s-1"), "every sentinel, such as sentinel-1:26379"),
        (SENTINEL + 'prefix = "/x"\n', "has no keys"),
        (SENTINEL + 'dcs = ["http://e:1"]\n', 'expected only with election.source = "patroni"'),
        (PATRONI.replace('dcs = ["http://etcd-1:2379"]\n', ""), "election.dcs: missing"),
        (PATRONI.replace("http://etcd-1:2379", "etcd-1:2379"), "the etcd that Patroni keeps its leader key in"),
        (PATRONI.replace("http://pg-1:8008", "pg-1:8008"), "Patroni's REST API"),
        (KAFKA + 'cluster = "c"\n', 'expected only with election.source = "patroni" or "redis-sentinel"'),
        (KAFKA + 'username = "u"\npassword_file = "/p"\n', "SASL is not in this version"),
        (KAFKA.replace('endpoints = ["kafka-1:9092"]\n', ""), "brokers or controllers"),
        (KAFKA.replace('"kafka"', '"installed:"'), "installed:NAME for an election of another package"),
    ],
)
def test_what_a_followed_system_needs_is_said_by_name(table: str, said: str) -> None:
    (fault,) = faults(followed(table))
    assert said in fault


def test_an_election_of_another_package_takes_what_it_likes() -> None:
    table = 'source = "installed:mine"\nendpoints = ["a:1", "http://b:2"]\ncluster = "c"\nusername = "u"\n'
    found = settings(followed(table + 'password_file = "/p"\n')).election
    assert (found.installed, found.cluster) == ("mine", "c")
    assert settings().election.installed is None


def test_zookeeper_takes_hosts_and_ports_and_etcd_takes_origins() -> None:
    hosts = re.sub(r"endpoints = .*", 'endpoints = ["zk-1:2181", "[::1]:2181"]', GOOD.replace('"etcd"', '"zookeeper"'))
    assert settings(hosts).election.endpoints == ["zk-1:2181", "[::1]:2181"]
    assert "zk-1:2181" in faults(GOOD.replace('"etcd"', '"zookeeper"'))[0]
    assert "http://etcd-1:2379" in faults(hosts.replace('"zookeeper"', '"etcd"'))[0]


def test_the_etcd3_client_is_for_etcd_only() -> None:
    assert settings(with_line('client = "etcd3"', "election")).election.client == "etcd3"
    assert "only with" in faults(with_line('client = "etcd3"', "election").replace('"etcd"', '"postgres"'))[0]
    assert "expected json" in faults(with_line('client = "grpc"', "election"))[0]


def test_workers_are_a_number_and_each_gets_a_share_of_the_limits() -> None:
    assert settings().workers == 1
    assert settings(flags=[Flag("--workers", "workers", "3")], environment={"FENCEGATE_WORKERS": "2"}).workers == 3
    for wrong in ("0", "65", "two"):
        (fault,) = faults(flags=[Flag("--workers", "workers", wrong)])
        assert fault.startswith("workers = ")
        assert fault.endswith("expected a whole number of 1 to 64 (flag --workers)")
    (fault,) = faults(flags=[Flag("--workers", "workers", "8"), Flag("--set", "limits.in_flight", "7")])
    assert fault == (
        "limits.in_flight = 7: expected at least one for each of 8 workers, which share it equally "
        "(flag --set limits.in_flight; flag --workers)"
    )
    old, new = settings(), settings(flags=[Flag("--workers", "workers", "2")])
    assert differences(old, new) == ((), ("workers",)), "SIGHUP does not start or end any"


def test_etcd_needs_its_endpoints() -> None:
    (fault,) = faults(without("endpoints"))
    assert "FENCEGATE_ELECTION_ENDPOINTS" in fault


def test_consul_needs_its_endpoints_and_a_lease_that_its_lock_delay_covers() -> None:
    consul = GOOD.replace('"etcd"', '"consul"')
    assert faults(without("endpoints").replace('"etcd"', '"consul"'))[0].startswith("election.endpoints")
    (fault,) = faults(consul, flags=[Flag("--set", "election.lease_duration", "61")])
    assert "at most 60 s with consul" in fault
    parse(file=("F", consul), flags=[Flag("--set", "election.lease_duration", "60")])


def test_kubernetes_outside_of_a_pod_needs_its_namespace_and_inside_takes_no_token_file() -> None:
    outside = GOOD.replace('"etcd"', '"kubernetes"')
    inside = without("endpoints").replace('"etcd"', '"kubernetes"')
    (fault,) = faults(outside)
    assert fault.startswith("election.namespace")
    named = Flag("--set", "election.namespace", "ledgers")
    token = Flag("--set", "election.token_file", "/t")
    assert parse(file=("F", outside), flags=[named, token]).election.namespace == "ledgers"
    assert faults(outside, flags=[Flag("--set", "election.namespace", "Ledgers")])[0].startswith("election.namespace")
    assert faults(inside, flags=[token])[0].startswith("election.token_file")
    parse(file=("F", inside), flags=[])


def test_who_may_lead_are_texts_and_whoever_campaigns_is_among_them() -> None:
    def held_by(holders: str, more: str = "") -> str:
        return with_line(f"holders = [{holders}]{more}", "election")

    assert settings(held_by('"eu/gw-?"')).election.holders == ["eu/gw-?"]
    assert settings(held_by('"us/*"', '\nmode = "follow"')).election.holders == ["us/*"]
    assert "expected eu/gw-1 among them" in faults(held_by('"us/*", "gw-1"'))[0]
    for wrong in ('""', '"a b"', "7"):
        assert faults(held_by(wrong))[0].startswith("election.holders")


def test_a_token_file_and_a_namespace_belong_to_their_elections() -> None:
    assert faults(with_line('token_file = "t"', "election"))[0].startswith("election.token_file")
    assert faults(with_line('namespace = "n"', "election"))[0].startswith("election.namespace")
    consul = with_line('username = "u"\npassword_file = "p"', "election").replace('"etcd"', '"consul"')
    assert faults(consul)[0].startswith("election.username")


def test_postgres_takes_no_endpoints_and_etcd_takes_no_dsn() -> None:
    assert "only with" in faults(GOOD.replace('"etcd"', '"postgres"'))[0]
    assert "only with" in faults(with_line('dsn = "postgresql://h/d"', "election"))[0]


def test_a_user_name_needs_its_password_file_and_a_certificate_its_key() -> None:
    assert faults(with_line('username = "u"', "election"))[0].startswith("election.username")
    assert faults(with_line('password_file = "u"', "election"))[0].startswith("election.password_file")
    assert faults(GOOD + '[election.tls]\ncert = "c"\n')[0].startswith("election.tls.cert")


def test_tls_on_the_listeners_needs_a_whole_pair_and_an_advertised_origin_of_https() -> None:
    table = GOOD + "[listen.tls]\n"
    pair = 'cert = "c"\nkey = "k"\n'
    assert settings(table + pair).listen.scheme == "https"
    assert settings().listen.scheme == "http"
    assert faults(table + 'cert = "c"\n')[0].startswith("listen.tls.cert")
    assert faults(table + 'key = "k"\n')[0].startswith("listen.tls.key")
    assert faults(table + 'client_ca = "ca"\n')[0].startswith("listen.tls.client_ca")
    assert faults(table + pair + 'client = "optional"\n')[0].startswith("listen.tls.client")
    (fault,) = faults((table + pair).replace("https://ledger.eu", "http://ledger.eu"))
    assert fault.startswith('advertise = "http://ledger.eu.example": expected https://')


def test_embedded_needs_no_configuration_and_refuses_a_store_of_ones_own() -> None:
    defaults = {
        "node": "local",
        "region": "local",
        "advertise": "http://127.0.0.1:8080",
        "route": [{"path": "/v1/entries", "role": "ledger", "target": "ledger"}],
    }
    found = parse(defaults=defaults, embedded=True)
    assert found.store.dsn is None
    assert found.election.source == "postgres"
    with pytest.raises(ConfigurationError, match="starts its own Postgres"):
        parse(defaults=defaults, embedded=True, environment={"FENCEGATE_STORE_DSN": "postgresql://h/d"})
    with pytest.raises(ConfigurationError, match="expected postgres together with --embedded"):
        parse(
            defaults=defaults,
            embedded=True,
            flags=[
                Flag("--election", "election.source", "etcd"),
                Flag("--set", "election.endpoints", "http://a:1"),
            ],
        )


def test_without_embedded_a_store_is_needed() -> None:
    (fault,) = faults(GOOD.replace('dsn = "postgresql://fencegate@localhost/ledger"', ""))
    assert "--store-dsn" in fault


def test_without_a_route_there_is_nothing_to_serve() -> None:
    assert faults(GOOD.split("[[route]]")[0]) == ["route: missing; expected at least one [[route]] table in the file"]


@pytest.mark.parametrize("path", ["/SHARDS/{other}/*", "/Shards/{shard}/*"])
def test_two_routes_to_upstreams_are_told_apart_by_more_than_case(path: str) -> None:
    (fault,) = faults(route(path=f'"{path}"', role='"x"', target='"http://h"'))
    assert fault.startswith(f'[[route]] 3 path = "{path}": expected another path than that of [[route]] 2, /shards/')
    # What the gateway itself answers for is read exactly.
    assert settings(route(path='"/V1/entries"', role='"x"', target='"ledger"')).roles[-1] == "x"
    assert faults(route(path='"/V1/entries"', role='"x"', target='"http://h"'))


@pytest.mark.parametrize(
    ("keys_of_it", "words"),
    [
        ({"path": '"x"'}, "begins with /"),
        ({"path": '"/a//b"'}, "no two of them together"),
        ({"path": '"/a/../b"'}, "expected segments"),
        ({"path": '"/a?b"'}, "expected segments"),
        ({"path": '"/a/*/b"'}, "expected segments"),
        ({"path": '"/{x}{y}"'}, "expected segments"),
        ({"path": '"/{x}/{x}"'}, "once"),
        ({"path": '"/-/roles"'}, "fencegate's own"),
        ({"path": '"/.well-known/fencegate/x"'}, "fencegate's own"),
        ({"path": ""}, "missing"),
        ({"role": '"a b"'}, "expected a role"),
        ({"role": '"a/b/c/d/e"'}, "at most 4 segments"),
        ({"role": '"l/{shard}"', "members": "2"}, "expected {shard} in the path"),
        ({"role": '"l/{a}/{b}"', "path": '"/{a}/{b}"', "members": "2"}, "at most one {parameter}"),
        ({"role": '"l/{shard}"', "path": '"/{shard}"'}, "expected members"),
        ({"members": "3"}, "expected a {parameter}"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": '["a", "a"]'}, "each member once"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": '["a/b"]'}, "expected names"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": "[]"}, "at least one member"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": "0"}, "a number of members"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": "true"}, "a list of names, or a count"),
        ({"role": '"l/{s}"', "path": '"/{s}"', "members": "4096"}, "a lease of its own"),
        ({"target": '"ledgr"'}, "expected ledger, function:schema.name"),
        ({"target": '"function:record"'}, "schema.name"),
        ({"target": '"function:a.b; drop table x"'}, "schema.name"),
        ({"target": '"http://u:p@h"'}, "without a user name"),
        ({"target": '"http://h?x=1"'}, "without a query"),
        ({"target": '"http://h:0"'}, "1 to 65535"),
        ({"target": '"http://"'}, "expected an upstream"),
        ({"path": '"/x/*"'}, "expected no *"),
        ({"methods": '["DELETE"]'}, "POST alone"),
        ({"methods": '["PUT"]', "target": '"function:app.f"'}, "POST alone"),
        ({"methods": '["GET", "POST"]'}, "POST alone"),
        ({"methods": '["GET", "POST"]', "path": '"/-/authz/l"', "role": '"l"', "target": '"authz"'}, "POST alone"),
        ({"path": '"/x/*"', "target": '"function:app.f"'}, "expected no *"),
        ({"methods": '["post"]'}, "upper-case"),
        ({"methods": '["TRACE"]', "target": '"http://h"'}, "TRACE cannot"),
        ({"methods": "[]"}, "at least one method"),
        ({"idempotency": '"always"'}, "optional or required"),
        ({"mode": '"off"'}, "enforce or observe"),
        ({"timeout": "0"}, "seconds"),
        ({"max_body_bytes": "0"}, "bytes"),
        ({"validate": '"yes"'}, "true or false"),
        ({"validat": "true"}, "did you mean validate"),
        ({"validate": "true", "mode": '"observe"', "role": '"x"'}, "mode = enforce"),
        ({"validate": "true"}, "expected the same as in [[route]] 1"),
        ({"role_from": '"header:X-Fencing-Role"'}, "not in this version"),
        ({"path": '"/-/authz/l"', "role": '"l"'}, "only there"),
        ({"path": '"/x"', "target": '"authz"'}, "below /-/authz/"),
        ({"path": '"/-/authz/m"', "role": '"l"', "target": '"authz"'}, "expected /-/authz/l"),
        ({"path": '"/-/console"', "target": '"authz"'}, "outside /-/"),
        ({"method_from": '"X-Method"'}, "only with the target authz"),
        ({"method_from": '"X Method"'}, "a header's name"),
        ({"proof_key_file": '"/etc/proof.keys"'}, "only with an upstream as the target"),
        ({"proof_key_file": '""', "target": '"http://h"'}, "the path of a file"),
        ({"path": '"/v1/entries"'}, "another path than that of [[route]] 1"),
        ({"path": '"/shards/{other}/*"', "target": '"http://h"'}, "another path than that of [[route]] 2"),
        ({"path": '"/y/{s}"', "role": '"ledger/{shard}"'}, "expected {shard} in the path"),
        (
            {"path": '"/y/{shard}"', "role": '"ledger/{shard}"', "members": "2"},
            "expected the members that [[route]] 2 gives",
        ),
    ],
)
def test_a_nonsensical_route_is_refused_and_says_what_was_expected(keys_of_it: dict[str, str], words: str) -> None:
    found = faults(route(**keys_of_it))
    assert any(words in fault for fault in found), found
    assert all(fault.startswith("[[route]] 3") for fault in found), found


def test_a_role_is_validated_with_all_its_members() -> None:
    found = settings(GOOD.replace('idempotency = "required"', "validate = true"))
    assert found.validated == ["ledger/eu-1", "ledger/eu-2"]
    assert not found.pending, "what goes to an upstream is pending by its mark"
    assert settings(route(role='"x"', validate="true")).pending
    assert (settings().validated, settings().pending) == ([], False)
    assert differences(settings(), found) == ((), ("route.1.idempotency", "route.1.validate"))


@pytest.mark.parametrize(
    ("source", "more"),
    [("kafka", 'endpoints = ["k:9092"]'), ("redis-sentinel", 'endpoints = ["s:26379"]\ncluster = "c"')],
)
def test_an_election_that_proves_no_term_in_time_cannot_validate_a_role(source: str, more: str) -> None:
    head, rest = route(role='"x"', validate="true").split("[election]")
    rest = rest.split("[[route]]", 1)[1]
    (fault,) = faults(f'{head}[election]\nsource = "{source}"\nmode = "follow"\n{more}\n[[route]]{rest}')
    assert "elections that prove a term within each batch, etcd, postgres" in fault
    assert f"{source} does not" in fault


def test_thousands_of_members_are_fine_where_applications_lead() -> None:
    text = GOOD.replace("members = [", "members = 4096 #").replace(
        'source = "etcd"', 'source = "etcd"\nmode = "follow"'
    )
    found = settings(text)
    assert len(found.route[1].roles) == 4096
    assert found.election.store_mode == "token"


def test_members_by_count_are_numbered_from_zero() -> None:
    assert role_members("ledger/{shard}", 2) == ["ledger/0", "ledger/1"]
    assert role_members("ledger", None) == ["ledger"]


def test_one_store_may_be_written_as_an_array() -> None:
    one = GOOD.replace("[store]", "[[store]]")
    assert settings(one).store.dsn == "postgresql://fencegate@localhost/ledger"
    assert "(file F, line 6)" in faults(one.replace("postgresql:", "x:"))[0]


def test_a_table_where_a_value_belongs_and_the_reverse_are_faults() -> None:
    assert faults(GOOD.replace('node = "gw-1"', 'node = {a = "x"}'))[0].startswith("node = a table: expected 1 to 63")
    assert "log" in faults(with_line('log = "text"'))[0]
    assert "route" in faults("route = 5\n" + GOOD.split("[[route]]")[0])[0]


def test_lines_are_found_for_keys_tables_and_arrays_of_tables() -> None:
    lines = line_numbers('a = 1\n# b = 2\n[t]\nb = 2\n"c d".e = 3\n[[r]]\nx = 1\n[[r]]\nx = 2\n')
    assert lines == {"a": 1, "t": 3, "t.b": 4, "t.c d.e": 5, "r.0": 6, "r.0.x": 7, "r.1": 8, "r.1.x": 9}


@given(st.text())
def test_text_for_a_number_becomes_that_number_or_stays_text(text: str) -> None:
    value = from_text(text, float)
    assert value == text or (isinstance(value, float) and float(text) == value)


@given(st.text(max_size=200))
def test_any_text_is_settings_or_faults_and_never_another_exception(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(file=("F", text))
    assert caught.value.faults


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('"a.b" = {}\n' + GOOD, '"a.b": no such key; a dot belongs to no name (file F)'),
        (GOOD + '"time.out" = 3\n', '"time.out": no such key; a dot belongs to no name (file F)'),
        (route(members='{"list[str]" = 1}'), "[[route]] 3 members = a table: expected a list of names, or a count"),
        (route(members='{"x" = 1}', role_from="[]"), "[[route]] 3 members = a table: expected a list of names"),
        (GOOD + '[admin]\ntoken_file = "a\\u0000b"\n', 'admin.token_file = "a\\x00b": expected the path of a'),
    ],
)
def test_a_key_or_a_table_where_none_can_be_is_a_fault_that_names_it(text: str, fault: str) -> None:
    assert any(said.startswith(fault) for said in faults(text))


@given(st.sampled_from(sorted(keys())), st.text(max_size=30))
def test_any_value_for_any_key_is_taken_or_a_fault(key: str, text: str) -> None:
    try:
        parse(file=("F", GOOD), flags=[Flag("--set", key, text)])
    except ConfigurationError as error:
        found = error.faults
    else:
        return
    assert found
    assert all(found)


def test_a_reload_tells_what_changed_from_what_needs_a_restart() -> None:
    old = settings()
    new = settings(
        GOOD.replace("gw-1", "gw-2").replace('"required"', '"optional"')
        + '[log]\nlevel = "debug"\n[limits]\nin_flight = 5\n'
    )
    assert differences(old, new) == (("limits.in_flight", "log.level", "route.1.idempotency"), ("node",))
    assert differences(old, old) == ((), ())


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        (lambda text: text.replace('"/v1/entries"', '"/v2/entries"'), True),
        (lambda text: text.replace('"http://ledger-upstream:9000"', '"http://other:9000"\nhold_ms = 500'), True),
        (
            lambda text: text + '[[route]]\npath = "/more"\nrole = "ledger"\ntarget = "http://h"\nmode = "observe"\n',
            True,
        ),
        (lambda text: text + '[[route]]\npath = "/more"\nrole = "more"\ntarget = "ledger"\n', False),
        (lambda text: text.replace('["eu-1", "eu-2"]', '["eu-1"]'), False),
        (lambda text: text.replace('["eu-1", "eu-2"]', '["eu-2", "eu-1"]'), True),
        (lambda text: text.replace('target = "ledger"', 'target = "ledger"\nvalidate = true'), False),
    ],
)
def test_routes_change_without_a_restart_as_long_as_the_roles_stay(change: Callable[[str], str], taken: bool) -> None:
    reloaded, restart = differences(settings(), settings(change(GOOD)))
    assert (bool(reloaded), bool(restart)) == (taken, not taken)
    assert all(key.startswith("route.") for key in (*reloaded, *restart))


def test_a_reload_takes_what_it_can_and_leaves_the_rest_as_it_was() -> None:
    old = settings()
    new = settings(GOOD.replace("gw-1", "gw-2").replace('"required"', '"optional"') + "[limits]\nin_flight = 5\n")
    assert faults_of_halves(old, new) == []
    now = taken(old, new)
    assert (now.node, now.limits.in_flight, now.route[1].idempotency) == ("gw-1", 5, "optional")
    other = settings(GOOD.replace('["eu-1", "eu-2"]', '["eu-1"]').replace('"required"', '"optional"'))
    assert taken(old, other) == old


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (  # The callers would be asked for, and nobody known.
            GOOD,
            GOOD.replace('target = "ledger"', 'target = "ledger"\ncallers = ["*"]') + "[identity]\ncertificate = true\n"
            '[listen.tls]\ncert = "c"\nkey = "k"\nclient_ca = "ca"\n',
            '[[route]] 1 callers = ["*"]: expected identity.certificate or identity.header with it',
        ),
        (  # The listener would stay on the network, and its tokens be gone.
            GOOD + '[listen]\nadmin = "0.0.0.0:8081"\n[admin]\ntoken_file = "t"\nread_token_file = "r"\n',
            GOOD + '[listen]\nadmin = "127.0.0.1:8081"\n',
            'listen.admin = "0.0.0.0:8081": expected a loopback address, or admin.token_file',
        ),
        (  # The routes would stay, whose holding is too long for the new limit.
            GOOD.replace('target = "ledger"', 'target = "ledger"\nhold_ms = 9000'),
            GOOD.replace('"eu-2"]', '"eu-3"]') + "[limits]\nbody_timeout = 5\n",
            "[[route]] 1 hold_ms = 9000: expected at most half of limits.body_timeout",
        ),
        (  # The first such target would be taken for whoever any authority of the system signed for.
            GOOD,
            GOOD.replace("http://ledger-upstream:9000", "https://ledger-upstream") + '[upstream.tls]\nca = "own.pem"\n',
            "target https://ledger-upstream: expected to be reached by the new upstream.tls",
        ),
    ],
)
def test_a_reload_that_would_only_hold_together_as_a_whole_is_refused(before: str, after: str, fault: str) -> None:
    old, new = settings(before), settings(after)
    (said,) = faults_of_halves(old, new)
    assert said.startswith(fault)
    assert "would stay as before: restart instead" in said


def test_a_fault_shows_no_control_character_of_what_it_quotes() -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(file=("gate.toml", '"a\\u001b[2Jb" = 1'), environment={"FENCEGATE_NO\bSUCH": "1"})
    assert any("FENCEGATE_NO\\x08SUCH" in fault for fault in raised.value.faults)
    assert all(fault.isprintable() for fault in raised.value.faults)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "[" * 40 + "]" * 40, ".".join("a" * 900) + " = 1"])
def test_what_is_nested_too_deeply_is_a_fault_of_the_file(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse(file=("gate.toml", text))
    assert "file gate.toml: expected tables and lists that are nested at most 16 deep" in raised.value.faults
