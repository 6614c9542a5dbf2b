from __future__ import annotations

import subprocess

import pytest

from fencegate.embedded.process import EmbeddedServerError
from fencegate.gameday.drill import Plan
from fencegate.gameday.regions import TIMINGS, Region, TwoRegions


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


async def test_a_region_whose_port_somebody_else_has_did_not_come_up(tmp_path, monkeypatch):
    region = TwoRegions(tmp_path).dr
    region.directory.mkdir()
    region.log.write_text("address already in use")

    async def the_others_answer(self):
        return True

    def ends_at_once(self):
        self.process = subprocess.Popen(["true"])
        self.process.wait()

    monkeypatch.setattr(Region, "answers", the_others_answer)
    monkeypatch.setattr(Region, "launch", ends_at_once)
    with pytest.raises(EmbeddedServerError, match=r"(?s)did not come up.*address already in use"):
        await region.start()
