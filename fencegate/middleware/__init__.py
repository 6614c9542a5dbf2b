"""The check in somebody else's service: no write is taken around the gate. Nothing but the standard library.

    from fencegate.middleware import Gatekeeper
    from fencegate.middleware.asgi import Fenced      # or fencegate.middleware.wsgi

    app.add_middleware(Fenced, gatekeeper=Gatekeeper(proof_key_file="/etc/ledger/proof.keys"))

``docs/middleware.md`` has what it promises, and what it does not.
"""

from fencegate.middleware.gatekeeper import AsyncTokenFence, Fencing, Gatekeeper, TokenFence
from fencegate.middleware.high_water import HighWaterMark
from fencegate.middleware.refusals import Answer, guard_refusal
from fencegate.middleware.used_proofs import AsyncProofMemory, FolderMemory, ProofMemory

__all__ = [
    "Answer",
    "AsyncProofMemory",
    "AsyncTokenFence",
    "Fencing",
    "FolderMemory",
    "Gatekeeper",
    "HighWaterMark",
    "ProofMemory",
    "TokenFence",
    "guard_refusal",
]
