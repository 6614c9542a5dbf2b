"""What is taken and what is refused, for both kinds of server: :mod:`fencegate.middleware.asgi` and ``wsgi``.

A request goes through :meth:`Gatekeeper.examine`, which needs its head alone. If it is protected it goes on through
:meth:`Gatekeeper.compare`, with its body where the proof covers that, :meth:`Gatekeeper.judge_use`, with the word of
the memory of used proofs, and :meth:`Gatekeeper.judge`, with the fence's.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from fencegate import tokens
from fencegate.access.key_file import KeyFile
from fencegate.errors import ConfigurationError, Unavailable
from fencegate.middleware.refusals import refused
from fencegate.middleware.used_proofs import AsyncProofMemory, ProcessMemory, ProofMemory
from fencegate.proof import COVERED_BODY, Passage, ProofRefused, Stamp, digest_of, verify
from fencegate.steady_clock import steady_clock

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
EXPOSED_AS: Final = "fencegate"
"""The key in an ASGI scope or a WSGI environment under which an application finds its :class:`Fencing`."""
MOST_BODY: Final = COVERED_BODY
"""Bytes of a body that are read to compare it with the proof; no proof covers a longer one."""

_OVERRIDES: Final = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")
_MILLISECONDS = re.compile(rb"[1-9][0-9]{0,9}")


class TokenFence(Protocol):
    """Where the highest token of each role is kept, for a service that checks by itself."""

    def raise_to(self, role: str, token: int) -> int:
        """The highest token seen for the role, this one included. It never falls.

        Raises :class:`fencegate.errors.Unavailable` where that cannot be told: the write is refused.
        """
        ...


class AsyncTokenFence(Protocol):
    """The same for an ASGI application, where the answer has to be waited for."""

    async def raise_to(self, role: str, token: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Fencing:
    """What was verified of the write that an application now has before it.

    ``token`` is ``None`` only where the gateway observes and the write had none. ``enforced`` is ``False`` where nobody
    has checked the token yet: a route in observe mode.
    """

    role: str
    token: int | None
    idempotency_key: str | None = None
    max_token_seen: int | None = None
    enforced: bool = True
    caller: str | None = None
    """Who wrote, by the gateway's word; ``None`` where it knows nobody, or there is no proof that it is its word."""
    until: float | None = None
    """When the write's time is over, on the clock of :meth:`seconds_left`; ``None``: the gateway said nothing."""

    def seconds_left(self) -> float:
        """Seconds in which the write has to be applied, or must not be any more; infinite where nobody said.

        They go on while the machine is suspended: the newer term that waits for them waits no longer for that.
        """
        return float("inf") if self.until is None else self.until - steady_clock()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request's head. ``path`` is decoded; ``values``: every value of a header field, in the order of its lines.

    ``routed`` is what the application goes by: the path without the prefix below which its server has put it.
    """

    method: str
    path: bytes
    routed: bytes
    query: bytes
    values: Callable[[str], list[bytes]]


@dataclass(frozen=True, slots=True)
class Examined:
    """A protected request whose head will do. ``stamp`` is its proof's, where proofs are asked for."""

    fencing: Fencing
    stamp: Stamp | None

    @property
    def covers_body(self) -> bool:
        return self.stamp is not None and self.stamp.body is not None


class Gatekeeper:
    """The rules of one service. At least one of ``proof_key_file`` and ``fence`` is needed; the proof comes first.

    - ``proof_key_file``: the keys that the gateway signs with; every protected request needs a proof.
    - ``fence``: keeps the highest token of each role, and refuses a lower one.
    - ``role``: the role that writes belong to, or a function from a decoded path to it (``None``: no such role).
      With proofs optional: then only this role's are taken.
    - ``methods``: the protected ones; ``None`` for all but GET, HEAD and OPTIONS.
    - ``open_paths``: not protected, whatever the method: exact paths, or beginnings with ``/*`` at the end.
    - ``skew``: seconds by which the gateway's clock and this one may differ, and a request may wait on its way.
    - ``accept_observed``: take what a gateway in observe mode let through without checking it.
    - ``used_proofs``: remembers which proofs were used; ``None`` for a memory of this process alone.

    Raises :class:`ConfigurationError` with every fault at once.
    """

    def __init__(
        self,
        *,
        proof_key_file: str | os.PathLike[str] | None = None,
        fence: TokenFence | AsyncTokenFence | None = None,
        role: str | Callable[[str], str | None] | None = None,
        methods: Collection[str] | None = None,
        open_paths: Collection[str] = (),
        skew: float = 5.0,
        accept_observed: bool = False,
        used_proofs: ProofMemory | AsyncProofMemory | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = steady_clock,
    ) -> None:
        faults = []
        if proof_key_file is None and fence is None:
            faults.append("proof_key_file or fence: missing; expected at least one of them")
        if proof_key_file is None and role is None:
            faults.append(
                "role: missing; expected the role that the writes belong to, which only a proof tells by itself"
            )
        if isinstance(methods, str) or not all(name.isupper() for name in methods or ()):
            faults.append(f"methods = {methods!r}: expected a collection of upper-case HTTP methods")
        if isinstance(open_paths, str) or not all(path.startswith("/") and path != "/*" for path in open_paths):
            faults.append(f"open_paths = {open_paths!r}: expected paths that begin with /, and not all of them")
        if not 0 <= skew <= 3600:
            faults.append(f"skew = {skew!r}: expected seconds, 0 to 3600")
        try:
            self._keys = None if proof_key_file is None else KeyFile(proof_key_file, steady)
        except ConfigurationError as error:
            faults += error.faults
        if faults:
            raise ConfigurationError(faults)
        self._fence = fence
        self._role = role
        self._methods = None if methods is None else frozenset(methods)
        self._open = frozenset(path for path in open_paths if not path.endswith("/*"))
        self._open_below = tuple(path[:-1] for path in open_paths if path.endswith("/*"))
        self._skew = skew
        self._accept_observed = accept_observed
        self._wall, self._steady = wall, steady
        self._memory = ProcessMemory(wall) if used_proofs is None else used_proofs

    def is_open(self, path: bytes) -> bool:
        """Whether the path needs no check. One that could be read in two ways is never open."""
        text = path.decode("utf-8", "replace")
        if "//" in text or any(part.split(";", 1)[0] in (".", "..") for part in text.split("/")) or "\\" in text:
            return False
        return text in self._open or any(text.startswith(beginning) for beginning in self._open_below)

    def _protects(self, method: str) -> bool:
        """Some frameworks take ``post`` for ``POST``, and nearly all carry a ``HEAD`` out by the code for ``GET``."""
        if self._methods is None:
            return method not in SAFE_METHODS
        return method.upper() in self._methods or (method.upper() == "HEAD" and "GET" in self._methods)

    def examine(self, arrival: Arrival) -> Examined | None:
        """What the head says; ``None`` for a request that needs no check. Raises :class:`Refused`."""
        if self.is_open(arrival.routed):
            return None
        if any(arrival.values(name) for name in _OVERRIDES):
            raise refused("request_malformed", "A fenced service takes no method override header.")
        if not self._protects(arrival.method):
            return None
        examined = self._with_proof(arrival) if self._keys is not None else self._without_proof(arrival)
        fencing = examined.fencing
        if self._fence is not None and fencing.enforced and fencing.token is None:
            raise refused("token_required", "A write needs the X-Fencing-Token header.", role=fencing.role)
        return examined

    def compare(self, examined: Examined, body: bytes) -> None:
        """``body`` is what the proof was made for, where it covers one, and came in time. Raises :class:`Refused`."""
        stamp, fencing = examined.stamp, examined.fencing
        if stamp is None:
            return
        if stamp.body is not None and (len(body) > MOST_BODY or digest_of(body) != stamp.body):
            detail = "X-Fencing-Proof was made for another body."
            raise refused("proof_invalid", detail, role=fencing.role, token=fencing.token)
        if self._remembered_until(stamp) < self._wall():
            # Its use, if there was one, may be forgotten by now.
            detail = "X-Fencing-Proof has become too old while the body came."
            raise refused("proof_expired", detail, role=fencing.role, token=fencing.token)

    def ask_memory(self, examined: Examined) -> bool | Awaitable[bool]:
        """Whether the proof is used for the first time, perhaps to be waited for. From here on it was used."""
        stamp = examined.stamp
        if stamp is None:
            return True
        mark = hashlib.sha256(f"{stamp.nonce} {stamp.issued} {stamp.role}".encode()).hexdigest()[:32]
        return self._memory.first_use(mark, self._remembered_until(stamp))

    def judge_use(self, fencing: Fencing, first: bool) -> None:
        """Refuses a proof that was used before (``proof_invalid``). Raises :class:`Refused`."""
        if not first:
            detail = "X-Fencing-Proof was used before: a gateway sends each write once."
            raise refused("proof_invalid", detail, role=fencing.role, token=fencing.token)

    def _remembered_until(self, stamp: Stamp) -> float:
        return stamp.expires / 1000 + self._skew

    def ask_fence(self, fencing: Fencing) -> int | Awaitable[int] | None:
        """The highest token seen for the role, perhaps to be waited for; ``None`` where no fence is to be asked.

        A token that the gateway has not checked must not raise it.
        """
        if self._fence is None or fencing.token is None or not fencing.enforced:
            return None
        return self._fence.raise_to(fencing.role, fencing.token)

    def judge(self, fencing: Fencing, highest: int | None) -> None:
        """Refuses a token below the highest one seen (``stale_token``). Raises :class:`Refused`."""
        token = fencing.token or 0
        if highest is not None and highest > token:
            detail = f"Token {token} is older than {highest}, the highest token already accepted for this role."
            raise refused("stale_token", detail, role=fencing.role, token=token, max_seen=highest)

    def _with_proof(self, arrival: Arrival) -> Examined:
        assert self._keys is not None
        proofs = arrival.values(tokens.HEADER_PROOF)
        if not proofs:
            raise refused("proof_required", "This service takes writes that come through its gateway, and no others.")
        passage = Passage(
            method=arrival.method,
            path=arrival.path,
            query=arrival.query,
            token=_only(arrival, tokens.HEADER_TOKEN),
            max_seen=_only(arrival, tokens.HEADER_MAX_SEEN),
            timeout_ms=_only(arrival, tokens.HEADER_TIMEOUT),
            idempotency_key=_only(arrival, tokens.HEADER_IDEMPOTENCY_KEY),
            caller=_only(arrival, tokens.HEADER_CALLER),
        )
        now = self._wall()
        try:
            if len(proofs) > 1:
                raise ProofRefused("proof_invalid", "X-Fencing-Proof must come on exactly one line.")
            stamp = verify(self._keys.keys(), proofs[0], passage, now, self._skew)
        except ProofRefused as error:
            raise refused(error.code, str(error)) from None
        if self._role is not None and self._role_of(arrival) != stamp.role:
            raise refused("proof_invalid", "X-Fencing-Proof was made for another role than this path's.")
        if stamp.mode == "observe" and not self._accept_observed:
            detail = "The gateway only observes this route and has not checked the write."
            raise refused("proof_invalid", detail, role=stamp.role)
        age = max(0.0, now - stamp.issued / 1000)
        return Examined(self._fencing(stamp.role, passage, age, enforced=stamp.mode == "enforce"), stamp)

    def _without_proof(self, arrival: Arrival) -> Examined:
        role = self._role_of(arrival)
        if role is None:
            raise refused("unknown_role", "No role belongs to this path.")
        passage = Passage(
            arrival.method,
            arrival.path,
            arrival.query,
            token=_only(arrival, tokens.HEADER_TOKEN),
            timeout_ms=_only(arrival, tokens.HEADER_TIMEOUT),
            idempotency_key=_only(arrival, tokens.HEADER_IDEMPOTENCY_KEY),
        )
        return Examined(self._fencing(role, passage, 0.0, enforced=True), None)

    def _role_of(self, arrival: Arrival) -> str | None:
        return self._role(arrival.routed.decode("utf-8", "replace")) if callable(self._role) else self._role

    def _fencing(self, role: str, passage: Passage, age: float, *, enforced: bool) -> Fencing:
        """``age``: seconds since the gateway counted the time that is left."""
        token = None if passage.token is None else _token(passage.token, role)
        until = None
        if passage.timeout_ms is not None:
            if _MILLISECONDS.fullmatch(passage.timeout_ms) is None:
                raise refused("request_malformed", "X-Fencing-Timeout-Ms must be one whole number of milliseconds.")
            left = int(passage.timeout_ms) / 1000 - age
            if left <= 0:
                detail = "The write's time ran out before it reached the service."
                raise refused("deadline_exceeded", detail, role=role, token=token)
            until = self._steady() + left
        told = passage.max_seen or b""
        seen = int(told) if told.isdigit() else None
        key = None if passage.idempotency_key is None else _key(passage.idempotency_key, role)
        caller = None if passage.caller is None else passage.caller.decode("latin-1")
        return Fencing(role, token, key, seen, enforced, caller, until)


@contextmanager
def asking(what: str, fencing: Fencing) -> Iterator[None]:
    """Whoever cannot answer refuses the write. Raises :class:`Refused` for ``Unavailable``."""
    try:
        yield
    except Unavailable as error:
        detail = f"{what} cannot be asked: {error}."
        raise refused("fence_unavailable", detail, role=fencing.role, token=fencing.token) from error


def _only(arrival: Arrival, name: str) -> bytes | None:
    values = arrival.values(name)
    if len(values) > 1:
        code = "token_malformed" if name == tokens.HEADER_TOKEN else "request_malformed"
        raise refused(code, f"{name} must come on exactly one line.")
    return values[0] if values else None


def _token(value: bytes, role: str) -> int:
    try:
        return tokens.parse_token(value.decode("latin-1"))
    except tokens.MalformedToken as error:
        raise refused("token_malformed", f"X-Fencing-Token is malformed: {error}.", role=role) from None


def _key(value: bytes, role: str) -> str:
    try:
        return tokens.parse_idempotency_key(value.decode("latin-1"))
    except tokens.MalformedKey as error:
        detail = f"Idempotency-Key is malformed: {error}."
        raise refused("idempotency_key_malformed", detail, role=role) from None
