"""What ``fencegate doctor`` says of the ways that data takes: whether it is encrypted, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fencegate.cli.doctor_findings import Finding, fault, fine, listed, note, unknown, warning
from fencegate.cli.doctor_measures import Certificate
from fencegate.config import Settings, TlsSettings
from fencegate.config.dsn import parameters, stays_here
from fencegate.config.values import is_loopback, split_address

_VERIFIED = "under TLS, with a server that is verified by its name"
_WORDS = {
    "verify-ca": "is under TLS, with any server of the CA's",
    "require": "is under TLS, with whoever answers",
    "prefer": "is under TLS only while the server offers it, and with whoever answers",
    "allow": "is in the clear unless the server insists",
    "disable": "is in the clear",
}


def store(settings: Settings, default_mode: str) -> Iterator[Finding]:
    """On the way to the store. ``default_mode``: ``$PGSSLMODE``."""
    if settings.store.dsn is not None:
        yield _postgres("store", settings.store.dsn, settings.store.tls, default_mode)


def election(settings: Settings, default_mode: str) -> Iterator[Finding]:
    """On the way to an election in a Postgres of its own."""
    own, stores = settings.election.dsn, [settings.store.dsn, *(each.dsn for each in settings.stores)]
    if settings.election.over_postgres and own is not None and own not in stores:
        yield _postgres("election", own, settings.election.tls, default_mode)


def _postgres(name: str, dsn: str, tls: TlsSettings, default_mode: str) -> Finding:
    check = f"{name}.transport"
    if tls.is_set:
        return fine(check, f"[{name}.tls]", _VERIFIED)
    if stays_here(dsn):
        return fine(check, "this machine only", _VERIFIED)
    given = parameters(dsn).get("sslmode")
    mode = given or default_mode or "prefer"
    if mode == "verify-full":
        return fine(check, "sslmode=verify-full", _VERIFIED)
    said = f"sslmode={mode}" if given or default_mode else "no sslmode in the DSN"
    advice = f"Set {name}.tls.ca, or sslmode=verify-full with sslrootcert: who is in between reads and changes writes."
    return warning(check, f"{said}: what is sent {_WORDS.get(mode, 'may be in the clear')}", _VERIFIED, advice)


def upstreams(settings: Settings) -> Iterator[Finding]:
    """On the way to the upstreams, where some of it leaves this machine."""
    away = [each for each in settings.upstreams if not _is_here(each)]
    if not away:
        return
    check, bare = "upstream.transport", [each for each in away if each.startswith("http:")]
    if bare and len(bare) < len(settings.upstreams):
        advice = "Use https:// for them too, or know that the way there is protected otherwise."
        yield note(check, f"in the clear: {listed(bare)}", _VERIFIED, advice)
    elif not bare:
        yield fine(check, listed(away), _VERIFIED)


def _is_here(url: str) -> bool:
    address = url.partition("://")[2].partition("/")[0]
    try:
        return is_loopback(split_address(address)[0])
    except ValueError:
        return is_loopback(address.strip("[]"))


def certificates(found: Mapping[str, Certificate]) -> Iterator[Finding]:
    """On every file with a certificate in it, by the check's name."""
    for check, certificate in found.items():
        yield _certificate(check, certificate)


def _certificate(check: str, found: Certificate) -> Finding:
    expected = f"valid for {_span(found.notice)} more"
    advice = "Put a new one there: it is taken without a restart."
    if found.faults:
        return fault(check, "; ".join(found.faults), "files of use", "Mend them: a gateway does not start so.")
    if found.left is None:
        return unknown(check, f"nobody with the usual rules would take {found.path}", expected)
    if found.left <= 0:  # for how long it once was valid is not told of such a one
        return fault(check, f"{found.path} has expired", "one that is valid", advice)
    measured = f"{found.path} expires in {_span(found.left)}"
    return warning(check, measured, expected, advice) if found.left < found.notice else fine(check, measured, expected)


def _span(seconds: float) -> str:
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.1f} hours"
