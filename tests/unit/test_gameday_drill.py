from __future__ import annotations

import pytest

from fencegate.gameday.drill import Plan
from fencegate.gameday.regions import TIMINGS, TwoRegions, lasting_port


def test_the_timings_of_the_drill_hold_together():
    assert TIMINGS.faults() == []
    assert TIMINGS.lease_duration == int(TIMINGS.lease_duration)  # etcd counts whole seconds


def test_stale_time_is_compressed_and_nothing_else():
    assert Plan(stale_for=1200, speed=60).tail == 20.0
    assert Plan(stale_for=1200, speed=1).tail == 1200.0


@pytest.mark.parametrize("mode", ["enforce", "observe"])
async def test_the_configuration_of_a_region_is_one_that_serve_takes(tmp_path, monkeypatch, mode):
    from fencegate.config import parse

    stage = TwoRegions(tmp_path, mode)
    monkeypatch.setattr(type(stage.etcd), "endpoints", ["http://127.0.0.1:2379"])
    monkeypatch.setattr(type(stage.dr.postgres), "dsn", "postgresql://fencegate@/fencegate?host=/tmp/x&port=5432")
    stage.dr.data_port, stage.dr.admin_port = 4001, 4002
    text = stage.configuration(stage.dr, *await stage.links(stage.dr)) + stage.route(stage.dr)
    settings = parse(file=("fencegate.toml", text), environment={}, flags=[])
    assert settings.election.timings == TIMINGS
    assert settings.advertise == stage.dr.url == "http://127.0.0.1:4001"
    assert [route.mode for route in settings.route] == [mode]


def test_the_ports_of_a_region_are_not_those_of_outgoing_connections():
    ports = {lasting_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(20_000 <= port < 32_000 for port in ports)
