-- The guard: an application's own transaction is fenced by its first statement, SELECT fencegate.guard('ledger', 42).
--
-- A guarded transaction holds a shared lock of its role up to its end. Whatever raises or seals the role's fence takes
-- it exclusively, after the row: so it waits for guarded transactions under way, and those that come later wait behind
-- it and find the fence raised. A shared lock on the row instead would let newcomers overtake the raise for ever, and
-- would hold up renewals and batches, which lock the row as well.

-- The lock's first key, "fenc"; the second is role_id.
CREATE FUNCTION fencegate.guard_lock() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT x''66656e63''::integer';

CREATE FUNCTION fencegate.wait_for_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(fencegate.guard_lock(), OLD.role_id);
    RETURN NEW;
END $$;

CREATE TRIGGER fence_waits_for_guarded BEFORE UPDATE ON fencegate.fence FOR EACH ROW
    WHEN (NEW.max_token_seen > OLD.max_token_seen OR NEW.sealed > OLD.sealed)
    EXECUTE FUNCTION fencegate.wait_for_guarded();

-- A refusal. SQLSTATE ZF400 and ZF403: never try again like this; ZF409: another try may succeed. DETAIL is the problem
-- document that the gateway would have answered, as far as a store knows it.
CREATE FUNCTION fencegate.refuse(
    p_code text, p_status integer, p_title text, p_retry text, p_role text, p_token bigint, p_max bigint, p_hint text
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate: % (role "%", token %)', lower(p_title), p_role, coalesce(p_token::text, 'none')
        USING ERRCODE = CASE WHEN p_retry <> 'never' THEN 'ZF409' WHEN p_status = 403 THEN 'ZF403' ELSE 'ZF400' END,
              HINT = p_hint,
              DETAIL = json_strip_nulls(json_build_object(
                  'type', 'urn:fencegate:problem:' || p_code, 'title', p_title, 'status', p_status, 'code', p_code,
                  'retryable', p_retry <> 'never', 'retry', p_retry, 'applied', 'no', 'role', p_role,
                  'presented_token', p_token, 'max_token_seen', p_max,
                  'retry_after_ms', CASE p_retry WHEN 'never' THEN 0 ELSE 1000 END));
END $$;

CREATE FUNCTION fencegate.refuse_guarded(p_verdict smallint, p_role text, p_token bigint, p_max bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    CASE p_verdict
        WHEN 1 THEN PERFORM fencegate.refuse('stale_token', 409, 'Stale fencing token', 'rediscover', p_role, p_token, p_max,
            'A newer term has begun: stop writing, and ask any gateway who leads (/.well-known/fencegate/leader/ROLE).');
        WHEN 2 THEN PERFORM fencegate.refuse('not_leader', 409, 'This region does not lead', 'rediscover', p_role, p_token,
            p_max, 'No term is open in this store: ask any gateway who leads (/.well-known/fencegate/leader/ROLE).');
        WHEN 3 THEN PERFORM fencegate.refuse('token_not_issued', 403, 'Fencing token was never issued', 'never', p_role,
            p_token, p_max, 'This fence has not been raised to that token. Who has just won it waits until it has been.');
        WHEN 4 THEN PERFORM fencegate.refuse('unknown_role', 404, 'No such role', 'never', p_role, p_token, p_max,
            'The role has no fence in this store: name it in the gateway''s configuration.');
        WHEN 5 THEN PERFORM fencegate.refuse('fence_unavailable', 503, 'Fence cannot be consulted', 'after-delay', p_role,
            p_token, p_max, 'The server was promoted or restored since the term was claimed: a new term opens it.');
        WHEN 6 THEN PERFORM fencegate.refuse('draining', 503, 'Leadership is being handed over', 'after-delay', p_role,
            p_token, p_max, 'The term is ending: ask any gateway who leads next.');
        ELSE NULL;
    END CASE;
END $$;

-- Rules R2 and R4: neither an answer before the commit is on disk, nor one that depends on a session's word. Which server
-- this is is read from its own files, and not from the session's setting, which whoever calls the guard could set.
CREATE FUNCTION fencegate.judge_guarded(f fencegate.fence, p_token bigint) RETURNS smallint LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' OR current_setting('fsync') = 'off' THEN
        RAISE EXCEPTION 'fencegate needs synchronous_commit and fsync: a commit that was answered must not be lost'
            USING ERRCODE = 'ZF501', HINT = 'SET synchronous_commit = on for whoever calls the guard.';
    END IF;
    RETURN fencegate.decide(f, p_token, 0, clock_timestamp(),
        (SELECT system_identifier::text FROM pg_control_system()) || '/'
        || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8));
END $$;

-- One row for each guarded transaction, gone again in the same statement: what is left of it is the look at COMMIT.
CREATE UNLOGGED TABLE fencegate.guarded (role_id integer NOT NULL, token bigint NOT NULL)
    WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);

-- Rule R6. Token and seal cannot have changed, as long as the lock is held; a ROLLBACK TO SAVEPOINT may have let it go.
CREATE FUNCTION fencegate.look_at_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f fencegate.fence;
BEGIN
    SELECT * INTO f FROM fencegate.fence WHERE role_id = NEW.role_id;
    f.draining := false;  -- what began before the announcement may end; the seal waits for it
    PERFORM fencegate.refuse_guarded(fencegate.judge_guarded(f, NEW.token), f.role, NEW.token, f.max_token_seen);
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER guarded_is_looked_at_again AFTER INSERT ON fencegate.guarded
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fencegate.look_at_commit();

-- Fences this transaction. Returns the seconds that are left of the term's lease, Infinity in token mode.
--
-- The transaction must end within p_within: a raise or a seal waits for it. (With Postgres below 17 this bounds
-- only how long it may be idle.)
CREATE FUNCTION fencegate.guard(p_role text, p_token bigint, p_within interval DEFAULT '10 seconds')
RETURNS double precision LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_limit   integer := extract(epoch FROM p_within) * 1000;
    v_setting text;
    v_row     tid;
    f         fencegate.fence;
BEGIN
    IF p_token IS NULL THEN
        PERFORM fencegate.refuse('token_required', 428, 'Fencing token required', 'never', p_role, p_token, NULL,
            'Pass the token of the term in which this transaction began.');
    ELSIF p_token < 1 THEN
        PERFORM fencegate.refuse('token_malformed', 400, 'Malformed fencing token', 'never', p_role, NULL, NULL,
            'A token is a whole number from 1 to 9223372036854775807.');
    ELSIF v_limit IS NULL OR v_limit < 1 THEN
        RAISE EXCEPTION 'fencegate: a guarded transaction needs a limit above 0, not %', p_within USING ERRCODE = 'ZF400';
    END IF;
    SELECT * INTO f FROM fencegate.fence WHERE role = p_role;
    IF f.role IS NULL THEN
        PERFORM fencegate.refuse_guarded(4::smallint, p_role, p_token, NULL);
    END IF;

    FOREACH v_setting IN ARRAY ARRAY['idle_in_transaction_session_timeout', 'transaction_timeout'] LOOP
        IF (SELECT s.setting::integer NOT BETWEEN 1 AND v_limit FROM pg_settings s WHERE s.name = v_setting) THEN
            PERFORM set_config(v_setting, v_limit::text, true);
        END IF;
    END LOOP;
    -- A prepared transaction would commit at any later time, unlooked at: one that has notified cannot be prepared.
    IF current_setting('max_prepared_transactions') <> '0' THEN
        PERFORM pg_notify('fencegate_guard', '');
    END IF;

    IF current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
        PERFORM pg_advisory_xact_lock_shared(fencegate.guard_lock(), f.role_id);
        SELECT * INTO f FROM fencegate.fence WHERE role = p_role;  -- rule R1: as it is after the wait
    ELSE
        -- Here the snapshot is older than the lock. Nothing may have changed between the two.
        IF NOT pg_try_advisory_xact_lock_shared(fencegate.guard_lock(), f.role_id) THEN
            RAISE EXCEPTION 'fencegate: the term of role "%" is changing', p_role
                USING ERRCODE = 'serialization_failure', HINT = 'Try the whole transaction again.';
        END IF;
        BEGIN
            -- Fails with serialization_failure where our snapshot's row is not the newest. Its lock is given back at
            -- once: it would hold up renewals.
            PERFORM FROM fencegate.fence WHERE role = p_role FOR SHARE NOWAIT;
            RAISE EXCEPTION USING ERRCODE = 'ZF000';
        EXCEPTION
            WHEN SQLSTATE 'ZF000' THEN NULL;
            -- Locked by somebody who has not committed: ours is the newest, and it is no raise, which waits for us.
            WHEN lock_not_available THEN NULL;
        END;
    END IF;
    PERFORM fencegate.refuse_guarded(fencegate.judge_guarded(f, p_token), p_role, p_token, f.max_token_seen);

    INSERT INTO fencegate.guarded (role_id, token) VALUES (f.role_id, p_token) RETURNING ctid INTO v_row;
    DELETE FROM fencegate.guarded WHERE ctid = v_row;
    PERFORM set_config('fencegate.guarded', concat(nullif(current_setting('fencegate.guarded', true), ''),
                       ' ', f.role_id, ':', pg_current_xact_id(), ' '), true);
    RETURN extract(epoch FROM f.valid_until) - extract(epoch FROM clock_timestamp());
END $$;

REVOKE EXECUTE ON FUNCTION fencegate.guard(text, bigint, interval) FROM PUBLIC;

-- Makes the guard a must for a table: a statement that writes to it in a transaction that is not guarded is refused.
-- It stops who forgets, and who goes on behind a savepoint that took the guard back; not who means to get around it.
CREATE FUNCTION fencegate.demand_guard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id integer := (SELECT role_id FROM fencegate.fence WHERE role = TG_ARGV[0]);
BEGIN
    IF position(concat(' ', v_id, ':', pg_current_xact_id(), ' ') IN coalesce(current_setting('fencegate.guarded', true), '')) = 0 THEN
        PERFORM fencegate.refuse('token_required', 428, 'Fencing token required', 'never', TG_ARGV[0], NULL, NULL,
            format('Table %s is protected: begin the transaction with SELECT fencegate.guard(%L, TOKEN).',
                   TG_RELID::regclass, TG_ARGV[0]));
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION fencegate.protect(p_table regclass, p_role text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM fencegate.fence WHERE role = p_role) THEN
        PERFORM fencegate.refuse_guarded(4::smallint, p_role, NULL, NULL);
    END IF;
    EXECUTE format('CREATE TRIGGER fencegate_demands_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
                   'FOR EACH STATEMENT EXECUTE FUNCTION fencegate.demand_guard(%L)', p_table, p_role);
END $$;
