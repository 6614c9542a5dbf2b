"""A fenced ``transaction.atomic`` for Django: use it in place of the outermost one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, connections, transaction


class NoLongerLeading(Exception):
    """Stop writing under this token; ``problem`` says why, as the gateway would have."""

    def __init__(self, problem: dict) -> None:
        super().__init__(problem["title"])
        self.problem = problem


@contextmanager
def fenced(token: int, *, role: str = "ledger", using: str = "default") -> Iterator[None]:
    """A transaction that only commits while ``token`` leads ``role``. ``durable``: it cannot be a savepoint's."""
    try:
        with transaction.atomic(using=using, durable=True):
            with connections[using].cursor() as cursor:
                cursor.execute("SELECT fencegate.guard(%s, %s)", [role, token])
            yield
    except DatabaseError as error:  # also from the commit, where the guard looks once more
        cause = error.__cause__
        if getattr(cause, "sqlstate", None) in ("ZF409", "ZF403"):
            raise NoLongerLeading(json.loads(cause.diag.message_detail)) from error
        raise


def book(token: int, account: int, amount: int) -> None:
    with fenced(token), connections["default"].cursor() as cursor:
        cursor.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, account])
