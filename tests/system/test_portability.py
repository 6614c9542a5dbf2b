"""A gateway over a store in portability mode, from its migrations to the runbook's step after a restore."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from system.serving import Answer, Serving, fencegate, until

pytestmark = pytest.mark.system


def test_it_leads_writes_and_opens_again_by_a_new_term_after_a_rebase(
    fresh_dsn: str, migrated_dsn: str, serve: Callable[..., Serving], configuration: Callable[[str], str]
) -> None:
    path = configuration(
        'node = "gw-1"\nregion = "eu"\nadvertise = "https://ledger.eu.example"\n'
        f'[store]\ndsn = "{fresh_dsn}"\nportability = true\nclock_offset = 0.25\n'
        f'[election]\nsource = "postgres"\ndsn = "{migrated_dsn}"\n'
        "lease_duration = 6\nrenew_deadline = 4\nretry_period = 0.4\nmargin = 0.5\n"
        '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n'
    )
    migrated = fencegate("migrate", "--config", path)
    assert "applied 0001_create_fence, portable/0001_rely_on_row_conflicts" in migrated.stdout, migrated.stderr
    gateway = serve("--config", path).listens()

    def written() -> Answer | None:
        answer = gateway.write(gateway.discovered("ledger"))
        return answer if answer.status == 201 else None

    first = until("a write", written).json
    assert [fact for fact in gateway.facts if "portability = true: the fence relies on row" in str(fact)]
    rebased = fencegate("rebase", "ledger", "--config", path, "--confirm", "ledger")
    assert "another history now" in rebased.stdout, rebased.stderr

    def written_anew() -> Answer | None:
        answer = written()
        return answer if answer is not None and answer.json["token"] > first["token"] else None

    assert until("a write of a newer term", written_anew).json["token"] > 1_000_000
    stale = gateway.write(first["token"])
    assert (stale.status, stale.json["code"]) == (409, "stale_token")
