"""``fencegate serve`` under each election that is not the default one: it wins, takes a write, and hands back."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd
from fencegate.embedded.zookeeper import EmbeddedZookeeper
from system.serving import Serving, fencegate

pytestmark = pytest.mark.system

ROUTE = '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'


@pytest.fixture(params=["zookeeper", "postgres-advisory", "etcd3"])
def election(request: pytest.FixtureRequest) -> str:
    """The table [election] of a configuration."""
    if request.param == "postgres-advisory":
        return 'source = "postgres-advisory"'
    prefix = f"/t/{uuid.uuid4().hex}"
    if request.param == "zookeeper":
        zookeeper: EmbeddedZookeeper = request.getfixturevalue("zookeeper")
        return f'source = "zookeeper"\nprefix = "{prefix}"\nendpoints = ["{zookeeper.hosts[0]}"]'
    etcd: EmbeddedEtcd = request.getfixturevalue("etcd")
    return f'source = "etcd"\nclient = "etcd3"\nprefix = "{prefix}"\nendpoints = ["{etcd.endpoints[0]}"]'


def test_a_gateway_wins_takes_a_write_and_hands_over_to_the_next(
    election: str, fresh_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    assert fencegate("migrate", "--store-dsn", fresh_dsn).returncode == 0
    path = configuration(
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{fresh_dsn}"\n[election]\n{election}\n{ROUTE}'
    )
    tokens = []
    for _ in range(2):
        gateway = serve("--config", path).listens()
        tokens.append(gateway.discovered())
        assert gateway.write(tokens[-1]).status == 201
        assert gateway.stop() == 0
    assert int(tokens[1]) > int(tokens[0])
