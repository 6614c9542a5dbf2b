"""A fenced transaction of one's own with asyncpg. ``token`` is that of the term in which the work began."""

import json

import asyncpg


class NoLongerLeading(Exception):
    """Stop writing under this token; ``problem`` says why, as the gateway would have."""

    def __init__(self, problem: dict) -> None:
        super().__init__(problem["title"])
        self.problem = problem


async def book(dsn: str, token: int, account: int, amount: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("SELECT fencegate.guard('ledger', $1)", token)
            await connection.execute("UPDATE account SET balance = balance + $2 WHERE id = $1", account, amount)
    except asyncpg.PostgresError as error:  # also from the commit, where the guard looks once more
        if error.sqlstate in ("ZF409", "ZF403"):
            raise NoLongerLeading(json.loads(error.detail)) from error
        raise
    finally:
        await connection.close()
