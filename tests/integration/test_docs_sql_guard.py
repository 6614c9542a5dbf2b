"""The examples of docs/sql-guard.md do what they say, with the libraries that they are for."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import asyncpg
import django
import pytest
from django.conf import settings as django_settings
from django.db import connections

from fencegate.store.postgres import PostgresStore

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "sql_guard"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"sql_guard_{name}", EXAMPLES / f"with_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def book_with(name: str, module: ModuleType, dsn: str, token: int) -> None:
    match name:
        case "asyncpg":
            await module.book(dsn, token, 1, 100)
        case "django":
            await asyncio.to_thread(_with_django, module, dsn, token)
        case _:
            await asyncio.to_thread(module.book, dsn, token, 1, 100)


def _with_django(module: ModuleType, dsn: str, token: int) -> None:
    parts = urlsplit(dsn)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path.strip("/"), "HOST": parts.hostname}
    database |= {"PORT": parts.port, "USER": parts.username, "PASSWORD": parts.password}
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database})
        django.setup()
    try:
        module.book(token, 1, 100)
    finally:
        connections.close_all()


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "sqlalchemy", "django"])
async def test_the_example_books_while_its_term_leads_and_is_told_when_it_does_not(
    name: str, migrated_dsn: str
) -> None:
    module = example(name)
    beside = await asyncpg.connect(migrated_dsn, timeout=60)
    store = await PostgresStore.open(migrated_dsn, gateway="gw-1", monitor_period=60.0)
    try:
        await beside.execute("CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL)")
        await beside.execute("INSERT INTO account VALUES (1, 0)")
        await store.ensure_roles({"ledger": "lease"})
        await store.claim("ledger", 42, "eu/app-1", await store.clock(), 60)

        await book_with(name, module, migrated_dsn, 42)
        await store.claim("ledger", 43, "eu/app-2", await store.clock(), 60)
        with pytest.raises(module.NoLongerLeading) as told:
            await book_with(name, module, migrated_dsn, 42)

        assert told.value.problem["code"] == "stale_token"
        assert told.value.problem["max_token_seen"] == 43
        assert await beside.fetchval("SELECT balance FROM account") == 100
    finally:
        await store.close()
        beside.terminate()
