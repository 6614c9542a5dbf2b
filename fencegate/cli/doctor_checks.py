"""The verdicts of ``fencegate doctor``: pure functions over what was measured. The measuring is ``doctor_measures.py``.

Each finding says what was measured, what was expected, and, unless all is well, what to do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from fencegate.cli import doctor_election_checks as election
from fencegate.cli import doctor_postgres_checks as postgres
from fencegate.cli import doctor_transport_checks as transport
from fencegate.cli.doctor_findings import Finding, fault, fine, listed, note, unknown, warning
from fencegate.cli.doctor_measures import Advertised, Measures, Secret, Unmeasured
from fencegate.config import Settings
from fencegate.config.several_stores import by_store
from fencegate.config.values import is_loopback, split_address

_SPARE_FILES: Final = 64
"""What a gateway needs besides its clients: the election, the store, its log, the interpreter's own."""


def examine(settings: Settings, measures: Measures) -> list[Finding]:
    """Every verdict, in the order in which they are read: store, election, numbers, timings, the way in and out."""
    own = measures.election_postgres is not None
    parts = {
        name: (part, measures.of(name, part.roles) if settings.stores else measures)
        for name, part in by_store(settings).items()
    }
    found = _of_each(parts, lambda part, seen: postgres.store(part, seen.store))
    found += election.election(settings, measures)
    if settings.election.over_postgres:
        server = measures.election_postgres if measures.election_postgres is not None else measures.store
        found += postgres.election(server, own=own)
    found += _of_each(parts, election.numbers)
    found += _of_each(parts, lambda part, seen: election.timings(part, seen.store, seen.election))
    found += _advertised(settings, measures.advertised)
    found += _admin(settings)
    found += transport.certificates(measures.certificates)
    found.append(_enforcing(settings))
    if measures.upstreams:
        found.append(_upstreams(measures.upstreams))
    found += _of_each(parts, lambda part, seen: transport.store(part, seen.default_sslmode))
    found += transport.election(settings, measures.default_sslmode)
    found += transport.upstreams(settings)
    found += [_secret(key, secret) for key, secret in measures.secrets.items()]
    found.append(_open_files(settings, measures.open_files))
    return found


def _of_each(
    parts: Mapping[str, tuple[Settings, Measures]], look: Callable[[Settings, Measures], Iterator[Finding]]
) -> list[Finding]:
    """The findings on each store, called after it where there are several: ``store.reachable[north]``."""
    return [
        replace(each, check=f"{each.check}[{name}]") if name else each
        for name, (settings, measures) in parts.items()
        for each in look(settings, measures)
    ]


def _advertised(settings: Settings, found: Advertised | Unmeasured) -> Iterator[Finding]:
    origin, check = settings.advertise, "advertise.address"
    expected = "an address that clients reach"
    host = urlsplit(origin).hostname or ""
    addresses = () if isinstance(found, Unmeasured) else found.addresses
    if is_loopback(host) or (addresses and all(ipaddress.ip_address(each).is_loopback for each in addresses)):
        advice = "Set advertise to the origin that clients of other machines use: hints send them there."
        yield warning(check, f"{origin} is this machine's own", expected, advice)
    elif addresses:
        yield fine(check, f"{host} is {', '.join(addresses[:3])}", expected)
    check, expected = "advertise.reachable", f"a gateway of region {settings.region}"
    if isinstance(found, Unmeasured) and settings.listen.tls.client_ca and settings.listen.tls.client != "optional":
        yield unknown(check, f"clients of {origin} need a certificate, and there is none here to show", expected)
    elif isinstance(found, Unmeasured):
        advice = "Mend advertise, DNS or the way there; fine while no gateway of this region runs."
        yield warning(check, f"{origin}: {found.why}", expected, advice)
    elif not found.region:
        advice = "Let advertise name the gateway, or a proxy that passes /.well-known/fencegate/ on to it."
        yield warning(check, f"{origin} answers, and is no gateway", expected, advice)
    elif found.region != settings.region:
        advice = "Mend advertise, or DNS: hints for this region lead to another one."
        yield fault(check, f"a gateway of region {found.region}", expected, advice)
    else:
        yield fine(check, f"a gateway of region {found.region}", expected)


def _admin(settings: Settings) -> Iterator[Finding]:
    """Without a token it can only be on loopback: any other configuration is refused at the start."""
    host, _ = split_address(settings.listen.admin)
    if is_loopback(host):
        yield fine("admin.listener", f"{settings.listen.admin}, this machine only", "out of reach for strangers")
    elif settings.listen.scheme == "https":
        yield fine("admin.listener", f"{settings.listen.admin}, over TLS", "out of reach for strangers")
    else:
        advice = "Set [listen.tls], or put a proxy with TLS before it: its token goes in the clear."
        yield warning("admin.listener", f"{settings.listen.admin}, over HTTP", "out of reach for strangers", advice)
    if settings.admin.token_file is None:
        advice = "Set admin.token_file to be able to hand over and to resign."
        yield note("admin.actions", "off: there is no admin.token_file", "a token for handoffs", advice)


def _enforcing(settings: Settings) -> Finding:
    check, expected = "routes.enforcing", "every route enforces"
    observing = [route.path for route in settings.route if route.mode == "observe"]
    if not observing:
        return fine(check, "every route", expected)
    advice = 'A stale leader can write there. Take mode = "observe" out once nothing more is counted as would_refuse.'
    return warning(check, f"{listed(observing)} only observes", expected, advice)


def _upstreams(upstreams: Mapping[str, str]) -> Finding:
    expected = "each takes connections"
    away = [f"{origin}: {why}" for origin, why in upstreams.items() if why]
    if away:
        advice = "Start it, or mend the route's target: its writes are answered with upstream_unavailable until then."
        return warning("upstream.reachable", listed(away), expected, advice)
    return fine("upstream.reachable", listed(list(upstreams)), expected)


def _secret(key: str, secret: Secret) -> Finding:
    check, expected = f"files.{key}", "readable here, and by no other user"
    if secret.why:
        return fault(
            check, f"{secret.path}: {secret.why}", expected, "Put it there, or let the gateway's user read it."
        )
    if secret.faulty:
        advice = "Mend the file: the gateway does not start with it, and a reload is refused."
        return fault(check, secret.faulty, "a line for each key: its id and its secret", advice)
    measured = f"{secret.path} has mode {secret.mode:04o}"
    if secret.mode & 0o022:
        return fault(check, measured, expected, f"Run: chmod 600 {secret.path}. Others can write into it.")
    if secret.mode & 0o004:
        return warning(check, measured, expected, f"Run: chmod 600 {secret.path}. Everybody here can read the secret.")
    return fine(check, measured, expected)


def _open_files(settings: Settings, limit: int) -> Finding:
    # An upstream takes a connection per write under way.
    forwards = any(route.parsed_target.kind == "http" for route in settings.route)
    needed = settings.limits.connections + (settings.limits.in_flight if forwards else 0) + _SPARE_FILES
    measured, expected = (
        f"{limit} open files in this session",
        f"{needed}, for limits.connections and what goes with it",
    )
    if limit < 0 or limit >= needed:
        return fine("machine.open_files", "no limit" if limit < 0 else measured, expected)
    advice = "Raise LimitNOFILE (ulimit -n) for the gateway, or lower limits.connections: else it cannot take them all."
    return warning("machine.open_files", measured, expected, advice)
