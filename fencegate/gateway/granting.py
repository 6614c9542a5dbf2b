"""Grants at the gateway: who is handed one with a discovery, and which write is refused for want of one.

The grammar and the signature are in :mod:`fencegate.grant`. A grant is asked for after the caller, the token's form and
the role are known, and before anything is said of the fence.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from fencegate.errors import Refusal, problem
from fencegate.gateway.header_lines import Fields
from fencegate.grant import LIFETIME, GrantRefused, grant_for, sign, verify
from fencegate.key_ring import SharedKey
from fencegate.tokens import HEADER_GRANT


@dataclass(frozen=True, slots=True)
class Granting:
    """What a role's routes have to do with grants. ``keys``: all verify, and the first signs.

    ``required``: no write is taken without one. ``hands_out``: discovery gives one, which holds ``lifetime`` seconds,
    to a caller that may write. That is so where the gateways elect, or a system that they follow; an application that
    leads signs its own, and whoever else asks gets none under its token.
    """

    keys: tuple[SharedKey, ...]
    required: bool = False
    hands_out: bool = True
    lifetime: float = LIFETIME

    def handed_to(self, caller: str, role: str, token: int) -> dict[str, object]:
        """What discovery's answer says besides, to a caller that may write; nothing where none is to be given."""
        if not self.hands_out or not caller:
            return {}
        grant = grant_for(role, token, caller, time.time(), self.lifetime)
        return {"grant": sign(self.keys[0], grant), "grant_expires_in_ms": grant.expires - grant.issued}

    def refusal(self, fields: Fields, role: str, token: int, caller: str) -> Refusal | None:
        """Why a write of this caller is not taken under what it presents; ``None``: its grant holds."""
        lines = fields.grant
        if not lines:
            detail = f"A write here needs the {HEADER_GRANT} header that discovery gives together with the token."
            return Refusal(problem("grant_required"), detail, extra={"required_header": HEADER_GRANT})
        if fields.grant_twin or len(lines) > 1:
            detail = f"{HEADER_GRANT} must come on exactly one line, under its own name."
            return Refusal(problem("grant_invalid"), detail)
        try:
            verify(self.keys, lines[0], role, token, caller, time.time())
        except GrantRefused as error:
            return Refusal(problem(error.code), str(error))
        return None
