"""The rules between a route's keys for grants, and those of others: see :mod:`fencegate.grant`."""

from __future__ import annotations

from collections.abc import Iterator

from fencegate.config.broken import Broken
from fencegate.config.identity import IdentitySettings
from fencegate.config.settings import RouteSettings
from fencegate.grant import LIFETIME

SHARED = ("grant", "grant_key_file", "grant_lifetime")
"""What all routes of a role agree on: through one that asks for nothing a number alone would do."""
_NOT_OF_PROOFS = "expected one file for proofs and another for grants: an upstream that checks proofs could make grants"


def broken(key: str, route: RouteSettings, identity: IdentitySettings) -> Iterator[Broken]:
    """A grant that nobody could have, or that would be bound to nobody."""
    sources = ("identity.certificate", "identity.header")
    if route.grant_key_file is None:
        if route.grant == "required":
            yield Broken(f"{key}.grant", "expected grant_key_file with it, or off", (f"{key}.grant_key_file",))
        if route.grant_lifetime != LIFETIME:
            sentence = "expected grant_key_file with it"
            yield Broken(f"{key}.grant_lifetime", sentence, (f"{key}.grant_key_file",))
        return
    if not identity.known:
        sentence = "expected identity.certificate or identity.header with it: a grant is bound to a caller"
        yield Broken(f"{key}.grant_key_file", sentence, sources)
    if route.grant_key_file == route.proof_key_file:
        yield Broken(f"{key}.grant_key_file", _NOT_OF_PROOFS, (f"{key}.proof_key_file",))
    if route.grant == "off":
        return
    if route.rehearsal:
        sentence = 'expected false, or grant = "off": a game day\'s clients are no callers of yours'
        yield Broken(f"{key}.rehearsal", sentence, (f"{key}.grant",))
    if route.parsed_target.kind == "authz" and identity.known and identity.header is None:
        sentence = "expected identity.header with it: the certificate that is seen there is the asking proxy's"
        yield Broken(f"{key}.grant", sentence, ("identity.header",))


def broken_pair(key: str, route: RouteSettings, name: str, other: RouteSettings) -> Iterator[Broken]:
    """Two routes of one role that do not agree; or one file for the proofs of one and the grants of the other."""
    if route.grant_key_file is not None and route.grant_key_file == other.proof_key_file:
        yield Broken(f"{key}.grant_key_file", f"{_NOT_OF_PROOFS} (it is that of {name})")
    if route.proof_key_file is not None and route.proof_key_file == other.grant_key_file:
        yield Broken(f"{key}.proof_key_file", f"{_NOT_OF_PROOFS} (it is that of {name})")
    for setting in SHARED:
        if route.role == other.role and getattr(route, setting) != getattr(other, setting):
            sentence = f"expected the same as in {name}: grants are the role {route.role}'s, whichever its route"
            yield Broken(f"{key}.{setting}", sentence)
