"""``docs/scaling.py``: its page shows what it calculates, from the program's own numbers; no load falls with size."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencegate.cli import doctor_postgres_checks
from fencegate.config.settings import MAX_LEASES
from fencegate.election.etcd import EtcdElection
from fencegate.election.postgres import PostgresElection
from fencegate.lease import JITTER_FACTOR, LeaseTimings

ROOT = Path(__file__).parents[1]


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "docs" / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


scaling = _loaded()
LOADS = ("looks", "renewals", "standing_by", "store_sessions", "monitor_cores", "gateway_memory", "rounds_cores")


def test_the_page_shows_the_table_that_is_calculated() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert "\n".join(scaling.table()) in page


def test_the_numbers_of_the_program_are_the_programs() -> None:
    assert scaling.SESSIONS == doctor_postgres_checks.SESSIONS
    assert scaling.CAMPAIGNS == MAX_LEASES
    assert {"etcd": EtcdElection.roles_a_read, "postgres": PostgresElection.roles_a_read} == scaling.ROLES_A_READ
    assert pytest.approx((1 + JITTER_FACTOR) / 2) == scaling.JITTER
    timings, scene = LeaseTimings(), scaling.Scene("x", 1, 1)
    assert (scene.retry_period, scene.lease_duration) == (timings.retry_period, timings.lease_duration)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (scaling.AT_REST / scaling.MIB, "*What the process has at rest* is 61 MiB"),
        (scaling.IDLE_ROLE / scaling.KIB, "is 0.95 to 0.98 where nobody leads it"),
        (scaling.LED_ROLE / scaling.KIB, "A role that somebody leads takes 2.4 KiB"),
        (scaling.ELECTOR / scaling.KIB, "at 20 KiB for each elector"),
        (scaling.ROUNDS_IDLE * 1e6, "The rounds cost 2 % of a core for ten thousand roles that nobody leads"),
        (scaling.ROUNDS_LED * 1e6, "9 % where each is led"),
    ],
)
def test_a_measured_figure_is_the_one_that_the_bench_tells(figure: float, text: str) -> None:
    assert text in (ROOT / "bench" / "README.md").read_text()
    assert f"{figure:g}" in text


def test_what_was_measured_of_one_gateway_comes_out_again() -> None:
    one = scaling.Scene("measured", 1, 10_000, source="postgres")
    assert one.rounds_cores == pytest.approx(0.09)
    assert replace(one, led=0.0).rounds_cores == pytest.approx(0.02)
    assert replace(one, led=0.0).gateway_memory == pytest.approx(61 * scaling.MIB + 10_000 * 0.98 * 1024)
    # A reading of 500 roles by the view and one by the followers, 20 times in a period of 2 s.
    assert one.looks == 20


SCENES = st.builds(
    scaling.Scene,
    st.just("any"),
    st.integers(1, 1000),
    st.integers(1, 1_000_000),
    cells=st.integers(1, 50),
    regions=st.sampled_from([1, 2]),
    mode=st.sampled_from(["campaign", "follow"]),
    source=st.sampled_from(["etcd", "postgres"]),
    workers=st.integers(1, 4),
    led=st.sampled_from([0.0, 0.5, 1.0]),
)


@given(SCENES, st.integers(1, 10))
def test_no_load_falls_where_gateways_roles_or_workers_are_added(scene: object, more: int) -> None:
    for key in ("gateways", "roles", "workers"):
        larger = replace(scene, **{key: getattr(scene, key) + more})  # type: ignore[type-var]
        for load in LOADS:
            assert getattr(larger, load) >= getattr(scene, load) * (1 - 1e-9), (key, load)


@given(SCENES)
def test_cells_spare_looks_and_no_renewal(scene: object) -> None:
    split = replace(scene, cells=scene.cells * 2)  # type: ignore[attr-defined,type-var]
    assert split.looks <= scene.looks  # type: ignore[attr-defined]
    assert split.renewals == scene.renewals  # type: ignore[attr-defined]
    assert split.store_sessions == pytest.approx(scene.store_sessions / 2)  # type: ignore[attr-defined]
