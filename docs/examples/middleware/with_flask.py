"""A ledger with Flask and psycopg that takes writes through its gateway and no others, and fences transactions."""

import os
from datetime import timedelta

import psycopg
from flask import Flask, Response, request

from fencegate.middleware import FolderMemory, Gatekeeper, guard_refusal
from fencegate.middleware.wsgi import Fenced

app = Flask(__name__)
used = FolderMemory(os.environ["USED_PROOFS"])
app.wsgi_app = Fenced(app.wsgi_app, Gatekeeper(proof_key_file=os.environ["PROOF_KEY_FILE"], used_proofs=used))


@app.errorhandler(psycopg.Error)
def refused(error: psycopg.Error) -> Response:
    said = guard_refusal(error)
    if said is None:
        raise error
    return Response(said.body, said.status, list(said.headers))


@app.get("/v1/accounts/<int:account>")
def balance(account: int) -> dict:
    with psycopg.connect(os.environ["LEDGER_DSN"]) as connection:
        [found] = connection.execute("SELECT balance FROM account WHERE id = %s", [account]).fetchone()
    return {"balance": found}


@app.post("/v1/accounts/<int:account>")
def book(account: int) -> tuple[dict, int]:
    fencing = request.environ["fencegate"]
    left = timedelta(seconds=fencing.seconds_left())
    amount = request.get_json()["amount"]
    with psycopg.connect(os.environ["LEDGER_DSN"]) as connection:
        connection.execute("SELECT fencegate.guard(%s, %s, %s)", [fencing.role, fencing.token, left])
        connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, account])
    return {"token": fencing.token}, 201
