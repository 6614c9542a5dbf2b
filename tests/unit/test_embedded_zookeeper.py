"""What an embedded ZooKeeper decides before any node runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencegate.embedded.process import EmbeddedServerError
from fencegate.embedded.zookeeper import JARS_VARIABLE, EmbeddedZookeeper, command


def test_an_ensemble_has_at_least_one_node(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one node, not 0"):
        EmbeddedZookeeper(tmp_path, 0)


def test_there_are_no_addresses_and_no_nodes_before_the_start(tmp_path: Path) -> None:
    ensemble = EmbeddedZookeeper(tmp_path)
    with pytest.raises(EmbeddedServerError, match="start it first"):
        _ = ensemble.hosts
    with pytest.raises(EmbeddedServerError, match="is not started"):
        ensemble.kill(0)
    ensemble.stop_sync()


def test_every_node_has_ports_of_its_own_on_loopback_and_knows_the_others(tmp_path: Path) -> None:
    ensemble = EmbeddedZookeeper(tmp_path, 3)
    ensemble._nodes = ensemble._new_nodes()
    assert (
        len({port for node in ensemble._nodes for port in (node.client_port, node.peer_port, node.election_port)}) == 9
    )
    configuration = ensemble._configuration(ensemble._nodes[1])
    assert "clientPortAddress=127.0.0.1\n" in configuration
    assert configuration.count("\nserver.") == 3
    assert (tmp_path / "node-1" / "data" / "myid").read_text() == "2\n"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/java")
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path / "*"))
    with pytest.raises(EmbeddedServerError, match="Debian: zookeeper"):
        command()
    (tmp_path / "zookeeper.jar").touch()
    assert str(tmp_path / "*") in command()
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EmbeddedServerError, match="no Java"):
        command()
