"""``fencegate serve --embedded DIR``: a whole gateway with nothing configured, through restarts, kills and signals."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from system.serving import Answer, Serving, Upstream, fencegate, until

pytestmark = pytest.mark.system

Serve = Callable[..., Serving]
Configuration = Callable[[str], str]

SHORT_LEASE = (
    "--set",
    "election.lease_duration=5",
    "--set",
    "election.renew_deadline=3.5",
    "--set",
    "election.retry_period=0.5",
    "--set",
    "election.margin=0.5",
)


def postmaster(directory: Path) -> int:
    return int((directory / "data" / "postmaster.pid").read_text().split()[0])


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_it_takes_a_write_with_the_discovered_token_and_refuses_others(serve: Serve, tmp_path: Path) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg")).listens()
    token = gateway.discovered()
    taken = gateway.write(token, {"decision": "approve"})
    assert (taken.status, taken.outcome) == (201, "accepted")
    assert (taken.json["seq"], taken.json["token"]) == (1, token)
    assert gateway.write(token + 1).outcome == "token_not_issued"
    assert gateway.ask("POST", "/v1/entries", {}).outcome == "token_required"
    assert gateway.ask("GET", "/v1/entries/1").status == 200
    assert gateway.stop() == 0
    said = "".join(gateway.out)
    assert "Embedded Postgres is version" in said
    assert f"curl -i http://{gateway.data}/v1/entries -H 'X-Fencing-Token: {token}'" in said


def test_a_restart_keeps_the_ledger_and_leads_at_once_under_a_higher_token(serve: Serve, tmp_path: Path) -> None:
    first = serve("--embedded", str(tmp_path / "pg")).listens()
    old = first.discovered()
    assert first.write(old, {"n": 1}).status == 201
    assert first.stop() == 0
    assert first.facts_of("term_sealed")[-1]["known"] is True

    second = serve("--embedded", str(tmp_path / "pg")).listens()
    # Released after a known seal: nobody has to wait for the lease of 15 s.
    new = second.leads(limit=13)
    assert new > old
    stale = second.write(old, {"n": 2})
    assert (stale.status, stale.outcome) == (409, "stale_token")
    assert stale.headers["x-fencing-max-seen"] == str(new)
    assert second.write(new, {"n": 3}).json["seq"] == 2
    assert [entry["token"] for entry in second.ask("GET", "/v1/entries?after=0&limit=10").json["entries"]] == [old, new]
    assert second.stop() == 0


def test_killed_it_leaves_no_postgres_behind_and_its_term_is_never_opened_again(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "pg"
    first = serve("--embedded", str(directory), *SHORT_LEASE).listens()
    old = first.discovered()
    assert first.write(old).status == 201
    pid = postmaster(directory)
    assert runs(pid)
    first.signal(signal.SIGKILL)
    first.ends()
    until("the end of Postgres", lambda: not runs(pid))

    second = serve("--embedded", str(directory), *SHORT_LEASE).listens()
    new = second.leads()
    assert new > old
    assert second.write(old).outcome == "stale_token"
    assert second.write(new).json["seq"] == 2


def test_its_postgres_comes_back_after_it_was_killed(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "pg"
    gateway = serve("--embedded", str(directory), *SHORT_LEASE).listens()
    token = gateway.discovered()
    assert gateway.write(token, {"n": 1}).status == 201
    os.kill(postmaster(directory), signal.SIGKILL)

    def taken() -> Answer | None:
        answer = gateway.write(gateway.leads(), {"n": 2})
        assert answer.status in (201, 409, 502, 503, 504), answer
        return answer if answer.status == 201 else None

    assert until("a write after the crash", taken).json["seq"] >= 2
    assert gateway.stop() == 0


def test_a_second_one_in_the_same_directory_says_so_and_ends(serve: Serve, tmp_path: Path) -> None:
    serve("--embedded", str(tmp_path / "pg")).listens()
    other = serve("--embedded", str(tmp_path / "pg"))
    assert other.ends() == 1
    said = "".join(other.err)
    assert said.startswith("fencegate: ")
    assert str(tmp_path / "pg") in said
    assert "Traceback" not in said


def test_an_interrupt_from_the_terminal_reaches_the_whole_group_and_still_seals_first(
    serve: Serve, tmp_path: Path
) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg")).listens()
    gateway.leads()
    os.killpg(gateway.process.pid, signal.SIGINT)
    assert gateway.ends() == 0
    assert gateway.facts_of("stopping")[0]["reason"] == "SIGINT"
    assert gateway.facts_of("term_sealed")[-1]["known"] is True


def proxying(upstream: Upstream, configuration: Configuration) -> tuple[str, ...]:
    route = f'[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "{upstream.url}"\n'
    return "--config", configuration(route)


def in_flight(
    gateway: Serving, token: int, upstream: Upstream
) -> tuple[list[Answer | BaseException], Callable[[], None]]:
    answers: list[Answer | BaseException] = []

    def write() -> None:
        try:
            answers.append(gateway.write(token))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert upstream.reached.wait(10)
    return answers, thread.join


def test_a_term_signal_lets_requests_under_way_finish_and_takes_no_new_ones(
    serve: Serve, tmp_path: Path, upstream: Upstream, configuration: Configuration
) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg"), *proxying(upstream, configuration)).listens()
    token = gateway.discovered()
    answers, join = in_flight(gateway, token, upstream)
    gateway.signal(signal.SIGTERM)
    until("the end to begin", lambda: gateway.facts_of("stopping"))
    assert gateway.facts_of("stopping")[0]["in_flight"] == 1
    with pytest.raises(OSError):  # noqa: PT011 - refused or reset, either is right
        gateway.write(token)
    assert not gateway.facts_of("term_sealed"), "the term must stay open for what is under way"
    upstream.let_go.set()
    join()
    (answer,) = answers
    assert isinstance(answer, Answer)
    assert (answer.status, answer.outcome, answer.body) == (201, "accepted", b"done")
    assert gateway.ends() == 0
    assert gateway.facts_of("stopped")[0]["abandoned"] == 0
    assert gateway.facts_of("term_sealed")[-1]["known"] is True


def test_what_does_not_finish_within_the_grace_is_given_up_and_said(
    serve: Serve, tmp_path: Path, upstream: Upstream, configuration: Configuration
) -> None:
    options = proxying(upstream, configuration)
    gateway = serve("--embedded", str(tmp_path / "pg"), "--grace", "0.5", *options).listens()
    answers, join = in_flight(gateway, gateway.discovered(), upstream)
    began = time.monotonic()
    gateway.signal(signal.SIGTERM)
    assert gateway.ends() == 0
    assert time.monotonic() - began < 10
    assert gateway.facts_of("stopped")[0]["abandoned"] >= 1
    join()
    (answer,) = answers
    assert isinstance(answer, Answer), "it got no answer of its own"
    assert (answer.status, answer.outcome) == (502, "outcome_unknown")
    assert len(upstream.tokens) == 1


def test_a_second_signal_ends_it_at_once(
    serve: Serve, tmp_path: Path, upstream: Upstream, configuration: Configuration
) -> None:
    directory = tmp_path / "pg"
    gateway = serve("--embedded", str(directory), *proxying(upstream, configuration)).listens()
    _, join = in_flight(gateway, gateway.discovered(), upstream)
    pid = postmaster(directory)
    gateway.signal(signal.SIGTERM)
    until("the end to begin", lambda: gateway.facts_of("stopping"))
    gateway.signal(signal.SIGTERM)
    assert gateway.ends(15) == 1
    join()
    until("the end of Postgres", lambda: not runs(pid))


def test_status_tells_who_leads(serve: Serve, tmp_path: Path) -> None:
    gateway = serve("--embedded", str(tmp_path / "pg")).listens()
    token = gateway.discovered()
    gateway.ask("POST", "/v1/entries", {})
    done = fencegate("status", "--admin", gateway.admin, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    (role,) = document["roles"]
    assert (role["role"], role["leader"]["region"], role["leader"]["token"]) == ("ledger", "local", token)
    assert role["fence"]["max_token_seen"] == token
    assert role["rejections"] == {"token_required": 1}
    plain = fencegate("status", "--admin", gateway.admin)
    assert f"role=ledger leader=local token={token} " in plain.stdout
    assert gateway.stop() == 0
    gone = fencegate("status", "--admin", gateway.admin)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"fencegate: no answer from the admin listener at {gateway.admin}")
