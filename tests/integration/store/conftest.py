"""A migrated database for every test, a store on it, and a session beside the store that looks past it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencegate.access.database import Database
from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.store import migrate
from fencegate.store.postgres import PostgresStore
from store.standby import Standby
from store.writing import ROLE

PATIENT = {"monitor_period": 60.0, "control_limit": 10.0, "connect_limit": 10.0}
"""No look of the store's own in between, and no limit that a busy machine meets."""

OF_EVERY_STORE = {"test_ledger", "test_control", "test_forward", "test_function", "test_known_keys"}
"""Modules that ask what every store has to do, whatever it rests on (``docs/portability.md``)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is asked of every store is asked of one in portability mode too, but for what is of Postgres alone."""
    of_every_store = metafunc.module.__name__.rpartition(".")[2] in OF_EVERY_STORE
    of_postgres = metafunc.definition.get_closest_marker("of_postgres") is not None
    if "mode" in metafunc.fixturenames and of_every_store and not of_postgres:
        metafunc.parametrize("mode", ["postgres", "portable"], indirect=True)


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """What the test's store is: ``postgres``, or ``portable`` for one in portability mode."""
    found: str = getattr(request, "param", "postgres")
    return found


@pytest.fixture
def dsn(mode: str, request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("portable_dsn" if mode == "portable" else "migrated_dsn")
    return found


@pytest.fixture
async def make_store(dsn: str, mode: str) -> AsyncIterator[Callable[..., Any]]:
    """Opens stores, on the test's database unless told otherwise; closes them after the test."""
    async with AsyncExitStack() as stack:

        async def make(address: str | Database = "", gateway: str = "gw-1", **limits: Any) -> PostgresStore:
            place = Database.at(address or dsn)
            if mode == "portable":
                place = replace(place, portable=True)
            store = await PostgresStore.open(place, gateway=gateway, **{**PATIENT, **limits})
            stack.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture
async def store(make_store: Callable[..., Any]) -> PostgresStore:
    """A store with the closed fence of one role in lease mode."""
    store: PostgresStore = await make_store()
    await store.ensure_roles({ROLE: "lease"})
    return store


@pytest.fixture
async def connect(dsn: str) -> AsyncIterator[Callable[..., Any]]:
    """Opens plain sessions with the test's database."""
    async with AsyncExitStack() as stack:

        async def connect(address: str = "", **options: Any) -> asyncpg.Connection:
            connection = await asyncpg.connect(address or dsn, timeout=60, **options)
            stack.callback(connection.terminate)
            return connection

        yield connect


@pytest.fixture
async def beside(connect: Callable[..., Any]) -> asyncpg.Connection:
    """A session that looks past the store."""
    connection: asyncpg.Connection = await connect()
    return connection


@pytest.fixture
async def primary(make_postgres: Callable[..., EmbeddedPostgres]) -> EmbeddedPostgres:
    """A migrated server with nothing else on it."""
    server = make_postgres("primary")
    await server.start()
    await migrate.apply(server.dsn)
    return server


@pytest.fixture
async def standby(primary: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Standby]:
    """A copy of it, not started yet."""
    made = Standby(primary, tmp_path / "standby")
    await made.make()
    yield made
    await made.remove()
