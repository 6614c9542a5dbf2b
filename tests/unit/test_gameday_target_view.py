"""What a running deployment says of itself, and when a rehearsal may begin there or must stop."""

from __future__ import annotations

from typing import Any

import pytest

from fencegate.gameday import target_view


def role(name: str, opened: bool, *, path: str | None = None, incarnation: str = "i") -> dict[str, Any]:
    fence = {"open": opened, "max_token_seen": 7, "sealed": 3, "last_seq": 5, "incarnation": incarnation}
    return {
        "role": name, "fence": fence, "rehearsal": path is not None, "path": path, "rejections": {"not_leader": 2},
    }  # fmt: skip


def gateway(region: str, *roles: dict[str, Any], node: str = "gw", up: bool = True) -> dict[str, Any]:
    return {
        "node": f"{node}-{region}",
        "region": region,
        "advertise": f"https://{region}.example",
        "timings": {"lease_duration": 15.0},
        "store": {"up": up, "reason": None},
        "roles": list(roles),
    }


def deployment() -> list[dict[str, Any]]:
    return [
        gateway("eu", role("ledger", True, incarnation="a"), role("canary", True, path="/c", incarnation="a")),
        gateway("dr", role("ledger", False, incarnation="b"), role("canary", False, path="/c", incarnation="b")),
    ]


def test_the_one_marked_role_is_taken_and_its_leader_is_the_scenarios_primary() -> None:
    found = target_view.canary(deployment(), None)
    assert (found.role, found.path, found.leader, found.other, found.lease) == ("canary", "/c", "eu", "dr", 15.0)
    assert found.origins == {"eu": "https://eu.example", "dr": "https://dr.example"}


def refused(documents: list[dict[str, Any]], wanted: str | None = None) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        target_view.canary(documents, wanted)
    return str(caught.value)


def test_a_real_role_is_refused_whoever_asks_for_it() -> None:
    assert "ledger is not marked for rehearsals at gw-dr, gw-eu" in refused(deployment(), "ledger")
    assert "no role nothing" in refused(deployment(), "nothing")


def test_a_role_that_one_gateway_does_not_mark_is_refused() -> None:
    half = deployment()
    half[1]["roles"][1]["path"] = None
    assert "not marked for rehearsals at gw-dr" in refused(half, "canary")
    less = deployment()
    less[1]["roles"].pop()
    assert "not marked for rehearsals at gw-dr" in refused(less)


def test_what_is_not_well_is_not_rehearsed_with() -> None:
    two = deployment()
    two[1]["roles"][0]["fence"]["open"] = True
    assert "not while ledger has 2 leaders" in refused(two)
    nobody = deployment()
    nobody[0]["roles"][1]["fence"]["open"] = False
    assert "expected one region to lead canary" in refused(nobody)
    assert "two regions" in refused(deployment()[:1])
    older = deployment()
    for one in older:
        del one["advertise"]
    assert "of this version" in refused(older)


def test_several_marked_roles_must_be_chosen_from_and_none_is_told_how_to_mark_one() -> None:
    several = deployment()
    for one in several:
        one["roles"].append(role("canary-2", one["region"] == "eu", path="/c2"))
    assert "name one by --role: canary, canary-2" in refused(several)
    assert target_view.canary(several, "canary-2").path == "/c2"
    bare = [gateway("eu", role("ledger", True)), gateway("dr", role("ledger", False))]
    assert "rehearsal = true" in refused(bare)


def test_only_real_roles_are_counted_and_a_store_that_two_regions_share_counts_once() -> None:
    assert target_view.leader_counts(deployment()) == {"ledger": 1}
    shared = [gateway(region, role("t", True, incarnation="same")) for region in ("eu", "dr")]
    assert target_view.leader_counts(shared) == {"t": 1}


def test_a_real_role_that_leaves_one_leader_is_told_but_nobody_is_missed_while_not_all_is_seen() -> None:
    watched = {"ledger": 1}
    assert list(target_view.strayed(watched, {"ledger": 1}, all_seen=True)) == []
    assert list(target_view.strayed(watched, {"ledger": 0}, all_seen=True)) == ["leader_count of ledger is 0"]
    assert list(target_view.strayed(watched, {}, all_seen=False)) == []
    assert list(target_view.strayed(watched, {"ledger": 2}, all_seen=False)) == ["leader_count of ledger is 2"]


def test_the_gateways_of_a_region_speak_for_one_store_and_their_refusals_add_up() -> None:
    documents = [*deployment(), gateway("eu", role("canary", True, path="/c"), node="gw2", up=False)]
    standing = target_view.standing(documents, "eu", "canary")
    assert (standing.open, standing.max_token_seen, standing.sealed, standing.last_seq) == (True, 7, 3, 5)
    assert target_view.rejections(documents, "eu", "canary") == {"not_leader": 4}
    assert target_view.sees_store(documents, "eu")
    assert not target_view.sees_store([gateway("eu", up=False)], "eu")
    assert not target_view.standing(documents, "us", "canary").open
