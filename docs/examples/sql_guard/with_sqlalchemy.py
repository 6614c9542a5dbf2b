"""A fenced session of SQLAlchemy: every transaction that it begins is guarded before its first statement."""

import json

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction


class NoLongerLeading(Exception):
    """Stop writing under this token; ``problem`` says why, as the gateway would have."""

    def __init__(self, problem: dict) -> None:
        super().__init__(problem["title"])
        self.problem = problem


class FencedSession(Session):
    """A session of one term of leadership: give it the token that was won."""

    def __init__(self, *args, token: int, **options) -> None:
        super().__init__(*args, **options)
        self.token = token


@event.listens_for(FencedSession, "after_begin")
def guard(session: FencedSession, transaction: SessionTransaction, connection: Connection) -> None:
    if not transaction.nested:
        connection.execute(text("SELECT fencegate.guard('ledger', :token)"), {"token": session.token})


def book(dsn: str, token: int, account: int, amount: int) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        with FencedSession(engine, token=token) as session, session.begin():
            session.execute(
                text("UPDATE account SET balance = balance + :amount WHERE id = :account"),
                {"amount": amount, "account": account},
            )
    except DBAPIError as error:  # also from the commit, where the guard looks once more
        if error.orig.sqlstate in ("ZF409", "ZF403"):
            raise NoLongerLeading(json.loads(error.orig.diag.message_detail)) from error
        raise
    finally:
        engine.dispose()
