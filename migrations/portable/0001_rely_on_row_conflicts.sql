-- For a store in portability mode (docs/portability.md): in place of what it leaves out of 0001_create_fence, and instead of
-- the guard. Here the fence relies on one thing alone: of two transactions that write one row, the second one waits for
-- the first and then fails, if the row is not as its own snapshot has it. So every statement that admits or changes
-- a term writes its roles' rows before it looks at anything, and no statement believes in a lock.

-- A number that really changes, since an engine may leave out a write that changes nothing; and the same column in every
-- statement, since an engine may know conflicts by column.
ALTER TABLE fencegate.fence ADD COLUMN written bigint NOT NULL DEFAULT 0;

-- Writes the rows of these roles, in this order, and gives the roles back: as the argument of the function that decides,
-- it has been carried out before that one begins. The setting ends with the transaction.
CREATE FUNCTION fencegate.written(p_roles text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. cardinality(p_roles) LOOP
        IF i = 1 OR p_roles[i] <> p_roles[i - 1] THEN
            UPDATE fencegate.fence f SET written = f.written + 1 WHERE f.role = p_roles[i];
        END IF;
    END LOOP;
    PERFORM set_config('fencegate.written', 'on', true);
    RETURN p_roles;
END $$;

CREATE FUNCTION fencegate.written(p_role text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (fencegate.written(ARRAY[p_role]))[1];
END $$;

-- READ COMMITTED is refused, since it has no conflicts: what it says about a row after a wait differs between engines. A
-- setting that an engine does not have is not asked for: how it keeps what it has committed is not to be seen from here.
CREATE FUNCTION fencegate.unsafe_setting() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable')
                THEN 'transaction_isolation'
                WHEN current_setting('fencegate.written', true) IS DISTINCT FROM 'on' THEN 'fencegate.written'
                WHEN current_setting('synchronous_commit', true) = 'off' THEN 'synchronous_commit'
                WHEN current_setting('fsync', true) = 'off' THEN 'fsync' END
$$;

CREATE FUNCTION fencegate.require_safe_session() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_unsafe text := fencegate.unsafe_setting();
BEGIN
    IF v_unsafe = 'fencegate.written' THEN
        RAISE EXCEPTION 'fencegate: this store is in portability mode, and the statement has not written the fence first'
            USING ERRCODE = 'ZF501', HINT = 'Set store.portability = true for every gateway of this store.';
    ELSIF v_unsafe IS NOT NULL THEN
        RAISE EXCEPTION 'fencegate in portability mode needs REPEATABLE READ or SERIALIZABLE, synchronous_commit and fsync: % is %',
            v_unsafe, current_setting(v_unsafe) USING ERRCODE = 'ZF501';
    END IF;
END $$;

-- Rule R9, as far as a row can hold it: which history this is, since no engine's word for its server is asked. A copy
-- carries it along: whoever restores one or fails over to one has to give it a new one (fencegate rebase).
CREATE TABLE fencegate.history (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    id       uuid NOT NULL DEFAULT gen_random_uuid(),
    made_at  timestamptz NOT NULL DEFAULT now(),
    made_by  text NOT NULL
);
INSERT INTO fencegate.history (made_by) VALUES ('fencegate migrate');

CREATE FUNCTION fencegate.no_history() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate: the row of fencegate.history is gone: nobody knows which history this is'
        USING ERRCODE = 'ZF500', HINT = 'fencegate rebase makes a new one.';
END $$;

CREATE FUNCTION fencegate.incarnation() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT coalesce((SELECT h.id::text FROM fencegate.history h), fencegate.no_history())
$$;

-- From now on this is another history: every fence is closed until a new term claims it. All of them are written, so that
-- whatever was decided before, and has not been committed yet, conflicts.
CREATE FUNCTION fencegate.begin_history(p_by text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_id uuid := gen_random_uuid();
BEGIN
    UPDATE fencegate.fence f SET written = f.written + 1;
    INSERT INTO fencegate.history (id, made_by) VALUES (v_id, p_by)
    ON CONFLICT (one) DO UPDATE SET id = excluded.id, made_at = excluded.made_at, made_by = excluded.made_by;
    RETURN v_id::text;
END $$;

-- Rule R6: a transaction of an application must be looked at again at its COMMIT, by the clock too, and keep every raise
-- waiting until then. The first takes a deferred trigger and the second a lock that many can share; neither is to be relied
-- upon here, and writing the row instead would hold up each renewal until the application is done. So there is no guard.
CREATE FUNCTION fencegate.guard(p_role text, p_token bigint, p_within interval DEFAULT '10 seconds')
RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate: there is no guard in a store in portability mode' USING ERRCODE = 'ZF400',
        HINT = 'Send the write through the gateway: the targets ledger, function and http are fenced there.';
END $$;

CREATE FUNCTION fencegate.protect(p_table regclass, p_role text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fencegate.guard(p_role, 1);
END $$;
