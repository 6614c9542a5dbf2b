"""What a service behind the gate takes and what it refuses, by the head, the body and the fence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fencegate.errors import ConfigurationError
from fencegate.key_ring import SharedKey
from fencegate.middleware import Fencing, Gatekeeper, HighWaterMark
from fencegate.middleware.gatekeeper import MOST_BODY, Arrival
from fencegate.middleware.refusals import Refused
from fencegate.proof import Passage, Stamp, digest_of, sign

KEY = SharedKey("new", b"n" * 32)
OLD = SharedKey("old", b"o" * 32)
START = 1_796_000_000.0
NAMES = {
    "token": "X-Fencing-Token",
    "max_seen": "X-Fencing-Max-Seen",
    "timeout_ms": "X-Fencing-Timeout-Ms",
    "idempotency_key": "Idempotency-Key",
    "caller": "X-Fencing-Caller",
}
PASSAGE = Passage("POST", b"/v1/entries", b"", b"42", b"42", b"30000", b"pay-1", b"CN=billing")


@dataclass
class Service:
    """A gatekeeper on a clock that is moved by hand, and requests as a gateway would send them."""

    file: Path
    now: float = START

    def gatekeeper(self, **options: Any) -> Gatekeeper:
        options.setdefault("proof_key_file", self.file)
        return Gatekeeper(wall=lambda: self.now, steady=lambda: self.now - START, **options)

    def stamp(self, **changes: Any) -> Stamp:
        issued = int(self.now * 1000)
        return replace(Stamp(issued, issued + 10_000, "0" * 16, "ledger"), **changes)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    file = tmp_path / "proof.keys"
    file.write_text(f"new {'n' * 32}\nold {'o' * 32}\n")
    return Service(file)


def head(passage: Passage, *proofs: bytes, more: tuple[tuple[str, bytes], ...] = ()) -> Arrival:
    lines = [(name, getattr(passage, key)) for key, name in NAMES.items()]
    lines += [("X-Fencing-Proof", proof) for proof in proofs]
    headers = [(name.lower(), value) for name, value in (*lines, *more) if value is not None]

    def values(name: str) -> list[bytes]:
        return [value for each, value in headers if each == name.lower()]

    return Arrival(passage.method, passage.path, passage.path, passage.query, values)


def settled(gatekeeper: Gatekeeper, arrival: Arrival, body: bytes = b"") -> Fencing:
    """Up to where a fence would be asked, as both kinds of server do it."""
    examined = gatekeeper.examine(arrival)
    assert examined is not None
    gatekeeper.compare(examined, body)
    first = gatekeeper.ask_memory(examined)
    assert isinstance(first, bool)
    gatekeeper.judge_use(examined.fencing, first)
    return examined.fencing


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        act()
    refusal = refused.value.refusal
    assert refusal.problem.applied == "no"
    return refusal.problem.code


def test_a_write_with_a_proof_is_taken_and_the_application_is_told_what_was_verified(service: Service) -> None:
    gatekeeper = service.gatekeeper()
    fencing = settled(gatekeeper, head(PASSAGE, sign(KEY, service.stamp(), PASSAGE)))
    assert gatekeeper.ask_fence(fencing) is None
    assert fencing == Fencing("ledger", 42, "pay-1", 42, True, "CN=billing", 30.0)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"])
def test_a_write_around_the_gate_is_refused(service: Service, method: str) -> None:
    assert code_of(lambda: service.gatekeeper().examine(head(replace(PASSAGE, method=method)))) == "proof_required"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_what_is_safe_passes_unless_the_service_protects_it(service: Service, method: str) -> None:
    passage = Passage(method, b"/v1/entries", b"")
    assert service.gatekeeper().examine(head(passage)) is None
    assert code_of(lambda: service.gatekeeper(methods=[method]).examine(head(passage))) == "proof_required"
    assert service.gatekeeper(methods=["POST"]).examine(head(replace(passage, method="PUT"))) is None


def test_where_a_get_is_protected_a_head_is(service: Service) -> None:
    passage = Passage("HEAD", b"/v1/entries", b"")
    assert code_of(lambda: service.gatekeeper(methods=["GET"]).examine(head(passage))) == "proof_required"
    assert service.gatekeeper(methods=["POST"]).examine(head(passage)) is None


@pytest.mark.parametrize("options", [{}, {"methods": ["POST"]}])
def test_a_method_is_protected_however_it_is_spelled(service: Service, options: dict[str, Any]) -> None:
    passage = replace(PASSAGE, method="post")
    assert code_of(lambda: service.gatekeeper(**options).examine(head(passage))) == "proof_required"


def test_what_is_open_and_whose_role_it_is_goes_by_the_path_that_the_application_goes_by(tmp_path: Path) -> None:
    """A prefix that a client can have put before it must not choose."""
    roles: list[str] = []
    gatekeeper = Gatekeeper(
        fence=HighWaterMark(), role=lambda path: roles.append(path) or "ledger", open_paths=["/hooks/*"]
    )
    moved = Arrival("POST", b"/hooks/v1/entries", b"/v1/entries", b"", lambda name: [])
    assert code_of(lambda: gatekeeper.examine(moved)) == "token_required"
    assert roles == ["/v1/entries"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"])
def test_no_header_makes_a_write_out_of_what_is_safe(service: Service, method: str, name: str) -> None:
    arrival = head(Passage(method, b"/v1/entries", b""), more=((name, b"DELETE"),))
    assert code_of(lambda: service.gatekeeper().examine(arrival)) == "request_malformed"


def test_only_the_paths_that_are_named_are_open(service: Service) -> None:
    gatekeeper = service.gatekeeper(open_paths=["/health", "/hooks/*"])
    for path in (b"/health", b"/hooks/", b"/hooks/a/b"):
        assert gatekeeper.examine(head(Passage("POST", path, b""))) is None, path
    shut = (b"/", b"/health/", b"/healthz", b"/hooks", b"/HEALTH", b"//health", b"/hooks//x", b"/hooks/../v1/entries")
    for path in (*shut, b"/hooks/..;/v1", b"/hooks/.", b"/hooks\\..\\v1", b"/hooks/a\\b"):
        assert code_of(lambda path=path: gatekeeper.examine(head(Passage("POST", path, b"")))) == "proof_required", path


@pytest.mark.parametrize(
    "other",
    [
        replace(PASSAGE, method="DELETE"),
        replace(PASSAGE, path=b"/v1/other"),
        replace(PASSAGE, query=b"a=1"),
        replace(PASSAGE, token=b"43"),
        replace(PASSAGE, token=None),
        replace(PASSAGE, timeout_ms=b"99999"),
        replace(PASSAGE, max_seen=b"41"),
        replace(PASSAGE, idempotency_key=b"pay-2"),
        replace(PASSAGE, idempotency_key=None),
        replace(PASSAGE, caller=b"CN=payroll"),
        replace(PASSAGE, caller=None),
    ],
)
def test_a_proof_cannot_be_taken_to_another_request(service: Service, other: Passage) -> None:
    proof = sign(KEY, service.stamp(), PASSAGE)
    assert code_of(lambda: service.gatekeeper().examine(head(other, proof))) == "proof_invalid"


def test_a_proof_is_for_one_line_and_one_value_each(service: Service) -> None:
    proof = sign(KEY, service.stamp(), PASSAGE)
    gatekeeper = service.gatekeeper()
    assert code_of(lambda: gatekeeper.examine(head(PASSAGE, proof, proof))) == "proof_invalid"
    for name, code in (("X-Fencing-Token", "token_malformed"), ("Idempotency-Key", "request_malformed")):
        twice = head(PASSAGE, proof, more=((name, b"42"),))
        assert code_of(lambda twice=twice: gatekeeper.examine(twice)) == code


def test_a_proof_is_taken_once(service: Service) -> None:
    gatekeeper = service.gatekeeper()
    arrival = head(PASSAGE, sign(KEY, service.stamp(), PASSAGE))
    settled(gatekeeper, arrival)
    for _ in range(2):
        service.now += 1
        assert code_of(lambda: settled(gatekeeper, arrival)) == "proof_invalid"


def test_a_proof_is_not_taken_again_once_its_use_is_forgotten_while_the_body_came(service: Service) -> None:
    gatekeeper = service.gatekeeper()
    arrival = head(PASSAGE, sign(KEY, service.stamp(), PASSAGE))
    early = gatekeeper.examine(arrival)
    assert early is not None
    settled(gatekeeper, arrival)
    service.now += 60.0
    for number in range(9):
        settled(gatekeeper, head(PASSAGE, sign(KEY, service.stamp(nonce=f"{number:016x}"), PASSAGE)))
    assert code_of(lambda: gatekeeper.compare(early, b"")) == "proof_expired"


@pytest.mark.parametrize("skew", [0.0, 5.0])
def test_a_stale_proof_is_refused(service: Service, skew: float) -> None:
    gatekeeper = service.gatekeeper(skew=skew)
    arrival = head(PASSAGE, sign(KEY, service.stamp(), PASSAGE))
    service.now += 10.0 + skew
    assert gatekeeper.examine(arrival) is not None
    service.now += 0.01
    assert code_of(lambda: gatekeeper.examine(arrival)) == "proof_expired"


def test_what_comes_after_its_deadline_is_refused_and_what_is_left_of_it_is_told(service: Service) -> None:
    gatekeeper = service.gatekeeper()
    passage = replace(PASSAGE, timeout_ms=b"1500")
    arrival = head(passage, sign(KEY, service.stamp(), passage))
    service.now += 1.0
    examined = gatekeeper.examine(arrival)
    assert examined is not None
    assert examined.fencing.until == pytest.approx(1.5)
    service.now += 0.5
    assert code_of(lambda: gatekeeper.examine(arrival)) == "deadline_exceeded"
    service.now -= 3.0  # This clock is behind the gateway's: no more than what the gateway said.
    examined = gatekeeper.examine(arrival)
    assert examined is not None
    assert examined.fencing.until == pytest.approx(-1.5 + 1.5)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock goes on during a suspend here")
def test_a_suspended_machine_has_no_more_time_for_a_write_than_a_running_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gatekeeper = Gatekeeper(proof_key_file=service.file, wall=lambda: service.now)
    examined = gatekeeper.examine(head(PASSAGE, sign(KEY, service.stamp(), PASSAGE)))
    assert examined is not None
    assert 0 < examined.fencing.seconds_left() <= 30
    going_on = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: going_on(clock) + 60)  # time.monotonic stood still
    assert examined.fencing.seconds_left() < 0


def test_a_body_that_is_covered_is_compared_and_a_proof_is_not_used_up_by_another_one(service: Service) -> None:
    gatekeeper = service.gatekeeper()
    stamp = service.stamp(body=digest_of(b"mine"))
    arrival = head(PASSAGE, sign(KEY, stamp, PASSAGE))
    examined = gatekeeper.examine(arrival)
    assert examined is not None
    assert examined.covers_body
    for body in (b"", b"other", b"x" * (MOST_BODY + 1)):
        assert code_of(lambda body=body: settled(gatekeeper, arrival, body)) == "proof_invalid"
    settled(gatekeeper, arrival, b"mine")


def test_what_was_only_observed_is_refused_unless_the_service_says_otherwise(service: Service) -> None:
    passage = replace(PASSAGE, token=None, max_seen=b"0")
    arrival = head(passage, sign(KEY, service.stamp(mode="observe"), passage))
    assert code_of(lambda: service.gatekeeper().examine(arrival)) == "proof_invalid"
    fence = HighWaterMark()
    gatekeeper = service.gatekeeper(accept_observed=True, fence=fence)
    examined = gatekeeper.examine(arrival)
    assert examined is not None
    assert (examined.fencing.token, examined.fencing.enforced) == (None, False)
    forged = head(
        replace(passage, token=b"999"), sign(KEY, service.stamp(mode="observe"), replace(passage, token=b"999"))
    )
    examined = gatekeeper.examine(forged)
    assert examined is not None
    assert gatekeeper.ask_fence(examined.fencing) is None
    assert fence.raise_to("ledger", 1) == 1, "a token that nobody has checked raises nothing"


@pytest.mark.parametrize("role", ["ledger", lambda path: "ledger" if path == "/v1/entries" else None])
def test_a_service_of_one_role_takes_that_roles_writes_alone(service: Service, role: Any) -> None:
    gatekeeper = service.gatekeeper(role=role)
    assert gatekeeper.examine(head(PASSAGE, sign(KEY, service.stamp(), PASSAGE))) is not None
    other = head(PASSAGE, sign(KEY, service.stamp(role="payroll"), PASSAGE))
    assert code_of(lambda: gatekeeper.examine(other)) == "proof_invalid"


def test_keys_are_rotated_without_a_restart_and_without_a_gap(service: Service) -> None:
    gatekeeper = service.gatekeeper()

    def taken_with(key: SharedKey) -> bool:
        service.now += 2.0
        try:
            return gatekeeper.examine(head(PASSAGE, sign(key, service.stamp(), PASSAGE))) is not None
        except Refused:
            return False

    assert (taken_with(KEY), taken_with(OLD)) == (True, True)
    newest = SharedKey("newest", b"x" * 32)
    assert not taken_with(newest)
    service.file.write_text(f"newest {'x' * 32}\nnew {'n' * 32}\n")
    assert (taken_with(newest), taken_with(KEY), taken_with(OLD)) == (True, True, False)
    service.file.write_text("half a li")
    assert taken_with(newest)
    service.file.unlink()
    assert taken_with(newest)
    service.file.write_text(f"new {'n' * 32}\n")
    assert (taken_with(newest), taken_with(KEY)) == (False, True)


# -- a service that checks by itself -------------------------------------------------------------------


def alone(**options: Any) -> Gatekeeper:
    return Gatekeeper(**{"fence": HighWaterMark(), "role": "ledger", **options})


def written(gatekeeper: Gatekeeper, token: bytes | None) -> int | None:
    fencing = settled(gatekeeper, head(Passage("POST", b"/v1/entries", b"", token)))
    highest = gatekeeper.ask_fence(fencing)
    assert isinstance(highest, int)
    gatekeeper.judge(fencing, highest)
    return fencing.token


def test_a_service_that_checks_by_itself_refuses_what_is_older_than_it_has_seen() -> None:
    gatekeeper = alone()
    assert [written(gatekeeper, token) for token in (b"41", b"41", b"42", b"42")] == [41, 41, 42, 42]
    with pytest.raises(Refused) as refused:
        written(gatekeeper, b"41")
    assert refused.value.refusal.problem.code == "stale_token"
    assert (refused.value.refusal.presented_token, refused.value.refusal.max_token_seen) == (41, 42)
    assert written(gatekeeper, b"42") == 42


def test_a_service_that_checks_by_itself_wants_a_token_of_a_role() -> None:
    assert code_of(lambda: written(alone(), None)) == "token_required"
    for token in (b"+7", b"1_000", b"0", b"42,42", "٤٢".encode(), b"9" * 19):
        assert code_of(lambda token=token: written(alone(), token)) == "token_malformed", token
    assert code_of(lambda: written(alone(role=lambda path: None), b"42")) == "unknown_role"


def test_with_both_a_number_that_no_gate_has_let_through_raises_nothing(service: Service) -> None:
    fence = HighWaterMark()
    gatekeeper = service.gatekeeper(fence=fence)
    forged = replace(PASSAGE, token=b"9223372036854775807")
    assert code_of(lambda: gatekeeper.examine(head(forged))) == "proof_required"
    assert fence.raise_to("ledger", 1) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"proof_key_file": None}, ["proof_key_file or fence", "role: missing"]),
        ({"proof_key_file": None, "fence": HighWaterMark()}, ["role: missing"]),
        ({"proof_key_file": "/none.keys", "skew": -1}, ["skew = -1", "cannot read /none.keys"]),
        ({"methods": "POST"}, ["methods = 'POST'"]),
        ({"methods": ["post"]}, ["methods = ['post']"]),
        ({"open_paths": ["/*"]}, ["open_paths"]),
        ({"open_paths": ["health"]}, ["open_paths"]),
    ],
)
def test_what_would_protect_nothing_is_a_fault_at_the_start(
    service: Service, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        service.gatekeeper(**options)
    assert len(caught.value.faults) == len(words)
    assert all(word in fault for word, fault in zip(words, caught.value.faults, strict=True))
