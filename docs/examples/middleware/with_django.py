"""A ledger with Django, in one file, that takes writes through its gateway and no others, over WSGI or ASGI."""

import json
import os
from datetime import timedelta
from urllib.parse import urlsplit

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import DatabaseError, connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from fencegate.middleware import FolderMemory, Gatekeeper, asgi, guard_refusal, wsgi

dsn = urlsplit(os.environ["LEDGER_DSN"])
database = {"ENGINE": "django.db.backends.postgresql", "NAME": dsn.path.strip("/"), "HOST": dsn.hostname}
database |= {"PORT": dsn.port, "USER": dsn.username, "PASSWORD": dsn.password}
settings.configure(ROOT_URLCONF=__name__, DATABASES={"default": database}, ALLOWED_HOSTS=["*"])


def account(request: HttpRequest, number: int) -> HttpResponse:
    if request.method == "GET":
        with connection.cursor() as cursor:
            cursor.execute("SELECT balance FROM account WHERE id = %s", [number])
            return JsonResponse({"balance": cursor.fetchone()[0]})
    try:
        return book(request, number)
    except DatabaseError as error:
        said = guard_refusal(error)
        if said is None:
            raise
        return HttpResponse(said.body, status=said.status, headers=dict(said.headers))


def book(request: HttpRequest, number: int) -> HttpResponse:
    fencing = getattr(request, "scope", request.META)["fencegate"]  # over ASGI, over WSGI
    left = timedelta(seconds=fencing.seconds_left())
    amount = json.loads(request.body)["amount"]
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SELECT fencegate.guard(%s, %s, %s)", [fencing.role, fencing.token, left])
        cursor.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, number])
    return JsonResponse({"token": fencing.token}, status=201)


urlpatterns = [path("v1/accounts/<int:number>", account)]

used = FolderMemory(os.environ["USED_PROOFS"])
gatekeeper = Gatekeeper(proof_key_file=os.environ["PROOF_KEY_FILE"], used_proofs=used)
application = wsgi.Fenced(get_wsgi_application(), gatekeeper)  # in a project's wsgi.py
asgi_application = asgi.Fenced(get_asgi_application(), gatekeeper)  # in its asgi.py
