"""A ledger with FastAPI and asyncpg that takes writes through its gateway and no others, and fences transactions."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from fastapi import FastAPI, Request, Response

from fencegate.middleware import Fencing, FolderMemory, Gatekeeper, guard_refusal
from fencegate.middleware.asgi import Fenced


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(os.environ["LEDGER_DSN"], min_size=1) as app.state.pool:
        yield


app = FastAPI(lifespan=lifespan)
used = FolderMemory(os.environ["USED_PROOFS"])
app.add_middleware(Fenced, gatekeeper=Gatekeeper(proof_key_file=os.environ["PROOF_KEY_FILE"], used_proofs=used))


@app.exception_handler(asyncpg.PostgresError)
async def refused(request: Request, error: asyncpg.PostgresError) -> Response:
    said = guard_refusal(error)
    if said is None:
        raise error
    return Response(said.body, said.status, dict(said.headers))


@app.get("/v1/accounts/{account}")
async def balance(account: int, request: Request) -> dict:
    return {"balance": await request.app.state.pool.fetchval("SELECT balance FROM account WHERE id = $1", account)}


@app.post("/v1/accounts/{account}", status_code=201)
async def book(account: int, booking: dict, request: Request) -> dict:
    fencing: Fencing = request.scope["fencegate"]
    left = timedelta(seconds=fencing.seconds_left())
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT fencegate.guard($1, $2, $3)", fencing.role, fencing.token, left)
        await connection.execute("UPDATE account SET balance = balance + $2 WHERE id = $1", account, booking["amount"])
    return {"token": fencing.token}
