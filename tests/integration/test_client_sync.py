"""What is the synchronous faces' own: threads, forks, the interpreter's end, and lead() in a with block.

The behaviour towards a gateway is tested in test_client_aio.py, over both faces.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest

from fencegate.client import LeadershipLost, OutcomeUnknown, loop_thread
from fencegate.client.sync import FencedClient, LeaderTerm, lead
from fencegate.errors import ConfigurationError
from fencegate.lease import Candidate, LeaseTimings
from fencegate.testing.hand_clock import HandClock
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
from fencegate.testing.scripted_gate import Accept, Recorded, Refuse, ScriptedGate, Slow, Step

T = TypeVar("T")
ME = Candidate("worker-1", "eu", "https://worker-1.example")
RIVAL = Candidate("worker-2", "eu", "https://worker-2.example")
TIMINGS = LeaseTimings(lease_duration=9.0, renew_deadline=6.0, retry_period=0.1, margin=0.1)
BRIEF = LeaseTimings(lease_duration=3.0, renew_deadline=2.0, retry_period=0.1, margin=0.1)
"""Of a lease that the test waits out."""


class GateThread:
    """A scripted gate on a loop and thread of its own: the test is as synchronous as what it tests."""

    def __init__(self) -> None:
        self.gate = ScriptedGate(otherwise=Accept())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> ScriptedGate:
        self._thread.start()
        self.run(self.gate.__aenter__())
        self.gate.leads(token=42)
        return self.gate

    def __exit__(self, *error: object) -> None:
        self.run(self.gate.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@pytest.fixture
def gate() -> Iterator[ScriptedGate]:
    with GateThread() as made:
        yield made


@pytest.fixture
def quorum() -> MemoryQuorum:
    return MemoryQuorum(time.monotonic)


def client(gate: ScriptedGate, **options: Any) -> FencedClient:
    return FencedClient([gate.url], "ledger", **{"deadline": 5.0, "backoff_base": 0.01, **options})


def leading(election: MemoryElection, **options: Any) -> Any:
    return lead("cron", backend=election, candidate=ME, **{"timings": TIMINGS, **options})


def in_threads(count: int, work: Callable[[int], T]) -> list[T]:
    results: list[T] = []
    threads = [threading.Thread(target=lambda n=n: results.append(work(n))) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def interrupt_soon() -> threading.Timer:
    """Ctrl-C for the main thread, which waits; the kernel would choose it as well."""
    main = threading.main_thread().ident
    assert main is not None
    return threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))


def until(what: str, condition: Callable[[], Any], limit: float = 20.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


# -- the client -----------------------------------------------------------------------------------


def test_many_threads_share_one_client_and_its_discovery_and_all_share_one_thread(gate: ScriptedGate) -> None:
    with client(gate) as one, client(gate) as another:
        answers = in_threads(20, lambda number: one.post("/v1/entries", json=number))
        another.post("/v1/entries", json=1)
        names = [thread.name for thread in threading.enumerate()]
    assert [answer.status for answer in answers] == [201] * 20
    assert len({write.header("Idempotency-Key") for write in gate.writes}) == 21
    assert len(gate.discoveries) < 6
    assert names.count("fencegate-client") == 1


def test_opening_and_closing_a_thousand_times_leaves_no_thread_and_no_socket(gate: ScriptedGate) -> None:
    with client(gate) as warm:
        warm.post("/v1/entries")
    threads, sockets = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        with client(gate):
            pass
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) < sockets + 10
    assert loop_thread._shared.open == {}


async def test_inside_an_async_program_it_works_in_threads_and_even_in_a_coroutine(gate: ScriptedGate) -> None:
    with client(gate) as ledger:
        answers = await asyncio.gather(*(asyncio.to_thread(ledger.post, "/v1/entries") for _ in range(4)))
        assert ledger.post("/v1/entries").status == 201
    assert [answer.status for answer in answers] == [201] * 4


def test_a_client_can_be_opened_again(gate: ScriptedGate) -> None:
    ledger = client(gate)
    for _ in range(2):
        with ledger:
            assert ledger.post("/v1/entries").status == 201
        with pytest.raises(RuntimeError, match="with FencedClient"):
            ledger.post("/v1/entries")


def test_a_session_of_the_callers_own_is_refused_in_so_many_words(gate: ScriptedGate) -> None:
    with pytest.raises(TypeError, match="another event loop"):
        client(gate, session=object())


def test_closing_in_one_thread_ends_the_others_call_with_an_honest_error(gate: ScriptedGate) -> None:
    gate.otherwise = Slow(30.0, Accept())
    caught: list[BaseException] = []
    ledger = client(gate).__enter__()

    def write() -> None:
        try:
            ledger.post("/v1/entries")
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    until("the write is sent", lambda: gate.writes)
    ledger.close()
    thread.join(30)
    assert [type(error) for error in caught] == [OutcomeUnknown]
    assert ledger.in_flight == 0


def test_an_interrupt_ends_the_wait_at_once_and_the_client_goes_on(gate: ScriptedGate) -> None:
    gate.otherwise = Slow(30.0, Accept())
    with client(gate, deadline=30.0) as ledger:
        timer = interrupt_soon()
        timer.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ledger.post("/v1/entries")
        timer.join()
        assert time.monotonic() - started < 10.0
        assert ledger.in_flight == 0
        gate.otherwise = Accept()
        assert ledger.post("/v1/entries").status == 201


def test_a_call_on_the_sdks_own_thread_is_an_error_and_no_deadlock(gate: ScriptedGate, quorum: MemoryQuorum) -> None:
    caught: list[BaseException] = []
    with client(gate) as ledger:

        def observe(fact: object) -> None:
            try:
                ledger.post("/v1/entries")
            except BaseException as error:
                caught.append(error)

        with leading(MemoryElection(quorum, TIMINGS), observer=observe):
            pass
    assert caught
    assert all(isinstance(error, RuntimeError) and "own thread" in str(error) for error in caught)


# -- leading --------------------------------------------------------------------------------------


def test_the_block_has_a_term_that_is_kept_and_whose_client_stamps_it(gate: ScriptedGate, quorum: MemoryQuorum) -> None:
    quorum.next_token = 42
    with leading(MemoryElection(quorum, BRIEF), timings=BRIEF) as term:
        assert isinstance(term, LeaderTerm)
        assert (term.token, term.role, term.reason, term.lost.is_set()) == (42, "cron", "", False)
        time.sleep(BRIEF.lease_duration * 1.5)
        term.check()
        assert 0 < term.remaining() <= BRIEF.renew_deadline
        with term.client([gate.url]) as ledger:
            ledger.post("/v1/entries", json=1)
            with pytest.raises(ValueError, match="no other"):
                ledger.post("/v1/entries", token=43)
            with pytest.raises(TypeError, match="session"):
                term.client([gate.url], session=object())
    assert [write.header("X-Fencing-Token") for write in gate.writes] == ["42"]
    assert gate.discoveries == []
    assert (term.lost.is_set(), term.remaining(), term.reason) == (True, 0.0, "resigned")
    with pytest.raises(LeadershipLost, match="resigned"):
        term.check()


def test_the_lease_is_left_to_lapse_unless_the_store_is_shared(quorum: MemoryQuorum) -> None:
    with leading(MemoryElection(quorum, BRIEF), timings=BRIEF):
        pass
    assert quorum.holder("cron") is not None
    with leading(MemoryElection(quorum, BRIEF), timings=BRIEF, shared_store=True) as term:
        assert term.token == 2
    assert quorum.holder("cron") is None
    with pytest.raises(ZeroDivisionError), leading(MemoryElection(quorum, BRIEF), timings=BRIEF, shared_store=True):
        raise ZeroDivisionError
    assert quorum.holder("cron") is not None


@pytest.mark.parametrize("how", ["cut", "hanging"])
def test_a_lease_that_cannot_be_renewed_sets_lost_in_time_for_whoever_waits_for_it(
    quorum: MemoryQuorum, how: str
) -> None:
    timings = LeaseTimings(lease_duration=6.0, renew_deadline=2.0, retry_period=0.1, margin=0.1)
    election = MemoryElection(quorum, timings)
    with leading(election, timings=timings) as term:
        setattr(election, how, True)
        assert term.lost.wait(20.0)
        assert quorum.holder("cron") is not None, "too late: the lease is over"
        with pytest.raises(LeadershipLost) as caught:
            term.check()
    assert (caught.value.reason, caught.value.token) == ("renew_deadline", 1)


def test_check_looks_at_the_clock_even_while_the_sdks_thread_stands_still(quorum: MemoryQuorum) -> None:
    clock = HandClock(1000.0)
    with leading(MemoryElection(quorum, TIMINGS), clock=clock) as term:
        clock.now += TIMINGS.renew_deadline + 0.01
        assert term.remaining() == 0
        with pytest.raises(LeadershipLost, match="renew_deadline"):
            term.check()
        assert term.lost.is_set()


def test_being_told_that_the_token_is_over_sets_lost_before_the_call_returns(
    gate: ScriptedGate, quorum: MemoryQuorum
) -> None:
    gate.play(Refuse("stale_token", max_seen=9))
    with leading(MemoryElection(quorum, TIMINGS)) as term, term.client([gate.url]) as ledger:
        with pytest.raises(LeadershipLost, match="stale_token"):
            ledger.post("/v1/entries")
        assert (term.lost.is_set(), term.reason) == (True, "stale_token")
        with pytest.raises(LeadershipLost):
            ledger.post("/v1/entries")
    assert len(gate.writes) == 1


def test_waiting_for_the_role_has_an_end_and_leaves_the_line(quorum: MemoryQuorum) -> None:
    with leading(MemoryElection(quorum, TIMINGS)):
        election = MemoryElection(quorum, TIMINGS)
        with pytest.raises(TimeoutError), lead("cron", backend=election, candidate=RIVAL, timings=TIMINGS, timeout=0.3):
            pytest.fail("not won")
    assert "withdraw" in election.calls


def test_an_interrupt_while_waiting_for_the_role_leaves_the_line(quorum: MemoryQuorum) -> None:
    with leading(MemoryElection(quorum, TIMINGS)) as term:
        election = MemoryElection(quorum, TIMINGS)
        timer = interrupt_soon()
        timer.start()
        with pytest.raises(KeyboardInterrupt), lead("cron", backend=election, candidate=RIVAL, timings=TIMINGS):
            pytest.fail("not won")
        timer.join()
        assert "withdraw" in election.calls
        term.check()


def test_a_backend_can_be_made_for_the_block_and_is_closed_at_its_end(quorum: MemoryQuorum) -> None:
    closed: list[str] = []

    class Closing(MemoryElection):
        async def close(self) -> None:
            closed.append(threading.current_thread().name)

    with lead("cron", backend=lambda: Closing(quorum, TIMINGS), candidate=ME, timings=TIMINGS):
        assert closed == []
    assert closed == ["fencegate-client"]


def test_timings_that_make_no_sense_are_refused_before_anything_is_made(quorum: MemoryQuorum) -> None:
    with pytest.raises(ConfigurationError, match="lease_duration"):
        lead("cron", backend=MemoryElection(quorum, TIMINGS), candidate=ME, timings=LeaseTimings(lease_duration=5.0))


# -- forks and the interpreter's end --------------------------------------------------------------

PROGRAM = """
import os, sys, threading, time
from fencegate.client import LeadershipLost
from fencegate.client.sync import FencedClient, lead
from fencegate.lease import Candidate, LeaseTimings
from fencegate.testing.memory_election import MemoryElection, MemoryQuorum
url, what = sys.argv[1:]
FAST = LeaseTimings(lease_duration=9.0, renew_deadline=6.0, retry_period=0.1, margin=0.1)
ledger = FencedClient([url], "ledger", deadline=5.0)
def leading():
    backend = MemoryElection(MemoryQuorum(time.monotonic), FAST)
    return lead("cron", backend=backend, candidate=Candidate("n", "eu", ""), timings=FAST)
"""

ENDS = {
    "a client that was never closed": "ledger.__enter__(); ledger.post('/v1/entries')",
    "a client in its block": "ledger.__enter__(); ledger.post('/v1/entries'); sys.exit(0)",
    "a term that was never left": "ledger.__enter__(); ledger.post('/v1/entries'); term = leading().__enter__()",
    "a daemon thread in the middle of a call": (
        "ledger.__enter__(); ledger.post('/v1/entries')\n"
        "threading.Thread(target=ledger.post, args=('/slow',), daemon=True).start(); time.sleep(0.3)"
    ),
    "a call from an exit handler": (
        "import atexit; ledger.__enter__(); ledger.post('/v1/entries'); atexit.register(ledger.post, '/v1/entries')"
    ),
    "a fork that writes too": """
ledger.__enter__(); ledger.post('/v1/entries')
child = os.fork()
ledger.post('/v1/entries')
if child:
    assert os.waitpid(child, 0)[1] == 0
""",
    "a fork that only ends": """
ledger.__enter__(); ledger.post('/v1/entries')
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    ledger.post('/v1/entries')
""",
    "a fork in a term": """
ledger.__enter__(); ledger.post('/v1/entries')
with leading() as term, term.client([url]) as mine:
    mine.post('/v1/entries')
    child = os.fork()
    if not child:
        assert term.remaining() == 0 and term.lost.is_set() and term.reason == 'forked'
        for refused in (term.check, lambda: mine.post('/v1/entries'), lambda: term.client([url])):
            try:
                refused()
            except LeadershipLost as lost:
                assert lost.reason == 'forked'
            else:
                os._exit(3)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    term.check()
    mine.post('/v1/entries')
""",
    "a fork while other threads call": """
ledger.__enter__()
stop = threading.Event()
def work():
    while not stop.is_set():
        ledger.post('/v1/entries')
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
time.sleep(0.2)
child = os.fork()
if not child:
    ledger.post('/v1/entries'); ledger.close(); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
""",
}


@pytest.mark.parametrize("what", ENDS)
def test_the_interpreter_ends_at_once_and_without_a_word(gate: ScriptedGate, what: str) -> None:
    def answer(request: Recorded) -> Step:
        return Slow(100.0, Accept()) if request.path == "/slow" else Accept()

    gate.otherwise = answer
    # Every warning is an error but Python's own about a fork beside threads: that is what is tried here.
    flags = ["-W", "error", "-W", "ignore:This process:DeprecationWarning", "-X", "dev"]
    done = subprocess.run(
        [sys.executable, *flags, "-c", PROGRAM + ENDS[what], gate.url, what],
        capture_output=True,
        text=True,
        timeout=90,  # below the slow answer, for which nothing here waits
        check=False,
    )
    # In development mode asyncio also tells of steps that took long: that says something about the machine alone.
    said = [line for line in done.stderr.splitlines() if not re.match(r"Executing <.*> took [0-9.]+ seconds$", line)]
    assert (done.returncode, done.stdout, said) == (0, "", [])
    if what == "a fork in a term":
        assert [write.header("X-Fencing-Token") for write in gate.writes] == ["42", "1", "1"]
    if what == "a fork that writes too":
        assert len({write.connection for write in gate.writes[1:]}) == 2, "a child never uses its parent's connection"


@pytest.fixture(autouse=True)
async def nothing_is_left_open() -> AsyncIterator[None]:
    yield
    assert loop_thread._shared.open == {}
