"""What an operator may do to a role on the admin listener: what is asked for, checked, then carried out to its end.

Each action is one POST with a JSON object. Whoever asked may go away: what was begun is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from fencegate.errors import Unavailable
from fencegate.tokens import MAX_TOKEN

LONGEST: Final = 600.0
"""The longest time limit of an action, in seconds."""
HANDOFF_LIMIT: Final = 10.0
DRAIN_LIMIT: Final = 30.0
SEAL_LIMIT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of an action: the status to answer with, and the document."""

    status: int
    document: Mapping[str, object]


Asked = dict[str, Any]
"""What an action was asked with, checked: ``to``, ``limit`` in seconds, ``token``."""
Action = Callable[[str, Asked], Awaitable[Acted]]
"""Takes a role. May raise :class:`fencegate.errors.Unavailable`: nothing was begun."""

_EXAMPLES: Final[dict[str, Asked]] = {
    "handoff": {"to": "dr", "limit": HANDOFF_LIMIT},
    "drain": {"limit": DRAIN_LIMIT},
    "resume": {},
    "seal": {"token": 42, "limit": SEAL_LIMIT},
    "resign": {},
}
NAMES: Final = tuple(_EXAMPLES)
_OPTIONAL: Final = {"handoff": ("token", "rehearsal"), "drain": ("token",)}
_DONE: Final = frozenset({"done", "already", "drained", "resumed", "sealed", "resigned"})
_REFUSED: Final = frozenset({"busy", "no_candidate", "not_here", "not_draining", "other_term"})
_UNDER_WAY: Final = frozenset({"pending", "draining"})


def status_of(outcome: str) -> int:
    """What an outcome is answered with: 200 done, 202 under way, 409 refused before anything was begun, else 503."""
    if outcome in _DONE:
        return 200
    return 202 if outcome in _UNDER_WAY else 409 if outcome in _REFUSED else 503


@dataclass(slots=True)
class Actions:
    """The actions on ``roles``, by name. One that is not in ``offered`` cannot be had on this gateway.

    ``rehearsal``: the roles that a game day may hand over; one that says so is refused all others.
    """

    roles: Collection[str]
    offered: Mapping[str, Action]
    rehearsal: Collection[str] = ()
    _under_way: set[asyncio.Future[Acted]] = field(default_factory=set)

    async def act(self, name: str, role: str, body: bytes) -> Acted:
        """Carry out action ``name`` as a POST with ``body`` asks for it."""
        if role not in self.roles:
            return _error(404, "No role of this name is configured here.")
        if name not in NAMES:
            return _error(404, f"There is no action of this name, only {', '.join(NAMES)}.")
        action = self.offered.get(name)
        if action is None:
            return _error(409, f"This gateway follows the election; it has no leadership to {_VERBS[name]}.")
        try:
            asked = read(name, body)
        except ValueError as error:
            return _error(400, str(error))
        if asked.pop("rehearsal", False) and role not in self.rehearsal:
            sentence = "This role is not for rehearsals: no route of it says rehearsal = true on this gateway."
            return _error(403, sentence)
        work = asyncio.ensure_future(action(role, asked))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        try:
            done = await asyncio.shield(work)
        except Unavailable as error:
            return _error(503, f"Nothing was begun: {error}")
        to = {"to": asked["to"]} if "to" in asked else {}
        return Acted(done.status, {"role": role, **to, **done.document})


_VERBS: Final = {"handoff": "hand over", "drain": "drain", "resume": "drain", "resign": "give up", "seal": "seal"}


def _error(status: int, sentence: str) -> Acted:
    return Acted(status, {"error": sentence})


def read(name: str, body: bytes) -> Asked:
    """What ``body`` asks of action ``name``. Raises ``ValueError`` with a sentence that names what was expected."""
    example = _EXAMPLES[name]
    if not example and not body.strip():
        return {}
    shown = orjson.dumps({key: int(v) if isinstance(v, float) else v for key, v in example.items()}).decode()
    expected = f"Expected a JSON object such as {shown.replace(':', ': ').replace(',', ', ')}: "
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(expected + "the body is none.")
    if unknown := set(document) - set(example) - set(_OPTIONAL.get(name, ())):
        raise ValueError(expected + f"there is no {sorted(unknown)[0]!r} in it.")
    asked: Asked = {}
    if "to" in example:
        asked["to"] = document.get("to")
        if not isinstance(asked["to"], str) or not asked["to"]:
            raise ValueError(expected + "to must name a region.")
    if "limit" in example:
        limit = document.get("limit", example["limit"])
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= LONGEST:
            raise ValueError(expected + f"limit must be more than 0 and at most {LONGEST:g} seconds.")
        asked["limit"] = float(limit)
    token = document.get("token")
    if "token" in example or token is not None:
        if isinstance(token, bool) or not isinstance(token, int) or not 1 <= token <= MAX_TOKEN:
            raise ValueError(expected + "token must be the number of the term.")
        asked["token"] = token
    if "rehearsal" in document:
        if not isinstance(document["rehearsal"], bool):
            raise ValueError(expected + "rehearsal must be true or false.")
        asked["rehearsal"] = document["rehearsal"]
    return asked
