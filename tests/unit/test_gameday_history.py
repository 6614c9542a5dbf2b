from __future__ import annotations

from fencegate.gameday.history import Attempt, History


def attempt(region: str, ended: float, answered: str = "accepted", client: str = "sdk-1", **more: object) -> Attempt:
    values = {"key": "k", "token": 4, "began": ended - 0.1, "reason": "", **more}
    return Attempt(client=client, region=region, ended=ended, answered=answered, **values)  # type: ignore[arg-type]


def test_accepted_writes_are_counted_by_region_time_and_token_without_replays():
    history = History()
    for a in (
        attempt("dr", 1.0),
        attempt("dr", 2.0, replayed=True),
        attempt("dr", 3.0, token=9),
        attempt("primary", 3.0),
        attempt("dr", 4.0, "refused"),
    ):
        history.record(a)
    assert history.accepted("dr") == 2
    assert history.accepted("dr", since=1.0) == 1
    assert history.accepted("dr", below=9) == 1


def test_refusals_are_counted_by_reason_client_kind_and_time():
    history = History(
        [
            attempt("dr", 1.0, "refused", "dns-1", reason="not_leader"),
            attempt("dr", 2.0, "refused", "dns-2", reason="not_leader"),
            attempt("dr", 3.0, "refused", "sdk-1", reason="stale_token"),
            attempt("dr", 4.0, "unknown", "dns-1", reason="outcome_unknown"),
            attempt("primary", 4.0, "refused", "dns-1", reason="no_leader"),
        ]
    )
    assert history.refused("dr") == {"not_leader": 2, "stale_token": 1}
    assert history.refused("dr", "dns", since=1.5) == {"not_leader": 1}


def test_a_handover_lasts_from_the_last_write_there_to_the_first_here():
    history = History([attempt("primary", 1.0), attempt("primary", 2.1), attempt("dr", 6.5), attempt("dr", 7.0)])
    assert history.handover("primary", "dr", after=2.0) == 4.4


def test_a_handover_that_never_ended_is_infinite():
    assert History([attempt("primary", 1.0)]).handover("primary", "dr", after=0.5) == float("inf")


def test_writes_that_the_old_region_goes_on_accepting_do_not_lengthen_a_handover():
    history = History([attempt("dr", 1.0), attempt("primary", 2.0), attempt("dr", 9.0)])
    assert history.handover("dr", "primary", after=0.5) == 1.0
