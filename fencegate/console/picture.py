"""From what every node says of itself to one picture of a role. Pure: ages come in, no clock is read.

No node can know ``leader_count`` alone: it is the number of nodes that say of themselves that they lead. A node that
cannot be seen may lead too, and the picture says that instead of leaving it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

LEADING: Final = frozenset({"leading", "announcing", "yielding", "undoing"})
"""What a node that leads calls its state."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """One node's word, ``age`` seconds old: its document, or why there is none."""

    place: str
    age: float
    document: Json | None
    problem: str = ""
    url: str = ""
    """Its console's origin; ``""`` for the node that shows the picture."""


class Health(StrEnum):
    """What the verdict comes to."""

    ONE = "one"
    NOBODY = "nobody"
    TWO = "two"
    BLIND = "blind"


class Link(StrEnum):
    """How a link of the chain is: what comes after a failing one says nothing."""

    HOLDS = "holds"
    FAILS = "fails"
    MOOT = "moot"


@dataclass(frozen=True, slots=True)
class Box:
    """One link of the chain: what it promises, its value now, and a remark."""

    title: str
    value: str
    remark: str
    link: Link


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence that belongs above everything else of a role. ``alarming``: somebody may have to act."""

    text: str
    alarming: bool = True


@dataclass(frozen=True, slots=True)
class Believer:
    """What one node says of a role."""

    place: str
    node: str
    region: str
    state: str
    fence: str
    max_token_seen: int | None
    age: float
    problem: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """What the node that shows the picture can act on: whether it leads, and the term of its own store (0: none)."""

    leads: bool
    term: int
    sealed: bool
    draining: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the console shows of one role. ``line`` are steps of (age, leader_count), the oldest first.

    ``spoken`` is the verdict without what changes with every second.
    """

    role: str
    health: Health
    verdict: str
    spoken: str
    age: float
    chain: tuple[Box, ...]
    line: tuple[tuple[float, int], ...]
    rejections: tuple[tuple[str, str, int], ...]
    believers: tuple[Believer, ...]
    renewals: Json
    checks: Json
    region: str
    """Where it is led, ``""`` where it is not known."""
    token: str = ""
    left: float | None = None
    """Seconds left of the leader's lease, by its own store; ``None`` where that is not known or has no end."""
    notices: tuple[Notice, ...] = ()
    timings: Json = field(default_factory=dict)
    own: Own = Own(leads=False, term=0, sealed=False, draining=False)
    rehearsal: bool = False


def roles_of(seen: Sequence[Seen]) -> list[str]:
    """Every role that somebody speaks of, in the order of the first who does."""
    names = [role["role"] for one in seen if one.document for role in one.document["roles"]]
    return list(dict.fromkeys(names))


def pictures_of(seen: Sequence[Seen]) -> list[Picture]:
    """The picture of each role that somebody speaks of. The first of ``seen`` is the node that shows them."""
    words = [{word["role"]: word for word in one.document["roles"]} if one.document else {} for one in seen]
    return [
        _picture(role, [(one, of_node.get(role, {})) for one, of_node in zip(seen, words, strict=True)])
        for role in roles_of(seen)
    ]


def picture_of(role: str, seen: Sequence[Seen]) -> Picture:
    """The picture of ``role`` alone."""
    return _picture(role, [(one, _role(one, role)) for one in seen])


def _picture(role: str, said: Sequence[tuple[Seen, Json]]) -> Picture:
    seen = [one for one, _ in said]
    leading = [(one, word) for one, word in said if word and word["candidacy"] in LEADING]
    blind = [one for one in seen if one.document is None]
    known = next((word["leader"] for _, word in said if word and word["leader"]), None)
    health, verdict, spoken = _verdict(role, leading, blind, known, said)
    line = tuple(_line([word["memory"]["leading"] for _, word in said if word]))
    if health is Health.NOBODY and line and line[-1][1] == 0:
        verdict += f" for {line[-1][0]:.0f} s"
    leader = leading[0][1] if leading else None
    memory = (leader or (said[0][1] if said else {})).get("memory") or {}
    shower = seen[0].document if seen and seen[0].document else {}
    return Picture(
        role,
        health,
        verdict,
        spoken,
        max((one.age for one in seen if one.document), default=0.0),
        tuple(_chain(leader, known, [(one, word) for one, word in said if word], health)),
        line,
        tuple(_rejections(said)),
        tuple(_believer(one, word) for one, word in said),
        memory.get("renewals") or {},
        memory.get("checks") or {},
        leading[0][0].document["region"] if leading and leading[0][0].document else (known or {}).get("region", ""),
        str((known or {}).get("token") or (_token(leader) if leader else "")),
        _finite(_left(leader)) if leader else None,
        tuple(_notices(said)),
        shower.get("timings") or {},
        _own(said[0][1] if said else {}),
        any(word.get("rehearsal") for _, word in said),
    )


def _notices(said: Sequence[tuple[Seen, Json]]) -> Iterator[Notice]:
    observing = [_name(one) for one, word in said if word.get("observed")]
    if observing:
        yield Notice(f"OBSERVE MODE at {_and(observing)}: stale writes are counted there, and go through.")
    for one, word in said:
        if one.document is None:
            yield Notice(f"{one.place} cannot be seen: whatever happens there is missing here.")
        elif not (store := _store_of(one.document, word))["up"]:
            yield Notice(f"The store of {_name(one)} does not answer ({store['reason']}).")
        elif word and (word["fence"] or {}).get("draining"):
            yield Notice(
                f"DRAINING at {_name(one)}: no write is taken there until the drain or the handoff ends.", False
            )


def _own(word: Json) -> Own:
    fence = word.get("fence") or {}
    term, leads = int(fence.get("max_token_seen") or 0), word.get("candidacy") in LEADING
    return Own(leads, term, int(fence.get("sealed") or 0) >= term, bool(fence.get("draining")))


def _role(one: Seen, role: str) -> Json:
    roles: list[Json] = one.document["roles"] if one.document else []
    return next((word for word in roles if word["role"] == role), {})


def _verdict(
    role: str,
    leading: Sequence[tuple[Seen, Json]],
    blind: Sequence[Seen],
    known: Json | None,
    said: Sequence[tuple[Seen, Json]],
) -> tuple[Health, str, str]:
    unseen = f"; {_and([one.place for one in blind])} cannot be seen" if blind else ""
    if len(leading) > 1:
        names = _and([f"{_name(one)} (token {_token(word)})" for one, word in leading])
        verdict = f"TWO LEADERS of {role}: {names}{unseen}"
        return Health.TWO, verdict, verdict
    if leading:
        one, word = leading[0]
        left = _finite(_left(word))
        lease = f", lease {left:.1f} s left" if left is not None else ""
        led = f"{role}: led by {_name(one)}, token {_token(word)}"
        return Health.ONE, f"{led}{lease}{unseen}", f"{led}{unseen}"
    if known:
        # Nobody here says so of itself: only where nobody can be missing is that the whole truth.
        everybody_follows = not blind and all(word and word["candidacy"] == "" for _, word in said)
        where, token = known["region"] or known["url"], known.get("token", "?")
        verdict = f"{role}: led in {where}, token {token}, by the election's word{unseen}"
        return (Health.ONE if everybody_follows else Health.BLIND), verdict, verdict
    if blind or not any(word and word["leadership_known"] for _, word in said):
        verdict = f"{role}: whether anybody leads is not known{unseen}"
        return Health.BLIND, verdict, verdict
    return Health.NOBODY, f"NO LEADER of {role}", f"NO LEADER of {role}"


def _chain(leader: Json | None, known: Json | None, words: Sequence[tuple[Seen, Json]], health: Health) -> list[Box]:
    left = _left(leader) if leader else None
    renewed = ((leader or {}).get("memory") or {}).get("renewals") or {}
    fences = [(one.document["region"], word["fence"]) for one, word in words if one.document and word["fence"]]
    down = [one for one, word in words if one.document and not _store_of(one.document, word)["up"]]
    leading = [one.document["region"] for one, word in words if one.document and word["candidacy"] in LEADING]
    opened = [region for region, fence in fences if fence["open"]]
    draining = any(fence["open"] and fence["draining"] for _, fence in fences)
    observing = [one.document["node"] for one, word in words if one.document and word.get("observed")]
    refused = sum(sum((word["rejections"] or {}).values()) for _, word in words)
    one_leads = health is Health.ONE or (health is Health.BLIND and known is not None)
    boxes: list[tuple[str, str, str, bool | None]] = [
        (
            "A quorum elects one leader",
            "nobody" if not leader and not known else ("two" if health is Health.TWO else "one"),
            _and(leading) if health is Health.TWO else (known or {}).get("region") or "",
            one_leads,
        ),
        (
            "It holds a lease",
            ("none" if leader or not known else "not seen") if left is None else _lease(left),
            f"renewed {renewed['last_age']:.1f} s ago" if renewed.get("last_age") is not None else "",
            left is not None and left > 0 if leader else (None if known else False),
        ),
        (
            "Every write carries its token",
            str((known or {}).get("token") or (_token(leader) if leader else "none")),
            "X-Fencing-Token",
            bool(leader or (known or {}).get("token")),
        ),
        (
            "Token ≥ highest seen?",
            ", ".join(f"{region} {fence['max_token_seen']}" for region, fence in fences) or "no store answers",
            f"{'draining' if draining else 'open'}: {_and(opened)}" if opened else "no store is open",
            bool(fences) and not down and (len(opened) == 1 or not leader),
        ),
        (
            "A stale token is refused",
            "let through" if observing else f"{refused:,} refused",
            f"observe mode at {_and(observing)}" if observing else "since the gateways started",
            not observing,
        ),
    ]
    links: list[Box] = []
    broken = False
    for title, value, remark, holds in boxes:
        link = Link.MOOT if broken or holds is None else Link.HOLDS if holds else Link.FAILS
        broken = broken or holds is False
        links.append(Box(title, value, remark, link))
    return links


def _line(turns: Sequence[Sequence[Sequence[float]]]) -> list[tuple[float, int]]:
    """leader_count over time out of each node's own changes: [age, count] steps, the oldest first."""
    changes = sorted(((age, place, int(leads)) for place, own in enumerate(turns) for age, leads in own), reverse=True)
    leading: dict[int, int] = {}
    steps: list[tuple[float, int]] = []
    for age, place, leads in changes:
        leading[place] = leads
        steps.append((age, sum(leading.values())))
    return steps


def _rejections(said: Sequence[tuple[Seen, Json]]) -> list[tuple[str, str, int]]:
    found = [
        (one.document["region"], reason, count)
        for one, word in said
        if word and one.document
        for reason, count in (word["rejections"] or {}).items()
    ]
    return sorted(found, key=lambda row: (-row[2], row[0], row[1]))


def _believer(one: Seen, word: Json) -> Believer:
    document = one.document
    if document is None or not word:
        return Believer(one.place, "", "", "", "", None, one.age, one.problem or "does not have this role", one.url)
    fence = word["fence"]
    store = _store_of(document, word)
    told = "no answer" if not store["up"] else "none" if fence is None else _fence(fence)
    return Believer(
        one.place,
        document["node"],
        document["region"],
        word["candidacy"] or "follows",
        told,
        fence["max_token_seen"] if fence else None,
        one.age,
        "" if store["up"] else f"store: {store['reason']}",
        one.url,
    )


def _store_of(document: Json, word: Json) -> Json:
    """How the store that holds the role stands; of several each has a word of its own."""
    found: Json = document["stores"][word["store"]] if word and "store" in word else document["store"]
    return found


def _fence(fence: Json) -> str:
    if fence["draining"]:
        return "draining"
    left = fence["valid_for_s"]
    return ("open" if left is None else f"open for {left:.1f} s") if fence["open"] else "closed"


def _left(word: Json) -> float | None:
    """Seconds that the leader has, by its own store."""
    fence = word["fence"]
    if not fence or not fence["open"]:
        return None
    return float(fence["valid_for_s"]) if fence["valid_for_s"] is not None else float("inf")


def _finite(left: float | None) -> float | None:
    return left if left is not None and left != float("inf") else None


def _lease(left: float) -> str:
    return "without an end" if left == float("inf") else f"{left:.1f} s left"


def _token(word: Json) -> str:
    leader, fence = word["leader"], word["fence"]
    return str((leader or {}).get("token") or (fence["max_token_seen"] if fence else "?"))


def _name(one: Seen) -> str:
    document = one.document or {}
    return f"{document.get('node', one.place)} in {document.get('region', '?')}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
