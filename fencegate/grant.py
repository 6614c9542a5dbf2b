"""A grant: a header that says, under a shared secret, that a caller may present the token of a term.

A fencing token is a small number that every refusal tells, so a number can be guessed and borrowed. A grant is bound to
the role, the token and the caller, ends by itself, and can be made only with the key. It is *one condition more*: it
can only refuse. What is stale stays stale whatever grant comes with it, so no clock decides about the fence here: an
end that is judged wrongly refuses a good write or takes a grant for a little longer, and admits no other term.

``fg1.<key>.<payload>.<mac>``: the payload is JSON in base64url, and what is signed is the very text that is sent, so
that there is no second spelling of anything. It is verified before it is looked into.

Nothing here looks at a clock or a file: times are arguments, in seconds since the epoch.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencegate.errors import FencegateError
from fencegate.key_ring import KEY_ID, SharedKey, framed, key_of
from fencegate.tokens import MAX_TOKEN

LIFETIME: Final = 300.0
"""Seconds for which a grant holds where nobody says otherwise: several times as long as a client keeps a leader."""
LONGEST_LIFETIME: Final = 86_400.0
"""No reader takes a grant that was made for longer, whoever made it."""
SKEW: Final = 5.0
"""Seconds by which the clocks of who signs and who verifies may differ."""
LONGEST_SUBJECT: Final = 512

_PURPOSE: Final = b"fencegate grant 1"
_ROLE: Final = re.compile(r"[!-~]{1,512}", re.ASCII)
_SUBJECT: Final = re.compile(rf"[ -~]{{1,{LONGEST_SUBJECT}}}", re.ASCII)
_GRANT: Final = re.compile(rf"fg1\.({KEY_ID})\.([A-Za-z0-9_-]{{1,2400}})\.([A-Za-z0-9_-]{{43}})".encode())
_LATEST: Final = 10**16


@dataclass(frozen=True, slots=True)
class Grant:
    """What is granted: to present ``token`` for ``role`` as the caller ``subject``. Times in ms since the epoch."""

    role: str
    token: int
    subject: str
    issued: int
    expires: int


class GrantRefused(FencegateError):
    """The grant does not hold. ``code`` is one of the registry's: ``grant_invalid``, ``grant_expired``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def grant_for(role: str, token: int, subject: str, now: float, lifetime: float = LIFETIME) -> Grant:
    """A grant from ``now`` on."""
    issued = int(now * 1000)
    return Grant(role, token, subject, issued, issued + max(1, int(lifetime * 1000)))


def canonical(key_id: str, grant: Grant) -> bytes:
    """All that is signed, as one text that can be read back in one way only."""
    return _signed(key_id.encode(), _payload(grant))


def sign(key: SharedKey, grant: Grant) -> str:
    """The value of ``X-Fencing-Grant``. Raises ``ValueError`` for a grant that no reader would take."""
    if not _makes_sense(grant):
        raise ValueError(f"no grant can be written for the role {grant.role!r} and the caller {grant.subject!r}")
    payload = _payload(grant)
    return f"fg1.{key.id}.{payload.decode()}.{_mac(key, payload).decode()}"


def verify(
    keys: Sequence[SharedKey], text: bytes, role: str, token: int, subject: str, now: float, skew: float = SKEW
) -> Grant:
    """The grant that ``text`` is, if one of ``keys`` made it for this role, token and caller, and it holds now.

    Raises :class:`GrantRefused`, whose message shows nothing of the grant. A key that is not known is one that was
    taken away, or is not here yet: a new grant helps, as it does where one has run out.
    """
    found = _GRANT.fullmatch(text)
    if found is None:
        raise GrantRefused("grant_invalid", "X-Fencing-Grant is malformed.")
    key_id, payload, mac = found.groups()
    key = key_of(keys, key_id.decode())
    if key is None:
        raise GrantRefused("grant_expired", "X-Fencing-Grant was made with a key that is not known here, or no longer.")
    if not hmac.compare_digest(_mac(key, payload), mac):
        raise GrantRefused("grant_invalid", "X-Fencing-Grant was not made here, or was changed.")
    grant = _read(payload)
    if grant is None:
        raise GrantRefused("grant_invalid", "X-Fencing-Grant holds nothing that could have been granted.")
    for name, granted, presented in (
        ("role", grant.role, role),
        ("token", grant.token, token),
        ("caller", grant.subject, subject),
    ):
        if granted != presented:
            raise GrantRefused("grant_invalid", f"X-Fencing-Grant was made for another {name}.")
    if grant.issued > (now + skew) * 1000:
        raise GrantRefused("grant_expired", "X-Fencing-Grant is of a time to come: the two clocks are apart.")
    if grant.expires < (now - skew) * 1000:
        raise GrantRefused("grant_expired", "X-Fencing-Grant has run out.")
    return grant


def _payload(grant: Grant) -> bytes:
    members = [grant.role, grant.token, grant.subject, grant.issued, grant.expires]
    return urlsafe_b64encode(json.dumps(members, separators=(",", ":")).encode()).rstrip(b"=")


def _signed(key_id: bytes, payload: bytes) -> bytes:
    return framed((_PURPOSE, key_id, payload))


def _mac(key: SharedKey, payload: bytes) -> bytes:
    """As it is written. It is compared in this form: its last character has bits that decoding would drop."""
    return urlsafe_b64encode(key.mac(_signed(key.id.encode(), payload))).rstrip(b"=")


def _read(payload: bytes) -> Grant | None:
    """What was signed with a key of ours. Whoever has the key can sign nonsense even so: that is no grant."""
    try:
        members = json.loads(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
        role, token, subject, issued, expires = members
    except (ValueError, TypeError, RecursionError):
        return None
    if not (
        isinstance(role, str) and isinstance(subject, str) and all(type(n) is int for n in (token, issued, expires))
    ):
        return None
    grant = Grant(role, token, subject, issued, expires)
    return grant if _makes_sense(grant) else None


def _makes_sense(grant: Grant) -> bool:
    return (
        _ROLE.fullmatch(grant.role) is not None
        and _SUBJECT.fullmatch(grant.subject) is not None
        and 0 < grant.token <= MAX_TOKEN
        and 0 < grant.issued < grant.expires < _LATEST
        and grant.expires - grant.issued <= LONGEST_LIFETIME * 1000
    )
