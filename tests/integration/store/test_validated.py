"""Rule R15 in the store: pending, proved, confirmed; and whatever can come in between."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencegate.embedded.postgres import EmbeddedPostgres
from fencegate.errors import OutcomeUnknown, Unavailable
from fencegate.fence import Effect, Verdict, WriteResult
from fencegate.observations import Observation, PendingVoided
from fencegate.store.chain import verify_chain
from fencegate.store.pending import role_prefix
from fencegate.store.postgres import PostgresStore
from store.proofs import PENDING, Proofs
from store.proxy import CuttingProxy
from store.standby import Standby
from store.writing import ROLE, answer, bodies, forward, open_term, until, whole_ledger, write

FUNCTION = """
    CREATE TABLE done (n jsonb);
    CREATE FUNCTION note(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
    BEGIN
        IF body = '"bad"' THEN RAISE EXCEPTION 'no'; END IF;
        INSERT INTO done VALUES (body); RETURN '{"ok": 1}';
    END $$"""


@pytest.fixture
def proofs() -> Proofs:
    return Proofs()


@pytest.fixture
async def validated(make_store: Callable[..., Any], proofs: Proofs) -> PostgresStore:
    """A store that validates one role, whose term 4 is open; another role is open beside it."""
    store: PostgresStore = await make_store()
    store.validate([ROLE], proofs)
    await store.ensure_roles({ROLE: "lease", "other": "lease"})
    await open_term(store, 4)
    await open_term(store, 4, role="other")
    return store


async def entries_of(store: PostgresStore, role: str = ROLE) -> list[bytes]:
    assert verify_chain(role, await whole_ledger(store, role)) is None
    return await bodies(store, role)


async def test_the_election_is_asked_when_the_write_is_durable_and_nobody_sees_it_yet(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    seen: list[tuple[int, int]] = []

    async def look() -> None:
        seen.append((await beside.fetchval(PENDING), await beside.fetchval("SELECT count(*) FROM fencegate.entry")))

    proofs.during = look
    result = await validated.append(write(4, b"1"), 5.0)
    assert (result.verdict, result.effect) == (Verdict.ADMIT, Effect.APPLIED)
    assert seen == [(1, 0)]
    assert proofs.asked == [(ROLE, 4)]
    assert await entries_of(validated) == [b"1"]
    assert await beside.fetchval(PENDING) == 0


async def test_many_writes_cost_one_question(validated: PostgresStore, proofs: Proofs) -> None:
    results = await asyncio.gather(*(validated.append(write(4, b"%d" % n), 5.0) for n in range(200)))
    assert {result.effect for result in results} == {Effect.APPLIED}
    assert len(proofs.asked) <= 2
    assert len(await entries_of(validated)) == 200


async def test_a_write_whose_term_is_over_is_refused_and_leaves_no_trace(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    proofs.words.append("no")
    refused = await validated.append(write(4, b"1", key="k"), 5.0)
    assert (refused.verdict, refused.effect, refused.max_token_seen) == (Verdict.NOT_LEADING, None, None)
    assert await beside.fetchval(PENDING) == 0
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0
    assert (await validated.append(write(4, b"2", key="k"), 5.0)).effect is Effect.APPLIED
    assert await entries_of(validated) == [b"2"]


async def test_an_election_that_cannot_be_asked_refuses_and_never_leaves_the_outcome_open(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    proofs.words.append("down")
    with pytest.raises(Unavailable, match="no quorum"):
        await validated.append(write(4, b"1"), 5.0)
    assert await beside.fetchval(PENDING) == 0
    assert await entries_of(validated) == []


async def test_a_false_lease_admits_what_the_election_refuses(
    validated: PostgresStore, proofs: Proofs, make_store: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    """The store's lease says that its term is open for another ten years; the election says that it is over."""
    await beside.execute("UPDATE fencegate.fence SET valid_until = clock_timestamp() + interval '10 years'")
    by_the_lease: PostgresStore = await make_store(gateway="gw-lease")
    proofs.words.append("no")
    assert (await validated.append(write(4, b'"proved"'), 5.0)).verdict is Verdict.NOT_LEADING
    assert (await by_the_lease.append(write(4, b'"by the lease"'), 5.0)).effect is Effect.APPLIED
    assert await entries_of(validated) == [b'"by the lease"']


async def test_a_lease_that_runs_out_while_the_election_is_asked_does_not_matter(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    """Its term led when the write was durable, by the election's word: no clock is looked at after that."""
    await open_term(validated, 5, valid_for=3.0)
    proofs.during = lambda: asyncio.sleep(3.2)
    assert (await validated.append(write(5, b"1"), 5.0)).effect is Effect.APPLIED
    proofs.during = None
    assert (await validated.append(write(5, b"2"), 5.0)).verdict is Verdict.NOT_LEADING
    assert await entries_of(validated) == [b"1"]


async def test_what_a_seal_has_voided_is_not_confirmed_whatever_the_election_said(
    validated: PostgresStore, proofs: Proofs, make_store: Callable[..., Any]
) -> None:
    """The gateway stands still between the election's yes and its confirmation; meanwhile its term is sealed."""
    voided: list[Observation] = []
    sealing: PostgresStore = await make_store(gateway="gw-2", observe=voided.append)
    sealing.validate([ROLE], proofs)
    clock = await sealing.clock()

    async def seal() -> None:
        assert await sealing.seal(ROLE, 4, clock.incarnation)

    proofs.during = seal
    result = await validated.append(write(4, b"1"), 5.0)
    assert (result.verdict, result.effect) == (Verdict.NOT_LEADING, None)
    assert await entries_of(validated) == []
    assert [fact for fact in voided if isinstance(fact, PendingVoided)] == [PendingVoided(1)]


async def test_a_newer_claim_does_not_wait_for_what_an_older_term_left_pending(
    validated: PostgresStore, proofs: Proofs
) -> None:
    async def next_term() -> None:
        proofs.during = None
        await open_term(validated, 5)

    proofs.during = next_term
    assert (await validated.append(write(4, b"1"), 5.0)).effect is None
    assert (await validated.append(write(5, b"2"), 5.0)).effect is Effect.APPLIED
    assert await entries_of(validated) == [b"2"]


async def test_what_a_dead_gateway_left_pending_is_voided_by_another_and_said(
    validated: PostgresStore, make_store: Callable[..., Any], connect: Callable[..., Any], beside: asyncpg.Connection
) -> None:
    dead = await connect()
    await dead.execute("BEGIN")
    await dead.execute("UPDATE fencegate.fence SET last_seq = last_seq WHERE role = 'ledger'")
    await dead.execute(f"PREPARE TRANSACTION '{role_prefix(ROLE)}4:gone:1'")
    said: list[Observation] = []
    other: PostgresStore = await make_store(gateway="gw-2", observe=said.append, monitor_period=0.1)
    other.validate([ROLE], Proofs())
    await until(lambda: beside.fetchval(f"SELECT ({PENDING}) = 0"))
    assert (await validated.append(write(4, b"1"), 5.0)).effect is Effect.APPLIED
    await until(lambda: _true(PendingVoided(1) in said))


async def test_what_was_left_pending_is_voided_where_the_role_is_validated_no_longer(
    make_store: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """Rule R14: a gateway crashed, and `validate` was taken out of the configuration before anybody had cleared up."""
    said: list[Observation] = []
    store: PostgresStore = await make_store(observe=said.append, control_limit=3.0, write_limit=3.0)
    await store.ensure_roles({ROLE: "lease"})
    await open_term(store, 4)
    dead = await connect()
    await dead.execute("BEGIN")
    await dead.execute("UPDATE fencegate.fence SET last_seq = last_seq WHERE role = 'ledger'")
    await dead.execute(f"PREPARE TRANSACTION '{role_prefix(ROLE)}4:gone:1'")

    async def opened() -> bool:
        try:
            await open_term(store, 5)
        except Unavailable:
            return False
        return True

    await until(opened)
    assert (await store.append(write(5, b"1"), 5.0)).effect is Effect.APPLIED
    assert PendingVoided(1) in said


async def _true(value: bool) -> bool:
    return value


async def test_what_a_promoted_standby_has_pending_is_voided_by_the_next_terms_claim(
    primary: EmbeddedPostgres, standby: Standby, make_store: Callable[..., Any], connect: Callable[..., Any]
) -> None:
    """The primary dies between a batch's being pending and its confirmation. The standby has the lock as well."""
    old: PostgresStore = await make_store(primary.dsn)
    await old.ensure_roles({ROLE: "lease"})
    await standby.start()
    await open_term(old, 4)
    dying = await connect(primary.dsn)
    await dying.execute("BEGIN")
    await dying.execute("UPDATE fencegate.fence SET last_seq = last_seq + 1 WHERE role = 'ledger'")
    await dying.execute(f"PREPARE TRANSACTION '{role_prefix(ROLE)}4:gw-1:1'")
    await standby.caught_up()
    await standby.promote()
    new: PostgresStore = await make_store(standby.dsn)
    new.validate([ROLE], Proofs())
    await open_term(new, 5)
    assert (await new.append(write(5, b"1"), 5.0)).effect is Effect.APPLIED
    assert [entry.seq for entry in await whole_ledger(new)] == [1]


async def test_stored_results_are_given_again_from_a_batch_that_is_rolled_back(
    validated: PostgresStore, proofs: Proofs
) -> None:
    first = await validated.append(write(4, b"1", key="old"), 5.0)
    proofs.asked.clear()
    assert (await validated.append(write(4, b"1", key="old"), 5.0)).effect is Effect.REPLAYED
    assert proofs.asked == [], "nothing was to be applied, so there is nothing to prove"
    proofs.words += ["no", "no"]
    results = await asyncio.gather(
        validated.append(write(4, b"0"), 5.0),
        validated.append(write(4, b"1", key="old"), 5.0),
        validated.append(write(4, b"2", key="new"), 5.0),
        validated.append(write(4, b"2", key="new"), 5.0),
        validated.append(write(4, b"3", key="old"), 5.0),
    )
    assert [r.effect for r in results] == [None, Effect.REPLAYED, None, None, Effect.KEY_REUSED]
    assert results[1].entry is not None
    assert first.entry is not None
    assert results[1].entry.hash == first.entry.hash
    assert await entries_of(validated) == [b"1"]


async def test_a_lost_answer_before_the_confirmation_is_a_refusal_and_blocks_nobody(
    make_store: Callable[..., Any], dsn: str, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    async with CuttingProxy(dsn) as proxy:
        store: PostgresStore = await make_store(proxy.dsn)
        store.validate([ROLE], proofs)
        await store.ensure_roles({ROLE: "lease"})
        await open_term(store, 4)
        proxy.cut_after(b"PREPARE TRANSACTION")
        with pytest.raises(Unavailable, match="nothing was confirmed"):
            await store.append(write(4, b"1", key="k"), 5.0)
        assert proofs.asked == []
        assert await beside.fetchval(PENDING) == 0
        assert (await store.append(write(4, b"1", key="k"), 5.0)).effect is Effect.APPLIED
        assert await entries_of(store) == [b"1"]
        await store.close()


async def test_a_lost_answer_to_the_confirmation_leaves_the_outcome_unknown_and_one_entry(
    make_store: Callable[..., Any], dsn: str, proofs: Proofs
) -> None:
    async with CuttingProxy(dsn) as proxy:
        store: PostgresStore = await make_store(proxy.dsn)
        store.validate([ROLE], proofs)
        await store.ensure_roles({ROLE: "lease"})
        await open_term(store, 4)
        proxy.cut_after(b"COMMIT PREPARED")
        with pytest.raises(OutcomeUnknown):
            await store.append(write(4, b"1", key="k"), 5.0)
        assert (await store.append(write(4, b"1", key="k"), 5.0)).effect is Effect.REPLAYED
        assert await entries_of(store) == [b"1"]
        await store.close()


async def test_a_function_is_undone_with_its_batch_and_its_own_no_needs_no_proof(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    await beside.execute(FUNCTION)
    proofs.words.append("no")
    assert (await validated.call("note", write(4, b"1", key="k"), 5.0)).verdict is Verdict.NOT_LEADING
    assert await beside.fetchval("SELECT count(*) FROM done") == 0
    assert (await validated.call("note", write(4, b"1", key="k"), 5.0)).effect is Effect.APPLIED
    proofs.asked.clear()
    rejected = await validated.call("note", write(4, b'"bad"'), 5.0)
    assert (rejected.effect, proofs.asked) == (Effect.REJECTED, [])
    assert await beside.fetchval("SELECT count(*) FROM done") == 1


async def test_a_function_that_no_transaction_can_prepare_is_refused_and_says_why(
    validated: PostgresStore, beside: asyncpg.Connection
) -> None:
    await beside.execute("""
        CREATE FUNCTION scratch(body jsonb, context jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
        BEGIN CREATE TEMP TABLE scratch (n int); RETURN '1'; END $$""")
    with pytest.raises(Unavailable, match="temporary objects"):
        await validated.call("scratch", write(4), 5.0)
    assert (await validated.append(write(4, b"1"), 5.0)).effect is Effect.APPLIED


async def test_a_forward_is_proved_after_its_mark_and_sent_only_then(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection
) -> None:
    marks: list[int] = []

    async def look() -> None:
        marks.append(await beside.fetchval("SELECT count(*) FROM fencegate.mark"))

    proofs.during = look
    admitted = await validated.admit(forward(4, key="k"), 5.0)
    assert (admitted.effect, marks) == (Effect.APPLIED, [1])
    await validated.settle(admitted.ticket, answer())


@pytest.mark.parametrize("word", ["no", "down"])
async def test_a_forward_without_a_proof_takes_its_mark_and_its_key_back(
    validated: PostgresStore, proofs: Proofs, beside: asyncpg.Connection, word: str
) -> None:
    proofs.words.append(word)
    if word == "down":
        with pytest.raises(Unavailable, match="no quorum"):
            await validated.admit(forward(4, key="k"), 5.0)
    else:
        refused = await validated.admit(forward(4, key="k"), 5.0)
        assert (refused.verdict, refused.effect, refused.ticket) == (Verdict.NOT_LEADING, None, 0)
    assert await beside.fetchval("SELECT count(*) FROM fencegate.idempotency_key") == 0
    await until(lambda: beside.fetchval("SELECT count(*) = 0 FROM fencegate.mark"))


async def test_in_token_mode_a_token_raises_the_fence_only_once_its_term_is_proved(
    make_store: Callable[..., Any], proofs: Proofs
) -> None:
    """One shared store: the first write of a newer term brings it in. Unproved it raises nothing."""
    store: PostgresStore = await make_store()
    store.validate([ROLE], proofs)
    await store.ensure_roles({ROLE: "token"})
    await open_term(store, 4, valid_for=math.inf)
    proofs.words.append("no")
    assert (await store.append(write(6, b"1", issued=6), 5.0)).verdict is Verdict.NOT_LEADING
    assert (await store.append(write(4, b"2"), 5.0)).effect is Effect.APPLIED
    older, newer = await asyncio.gather(store.append(write(4, b"3"), 5.0), store.append(write(6, b"4", issued=6), 5.0))
    assert [older.effect, newer.effect] == [Effect.APPLIED, Effect.APPLIED], "a transaction for each term"
    assert proofs.asked == [(ROLE, 6), (ROLE, 4), (ROLE, 4), (ROLE, 6)]
    assert (await store.append(write(4, b"5"), 5.0)).verdict is Verdict.STALE
    assert await entries_of(store) == [b"2", b"3", b"4"]


async def test_other_roles_and_writes_that_are_let_through_anyway_ask_nobody(
    validated: PostgresStore, proofs: Proofs
) -> None:
    proofs.words += ["no"] * 3
    assert (await validated.append(write(4, b"1", role="other"), 5.0)).effect is Effect.APPLIED
    assert (await validated.append(write(4, b"1", enforce=False), 5.0)).effect is Effect.APPLIED
    assert (await validated.admit(forward(4, role="other"), 5.0)).effect is Effect.APPLIED
    assert proofs.asked == []


async def test_a_slow_election_holds_up_its_own_role_alone(validated: PostgresStore, proofs: Proofs) -> None:
    answers = asyncio.Event()
    proofs.during = answers.wait
    slow = asyncio.create_task(validated.append(write(4, b"1"), 5.0))
    await until(lambda: _true(bool(proofs.asked)))
    assert (await validated.append(write(4, b"1", role="other"), 5.0)).effect is Effect.APPLIED
    assert not slow.done()
    answers.set()
    assert (await slow).effect is Effect.APPLIED


async def test_a_server_without_prepared_transactions_is_told_of_before_anything_is_written(
    make_postgres: Callable[..., EmbeddedPostgres], make_store: Callable[..., Any], proofs: Proofs
) -> None:
    server = make_postgres("unprepared", port=0, settings={"max_prepared_transactions": "0"})
    await server.start()
    store: PostgresStore = await make_store(server.dsn)
    await store.check_pending_allowed()  # no role needs them
    store.validate([ROLE], proofs)
    with pytest.raises(Unavailable, match="max_prepared_transactions = 0"):
        await store.check_pending_allowed()


BATCH = st.tuples(
    st.sampled_from(["yes", "yes", "no", "down", "voided"]),
    st.booleans(),
    st.lists(st.sampled_from(["", "", "a", "b"]), min_size=1, max_size=5),
)


@pytest.mark.timeout(180)
def test_the_ledger_holds_what_was_answered_as_applied_and_nothing_else(migrated_dsn: str) -> None:
    """Whatever the election says, and whoever voids what is pending: two gateways, batches with repeated keys."""
    stores: list[PostgresStore] = []
    proofs = Proofs()
    roles = 0

    async def begin() -> None:
        for n in range(2):
            store = await PostgresStore.open(migrated_dsn, gateway=f"gw-{n}", monitor_period=600.0)
            stores.append(store)
        stores[0].validate([f"role-{n}" for n in range(1000)], proofs)
        stores[1].validate([f"role-{n}" for n in range(1000)], proofs)

    async def story(role: str, batches: list[tuple[str, bool, list[str]]]) -> None:
        await stores[0].ensure_roles({role: "lease"})
        clock = await open_term(stores[0], 4, role=role)
        applied: list[bytes] = []
        keyed: dict[str, bytes] = {}
        for number, (word, second, keys) in enumerate(batches):
            proofs.words.extend([word] * 9)
            # A claim of the next term voids what is pending in this one; itself it comes too late, and is refused.
            proofs.during = (lambda: stores[0].claim(role, 5, "x", clock, -1000.0)) if word == "voided" else None
            bodies_of = [b"%d" % (number * 10 + (0 if key else n)) for n, key in enumerate(keys)]
            writes = [write(4, body, key=key, role=role) for key, body in zip(keys, bodies_of, strict=True)]
            asked = [stores[second].append(one, 5.0) for one in writes]
            results = await asyncio.gather(*asked, return_exceptions=True)
            proofs.words.clear()
            for one, result in zip(writes, results, strict=True):
                if isinstance(result, WriteResult) and result.effect is Effect.APPLIED:
                    assert word == "yes"
                    assert one.key not in keyed
                    applied.append(one.body)
                    if one.key:
                        keyed[one.key] = one.body
                elif isinstance(result, WriteResult) and result.effect is not None:
                    assert (result.effect is Effect.REPLAYED) == (keyed[one.key] == one.body)
                else:
                    assert isinstance(result, Unavailable) or (word in ("no", "voided") and one.key not in keyed)
        assert await entries_of(stores[0], role) == applied

    async def end() -> None:
        for store in stores:
            await store.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(begin())

        @settings(max_examples=60)
        @given(st.lists(BATCH, max_size=6))
        def hold(batches: list[tuple[str, bool, list[str]]]) -> None:
            nonlocal roles
            roles += 1
            runner.run(story(f"role-{roles}", batches))

        hold()
        runner.run(end())
