"""The rules of TLS, and of passwords that a DSN does not hold: what was to be protected goes nowhere in the clear."""

from __future__ import annotations

from collections.abc import Iterator

from fencegate.config import dsn
from fencegate.config.broken import Broken
from fencegate.config.settings import ElectionSettings, Settings
from fencegate.config.store import TlsSettings


def broken(settings: Settings, *, embedded: bool) -> Iterator[Broken]:
    """Every rule of transport that the settings break."""
    yield from _listeners(settings)
    yield from _store(settings, embedded)
    yield from _election(settings)
    yield from _upstreams(settings)


def broken_campaign(settings: Settings) -> Iterator[Broken]:
    """Those of a process that only campaigns."""
    yield from _store(settings, embedded=False)
    yield from _election(settings)


def _election(settings: Settings) -> Iterator[Broken]:
    election, table = settings.election, "election.tls"
    yield from _pair(table, election.tls)
    if not election.over_postgres:
        if election.tls.is_set and election.installed is None:
            yield from _only_https(election)
        return
    if election.dsn is not None:
        yield from _postgres("election", "election", election.dsn, election.tls, election.password_file)
    elif election.tls.is_set and not settings.stores:
        sentence = "expected [store.tls] in its place, or election.dsn: the election is in the store's own database"
        yield Broken(table, sentence, ("election.source",))


def _listeners(settings: Settings) -> Iterator[Broken]:
    tls, table = settings.listen.tls, "listen.tls"
    if (tls.cert is None) != (tls.key is None):
        key, other = ("cert", "key") if tls.cert is not None else ("key", "cert")
        yield Broken(f"{table}.{key}", f"expected {table}.{other} with it", (f"{table}.{other}",))
    if tls.client_ca is not None and tls.cert is None:
        yield Broken(f"{table}.client_ca", f"expected {table}.cert with it", (f"{table}.cert",))
    if tls.client != "required" and tls.client_ca is None:
        yield Broken(f"{table}.client", f"expected {table}.client_ca with it", (f"{table}.client_ca",))
    if tls.cert is not None and not settings.advertise.startswith("https:"):
        sentence = f"expected https://…, since {table} is set: hints would send writes and tokens in the clear"
        yield Broken("advertise", sentence, (f"{table}.cert",))


def _store(settings: Settings, embedded: bool) -> Iterator[Broken]:
    """The only store, or each of several."""
    for number, several in enumerate(settings.stores):
        yield from _pair(f"stores.{number}.tls", several.tls, "store.tls")
        if several.dsn is not None:
            yield from _postgres(f"stores.{number}", "store", several.dsn, several.tls, several.password_file)
    store = settings.store
    yield from _pair("store.tls", store.tls)
    if embedded:
        for key, is_set in (("tls", store.tls.is_set), ("password_file", store.password_file is not None)):
            if is_set:
                yield Broken(f"store.{key}", "expected none together with --embedded, which starts its own Postgres")
    elif store.dsn is not None:
        yield from _postgres("store", "store", store.dsn, store.tls, store.password_file)


def _postgres(table: str, name: str, address: str, tls: TlsSettings, password_file: str | None) -> Iterator[Broken]:
    """``table`` is where its keys are, and ``name`` how the file calls that."""
    key = f"{table}.dsn"
    if password_file is not None and dsn.has_password(address):
        sentence = f"expected no password in it with {name}.password_file"
        yield Broken(key, sentence, (f"{table}.password_file",))
    if not tls.is_set:
        return
    if given := [parameter for parameter in dsn.TLS_PARAMETERS if parameter in dsn.parameters(address)]:
        sentence = f"expected no {', '.join(given)} in it with [{name}.tls], which always verifies the server"
        yield Broken(key, sentence, (f"{table}.tls",))
    if dsn.over_sockets(address):
        yield Broken(key, f"expected a host with [{name}.tls]: there is no TLS over a Unix socket", (f"{table}.tls",))


def _upstreams(settings: Settings) -> Iterator[Broken]:
    tls, table = settings.upstream.tls, "upstream.tls"
    yield from _pair(table, tls)
    secure = [each for each in settings.upstreams if each.startswith("https:")]
    if tls.is_set and not secure:
        yield Broken(table, "expected a [[route]] with an https:// target: it is for those alone", ("route",))
    if tls.server_name is not None and len(secure) > 1:
        sentence = f"expected none with {len(secure)} https:// targets: it would be the name of them all"
        yield Broken(f"{table}.server_name", sentence)


def _only_https(election: ElectionSettings) -> Iterator[Broken]:
    for key, endpoints in (("endpoints", election.endpoints), ("dcs", election.dcs)):
        if any(each.startswith("http:") for each in endpoints) and not (
            # The REST API of Patroni is often in the clear where the etcd behind it is not.
            election.source == "patroni"
            and key == "endpoints"
            and all(each.startswith("https:") for each in election.dcs)
        ):
            sentence = "expected https:// with [election.tls]: what is sent to an http:// endpoint goes in the clear"
            yield Broken(f"election.{key}", sentence, ("election.tls",))


def _pair(table: str, tls: TlsSettings, name: str = "") -> Iterator[Broken]:
    if (tls.cert is None) != (tls.key is None):
        key, other = ("cert", "key") if tls.cert is not None else ("key", "cert")
        yield Broken(f"{table}.{key}", f"expected {name or table}.{other} with it", (f"{table}.{other}",))
