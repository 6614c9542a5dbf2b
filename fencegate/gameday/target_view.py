"""A running deployment as its admin listeners describe it: what may be rehearsed with, and what must not change. Pure.

A document is what ``/-/roles`` answers. Gateways of one region share a store, so the first of them that sees it speaks
for the region.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fencegate.gameday.ledgers import Standing

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Canary:
    """What a rehearsal needs to know. ``origins`` are where clients of each region write, ``leader`` leads now."""

    role: str
    path: str
    lease: float
    leader: str
    origins: Mapping[str, str]

    @property
    def other(self) -> str:
        return next(name for name in self.origins if name != self.leader)


def by_region(documents: Sequence[Document]) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        found[str(document.get("region"))].append(document)
    return dict(found)


def canary(documents: Sequence[Document], role: str | None) -> Canary:
    """The canary of a deployment in which all is well. Raises ``ValueError`` with the reason not to begin."""
    regions = by_region(documents)
    if len(regions) != 2:
        named = ", ".join(sorted(regions)) or "none"
        raise ValueError(f"expected gateways of two regions as targets; these are of: {named}")
    chosen = _chosen(documents, role)
    marks = {(str(d.get("node")), _role(d, chosen).get("path")) for d in documents}
    if any(not path for _, path in marks):
        unmarked = ", ".join(sorted(node for node, path in marks if not path))
        raise ValueError(
            f"the role {chosen} is not marked for rehearsals at {unmarked}: no route of it says rehearsal = true there"
        )
    paths = {str(path) for _, path in marks}
    if len(paths) != 1:
        raise ValueError(f"the role {chosen} has another path at each gateway: {', '.join(sorted(paths))}")
    leading = [name for name in regions if standing(documents, name, chosen).open]
    if len(leading) != 1:
        raise ValueError(f"expected one region to lead {chosen} before the rehearsal; it is {leading or 'none'}")
    if wrong := [f"{name} has {count} leaders" for name, count in leader_counts(documents).items() if count > 1]:
        raise ValueError(f"not while {', '.join(wrong)}")
    origins = {name: str(found[0].get("advertise")) for name, found in regions.items()}
    lease = max(float((d.get("timings") or {}).get("lease_duration") or 0.0) for d in documents)
    if not all(origin.startswith(("http://", "https://")) for origin in origins.values()) or not lease:
        raise ValueError("the gateways do not tell their advertised address and lease; are they of this version?")
    return Canary(chosen, paths.pop(), lease, leading[0], origins)


def standing(documents: Sequence[Document], region: str, role: str) -> Standing:
    """The fence of ``role`` by the word of ``region``'s store; closed and empty where there is none."""
    for document in by_region(documents).get(region, []):
        fence = _role(document, role).get("fence")
        if fence:
            return Standing(
                region, bool(fence["open"]), int(fence["max_token_seen"]), int(fence["sealed"]),
                int(fence["last_seq"]), b"",
            )  # fmt: skip
    return Standing(region, False, 0, 0, 0, b"")


def sees_store(documents: Sequence[Document], region: str) -> bool:
    return any(document["store"]["up"] for document in by_region(documents).get(region, []))


def rejections(documents: Sequence[Document], region: str, role: str) -> Counter[str]:
    """Refusals by reason, of all the region's gateways."""
    found: Counter[str] = Counter()
    for document in by_region(documents).get(region, []):
        found.update(_role(document, role).get("rejections") or {})
    return found


def leader_counts(documents: Sequence[Document]) -> dict[str, int]:
    """How many stores are open for each role that is not for rehearsals. One store counts once, whoever shows it."""
    opened: dict[str, set[str]] = {}
    for document in documents:
        for role in document["roles"]:
            if not role.get("rehearsal"):
                found = opened.setdefault(str(role["role"]), set())
                if role["fence"] and role["fence"]["open"]:
                    found.add(str(role["fence"]["incarnation"]))
    return {role: len(found) for role, found in opened.items()}


def strayed(watched: Mapping[str, int], now: Mapping[str, int], *, all_seen: bool) -> Iterator[str]:
    """Every watched role, which had one leader, that has another number now. Nobody is missed while not all is seen."""
    for role in watched:
        count = now.get(role, 0)
        if count > 1 or (count == 0 and all_seen):
            yield f"leader_count of {role} is {count}"


def _chosen(documents: Sequence[Document], role: str | None) -> str:
    known = {str(r["role"]): bool(r.get("rehearsal")) for d in documents for r in d["roles"]}
    if role is not None:
        if role not in known:
            raise ValueError(f"the gateways know no role {role}; they know {', '.join(sorted(known)) or 'none'}")
        return role
    marked = sorted(name for name, rehearsal in known.items() if rehearsal)
    if not marked:
        raise ValueError("no role is marked for rehearsals; give a canary's route rehearsal = true on every gateway")
    if len(marked) > 1:
        raise ValueError(f"several roles are marked for rehearsals: name one by --role: {', '.join(marked)}")
    return marked[0]


def _role(document: Document, role: str) -> Document:
    return next((one for one in document["roles"] if one["role"] == role), {})
