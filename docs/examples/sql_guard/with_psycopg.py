"""A fenced transaction of one's own with psycopg 3. ``token`` is that of the term in which the work began."""

import json

import psycopg


class NoLongerLeading(Exception):
    """Stop writing under this token; ``problem`` says why, as the gateway would have."""

    def __init__(self, problem: dict) -> None:
        super().__init__(problem["title"])
        self.problem = problem


def book(dsn: str, token: int, account: int, amount: int) -> None:
    try:
        with psycopg.connect(dsn) as connection:  # commits at its end: the guard looks once more there
            connection.execute("SELECT fencegate.guard('ledger', %s)", [token])
            connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, account])
    except psycopg.Error as error:
        if error.sqlstate in ("ZF409", "ZF403"):
            raise NoLongerLeading(json.loads(error.diag.message_detail)) from error
        raise
