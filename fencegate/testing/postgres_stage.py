"""The wire contract's stage on a real Postgres: the same cases, over the store that ships.

The database is emptied at every start, so that many tests can share one; no two stages at a time.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from fencegate.fence import Mode, StillLeads, WritePath
from fencegate.store.postgres import PostgresStore

_HOLDER: Final = "eu/gw-1"
_TERM_SECONDS: Final = 3600.0

# The triggers that keep a fence from being lowered or deleted are for everybody but a test's administrator.
_PAST_TRIGGERS: Final = "SET LOCAL session_replication_role = replica;"
_EMPTY: Final = (
    _PAST_TRIGGERS
    + """
    TRUNCATE fencegate.fence, fencegate.entry, fencegate.idempotency_key, fencegate.mark;
    CREATE SCHEMA IF NOT EXISTS app;
    CREATE TABLE IF NOT EXISTS app.effect (role text NOT NULL);
    TRUNCATE app.effect;
    CREATE OR REPLACE FUNCTION app.echo(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.effect VALUES (context->>'role');
        RETURN jsonb_build_object('got', body);
    END $$;
    CREATE OR REPLACE FUNCTION app.reject(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.effect VALUES (context->>'role');
        RAISE EXCEPTION 'the books are closed' USING HINT = 'open them';
    END $$;
    CREATE OR REPLACE FUNCTION app.busy(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO app.effect VALUES (context->>'role');
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END $$;"""
)
_LANDED: Final = """
    SELECT (SELECT count(*) FROM fencegate.entry JOIN fencegate.fence USING (role_id) WHERE role = $1)
         + (SELECT count(*) FROM app.effect WHERE role = $1)"""


class PostgresStage:
    """A :class:`fencegate.testing.wire_world.Stage` on a migrated database in which the user is superuser."""

    path: WritePath

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._store: PostgresStore | None = None
        self._beside: asyncpg.Connection | None = None

    @property
    def store(self) -> PostgresStore:
        assert self._store is not None
        return self._store

    async def start(self, roles: list[str]) -> None:
        self._beside = await asyncpg.connect(self._dsn, timeout=60)
        async with self._beside.transaction():
            await self._beside.execute(_EMPTY)
        self._store = PostgresStore(self._dsn, gateway="gw-1")
        self.path = self._store

    async def stop(self) -> None:
        if self._store is not None:
            await self._store.close()
        if self._beside is not None:
            await self._beside.close()

    async def open(self, role: str, token: int, mode: Mode = "lease") -> None:
        await self.store.ensure_roles({role: mode})
        clock = await self.store.clock()
        valid_for = float("inf") if mode == "token" else _TERM_SECONDS
        refused = await self.store.claim(role, token, _HOLDER, clock, valid_for)
        assert refused is None, refused

    async def seal(self, role: str) -> None:
        fence = await self.store.read(role)
        assert fence is not None
        assert await self.store.seal(role, fence.max_token_seen, fence.incarnation)

    async def set_draining(self, role: str, draining: bool) -> None:
        fence = await self.store.read(role)
        assert fence is not None
        assert await self.store.set_draining(role, fence.max_token_seen, draining)

    async def lose_row(self, role: str) -> None:
        await self._tamper("DELETE FROM fencegate.fence WHERE role = $1", role)

    async def move_incarnation(self, role: str) -> None:
        # Seen from the row, a server that was promoted and a claim made on another one are the same.
        await self._tamper("UPDATE fencegate.fence SET incarnation = 'another/1' WHERE role = $1", role)

    def validate(self, roles: list[str], still_leads: StillLeads) -> None:
        self.store.validate(roles, still_leads)

    async def landed(self, role: str) -> int:
        assert self._beside is not None
        return int(await self._beside.fetchval(_LANDED, role))

    async def _tamper(self, statement: str, role: str) -> None:
        assert self._beside is not None
        async with self._beside.transaction():
            await self._beside.execute(_PAST_TRIGGERS)
            await self._beside.execute(statement, role)
