"""What an embedded etcd decides before any node runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencegate.embedded.etcd import EmbeddedEtcd, EmbeddedServerError, Place
from fencegate.embedded.process import finish


def test_a_cluster_has_at_least_one_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one node, not 0"):
        EmbeddedEtcd(tmp_path, 0)


def test_there_are_no_addresses_and_no_nodes_before_the_start(tmp_path: Path) -> None:
    cluster = EmbeddedEtcd(tmp_path)
    with pytest.raises(EmbeddedServerError, match="start it first"):
        _ = cluster.endpoints
    with pytest.raises(EmbeddedServerError, match="is not started"):
        cluster.kill(0)
    with pytest.raises(EmbeddedServerError, match="is not started"):
        finish(cluster._restarting(0, True))


def test_stopping_nothing_is_no_error(tmp_path: Path) -> None:
    EmbeddedEtcd(tmp_path).stop_sync()


def test_every_node_of_a_new_cluster_has_ports_of_its_own_on_loopback(tmp_path: Path) -> None:
    nodes = EmbeddedEtcd(tmp_path, 5)._new_nodes()
    urls = [url for node in nodes for url in (node.client_url, node.peer_url)]
    assert len(set(urls)) == 10
    assert all(url.startswith("http://127.0.0.1:") for url in urls)


def test_a_new_cluster_clears_what_a_start_that_was_cut_off_left(tmp_path: Path) -> None:
    (tmp_path / "node-0" / "data").mkdir(parents=True)
    EmbeddedEtcd(tmp_path)._new_nodes()
    assert list((tmp_path / "node-0").iterdir()) == []


def test_a_recorded_cluster_keeps_its_ports(tmp_path: Path) -> None:
    record = tmp_path / "cluster.json"
    record.write_text(json.dumps({"ports": [[11, 12], [21, 22], [31, 32]]}), "utf-8")
    nodes = EmbeddedEtcd(tmp_path)._recorded_nodes(record)
    assert [(node.client_port, node.peer_port) for node in nodes] == [(11, 12), (21, 22), (31, 32)]


def test_another_number_of_nodes_than_recorded_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "cluster.json"
    record.write_text(json.dumps({"ports": [[11, 12]]}), "utf-8")
    with pytest.raises(EmbeddedServerError, match="made with 1 nodes, not 3: ask for that many"):
        EmbeddedEtcd(tmp_path, 3)._recorded_nodes(record)


@pytest.mark.parametrize("unsafe", [False, True])
def test_fsync_is_left_out_only_when_asked_for(tmp_path: Path, unsafe: bool) -> None:
    cluster = EmbeddedEtcd(tmp_path, unsafe_no_fsync=unsafe)
    cluster._nodes = cluster._new_nodes()
    assert ("--unsafe-no-fsync" in cluster._options(cluster._nodes[0])) is unsafe


def test_a_node_with_a_place_of_its_own_is_known_to_all_by_its_address(tmp_path: Path) -> None:
    cluster = EmbeddedEtcd(tmp_path, places={1: Place("10.77.0.2", ("enter", "there"))})
    cluster._nodes = nodes = cluster._new_nodes()
    assert [node.place.enter for node in nodes] == [(), ("enter", "there"), ()]
    assert cluster.endpoints[1] == f"http://10.77.0.2:{nodes[1].client_port}"
    for node in nodes:
        [members] = [option for option in cluster._options(node) if option.startswith("--initial-cluster=")]
        assert f"node-1=http://10.77.0.2:{nodes[1].peer_port}" in members
