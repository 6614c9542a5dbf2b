"""Any interleaving of terms, writes, duplicates, seals, extensions and expiries keeps the ledger's invariants.

A state machine over the real store, against a model in Python. Two gateways write; every step's writes are sent at
once, so that they share batches and race between the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Coroutine, Iterator
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fencegate.fence import ClaimRefused, Effect, StoreClock, Verdict, WriteResult
from fencegate.store.chain import verify_chain
from fencegate.store.postgres import PostgresStore
from store.writing import whole_ledger, write

T = TypeVar("T")

EXPIRE = "UPDATE fencegate.fence SET valid_until = clock_timestamp() - interval '1 second' WHERE role = $1"
AGE_KEYS = "UPDATE fencegate.idempotency_key SET created_at = created_at - interval '1 day'"
one_write = st.tuples(
    st.sampled_from(["stale", "current", "current", "current", "above"]),
    st.sampled_from(["", "", "a", "b", "c"]),
    st.sampled_from([b"1", b"2"]),
    st.booleans(),
)


class World:
    """The server's side of all runs: one database, one event loop, a fresh role per run."""

    runner: ClassVar[asyncio.Runner]
    stores: ClassVar[list[PostgresStore]]
    beside: ClassVar[asyncpg.Connection]
    roles = 0

    @classmethod
    def run(cls, work: Coroutine[Any, Any, T]) -> T:
        return cls.runner.run(work)


class StoreMachine(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(["lease", "token"]))
    def begin(self, mode: str) -> None:
        World.roles += 1
        self.role = f"role-{World.roles}"
        self.mode = mode
        self.world, self.store = World, World.stores[0]
        self.max = self.sealed = 0
        self.open = False
        self.holder = ""
        self.entries: list[tuple[int, str, bytes]] = []
        self.hashes: dict[int, str] = {}
        self.keys: dict[str, tuple[bytes, int]] = {}
        World.run(self.store.ensure_roles({self.role: mode}))  # type: ignore[dict-item]
        self.clock: StoreClock = World.run(self.store.clock())

    # -- terms --------------------------------------------------------------------------------------

    @rule(step=st.integers(-1, 2), holder=st.sampled_from(["x", "y"]))
    def claim(self, step: int, holder: str) -> None:
        token = max(1, self.max + step)
        refused = self._term(self.store.claim, token, holder)
        if token <= self.sealed:
            assert refused is ClaimRefused.SEALED
        elif token < self.max or (token == self.max and holder != self.holder and self.holder):
            assert refused is ClaimRefused.SUPERSEDED
        else:
            assert refused is None
            self.max, self.open, self.holder = token, True, holder

    @rule(step=st.integers(-1, 1), holder=st.sampled_from(["x", "y"]))
    def extend(self, step: int, holder: str) -> None:
        token = max(1, self.max + step)
        refused = self._term(self.store.extend, token, holder)
        if token <= self.sealed:
            assert refused is ClaimRefused.SEALED
        elif token != self.max or holder != self.holder:
            assert refused is ClaimRefused.SUPERSEDED
        else:
            assert refused is None
            self.open = True

    @rule(step=st.integers(-2, 1))
    def seal(self, step: int) -> None:
        token = max(1, self.max + step)
        # It counts once the term was claimed here: what the row knows nothing of may be open at another server.
        assert World.run(self.store.seal(self.role, token, self.clock.incarnation)) is (self.max >= token)
        self.sealed = max(self.sealed, token)
        self.open = self.open and self.max > token

    @rule()
    def the_lease_runs_out(self) -> None:
        World.run(World.beside.execute(EXPIRE, self.role))
        self.open = False

    # -- writes -------------------------------------------------------------------------------------

    @rule(writes=st.lists(one_write, min_size=1, max_size=8))
    def several_writes_at_once(self, writes: list[tuple[str, str, bytes, bool]]) -> None:
        sent = [(max(1, self._token(kind)), key, body, proved) for kind, key, body, proved in writes]

        async def all_of_them() -> list[WriteResult]:
            return await asyncio.gather(
                *(
                    World.stores[i % 2].append(
                        write(token, body, key=key, role=self.role, issued=token if proved else 0), 10.0
                    )
                    for i, (token, key, body, proved) in enumerate(sent)
                )
            )

        results = World.run(all_of_them())
        landed: dict[int, tuple[int, str, bytes]] = {}
        for (token, key, body, proved), result in zip(sent, results, strict=True):
            if result.effect is Effect.APPLIED:
                assert result.verdict is Verdict.ADMIT
                assert result.entry is not None
                assert result.entry.seq not in landed
                landed[result.entry.seq] = (token, key, body)
                self.hashes[result.entry.seq] = result.entry.hash
            self._check_verdict(result, token, proved=proved)
        for seq in sorted(landed):
            token, key, body = landed[seq]
            assert seq == len(self.entries) + 1
            assert key not in self.keys or not key
            self.entries.append((token, key, body))
            if key:
                self.keys[key] = (body, seq)
        for (token, key, body, _), result in zip(sent, results, strict=True):
            if result.verdict is Verdict.ADMIT and token > self.max:
                self.max, self.holder = token, ""  # an issued token raises the fence, even if its write is a replay
            if result.effect is Effect.REPLAYED:
                assert self.keys[key][0] == body
                assert result.entry is not None
                assert (result.entry.seq, result.entry.hash) == (self.keys[key][1], self.hashes[self.keys[key][1]])
            elif result.effect is Effect.KEY_REUSED:
                assert self.keys[key][0] != body

    @rule()
    def keys_expire(self) -> None:
        World.run(World.beside.execute(AGE_KEYS))
        World.run(self.store.expire_keys(3600.0))
        self.keys.clear()

    # -- what must hold after every step -------------------------------------------------------------

    @invariant()
    def the_ledger_is_what_was_acknowledged(self) -> None:
        if not hasattr(self, "entries"):
            return
        entries = World.run(whole_ledger(self.store, self.role))
        assert [(e.token, e.key or "", e.body) for e in entries] == self.entries, "refused is nowhere, applied is once"
        assert [e.seq for e in entries] == list(range(1, len(entries) + 1))
        assert all(a.token <= b.token for a, b in pairwise(entries)), "no token falls"
        assert {e.seq: e.hash for e in entries} == self.hashes
        assert verify_chain(self.role, entries) is None
        fence = World.run(self.store.read(self.role))
        assert fence is not None
        assert (fence.max_token_seen, fence.sealed, fence.last_seq) == (self.max, self.sealed, len(entries))

    # -- the model ----------------------------------------------------------------------------------

    def _check_verdict(self, result: WriteResult, token: int, *, proved: bool) -> None:
        """Against the fence before the step: one step's own writes may have raised it meanwhile in token mode."""
        if not self.open or self.sealed >= self.max:
            assert result.verdict is Verdict.NOT_LEADING
        elif token < self.max:
            assert result.verdict is Verdict.STALE
        elif token > self.max and (self.mode == "lease" or not proved):
            assert result.verdict in (Verdict.ABOVE, Verdict.ADMIT, Verdict.STALE)
            assert result.verdict is Verdict.ABOVE or self.mode == "token"
        else:
            assert result.verdict in (Verdict.ADMIT, Verdict.STALE)
            assert result.verdict is Verdict.ADMIT or self.mode == "token"

    def _token(self, kind: str) -> int:
        return self.max + {"stale": -1, "current": 0, "above": 1}[kind]

    def _term(self, method: Any, token: int, holder: str) -> ClaimRefused | None:
        clock = World.run(self.store.clock())
        lasts = math.inf if self.mode == "token" else 600.0
        refused: ClaimRefused | None = World.run(method(self.role, token, holder, clock, lasts))
        return refused


@pytest.fixture
def world(migrated_dsn: str) -> Iterator[None]:
    async def open_stores() -> list[PostgresStore]:
        return [await PostgresStore.open(migrated_dsn, gateway=f"gw-{n}", monitor_period=600.0) for n in range(2)]

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        World.runner = runner
        World.stores = runner.run(open_stores())
        World.beside = runner.run(asyncpg.connect(migrated_dsn))
        yield
        runner.run(World.beside.close())
        for store in World.stores:
            runner.run(store.close())


@pytest.mark.timeout(300)
def test_no_interleaving_breaks_the_ledger(world: None) -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_verifier_of_the_chain_is_not_the_databases_own(world: None) -> None:
    """The formula once more, by hand: what verify_chain and the database agree on is what the documentation says."""
    store = World.stores[0]
    World.run(store.ensure_roles({"by-hand": "lease"}))
    clock = World.run(store.clock())
    assert World.run(store.claim("by-hand", 3, "x", clock, 60)) is None
    World.run(store.append(write(3, b'{"a":1}', key="k", role="by-hand"), 5.0))
    micros = World.run(
        World.beside.fetchval("SELECT (extract(epoch FROM recorded_at) * 1000000)::bigint FROM fencegate.entry")
    )
    numbers = b"".join(n.to_bytes(8, "big") for n in (1, 3, micros))
    first = hashlib.sha256(hashlib.sha256(b"fencegate:by-hand").digest() + numbers + b'k\x1f{"a":1}').hexdigest()
    assert World.run(whole_ledger(store, "by-hand"))[0].hash == first
