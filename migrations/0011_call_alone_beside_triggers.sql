-- A write finds what the deferred triggers of those before it have done, in a batch as one by one.
--
-- call() as in 0008_keep_constraints_deferred, where the look behind each write is undone and the triggers run at the end
-- of the batch. A write was so decided on what the triggers of the batch's earlier ones had yet to carry over: of three
-- withdrawals of a whole balance that such a trigger keeps, all were taken. Behind checks of Postgres' own (foreign keys,
-- uniqueness) nothing is left to find. A mode can only be given back by undoing, so where there are triggers that can
-- be deferred, writes go alone.
--
-- And a failed ASSERT is a function's exception like any other, though PL/pgSQL does not count it among OTHERS.

-- Call the user's function f(body jsonb, context jsonb) returns jsonb, once per write, each in a
-- subtransaction of its own: an exception undoes that write alone. Groups as in append().
-- One row a write, then one row with the clock's answer (verdict -1).
CREATE OR REPLACE FUNCTION fencegate.call(
    p_function text,
    p_roles text[], p_tokens bigint[], p_issued bigint[], p_enforce boolean[], p_counts integer[],
    p_keyed boolean[], p_key_digests bytea, p_payload_digests bytea, p_bodies text[], p_contexts text[]
) RETURNS TABLE (
    verdict smallint, max_token_seen bigint, seconds_left double precision, effect smallint, answer bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_function regprocedure := to_regprocedure(p_function || '(jsonb,jsonb)');
    v_call     text;
    v_here     text := fencegate.incarnation();
    v_until    timestamptz := 'infinity';
    v_writes   integer := cardinality(p_keyed);
    v_base     integer := 0;
    v_verdict  smallint;
    v_max      bigint;
    v_now      timestamptz;
    v_result   jsonb;
    v_digest   bytea;
    v_payload  bytea;
    v_found    fencegate.idempotency_key;
    v_looked   boolean;
    v_message  text; v_state text; v_detail text; v_hint text;
    f          fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    IF v_function IS NULL OR (SELECT prorettype FROM pg_proc WHERE oid = v_function) <> 'jsonb'::regtype THEN
        RAISE EXCEPTION 'fencegate: there is no function %(jsonb, jsonb) that returns jsonb', p_function
            USING ERRCODE = 'ZF404';
    END IF;
    IF v_writes > 1 AND EXISTS (
        SELECT FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
         WHERE t.tgdeferrable AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND c.relnamespace <> 'fencegate'::regnamespace
    ) THEN
        RAISE EXCEPTION 'fencegate: with deferrable triggers of your own, a transaction has one call' USING ERRCODE = 'ZF504';
    END IF;
    v_call := format('SELECT %s($1, $2)', v_function::oid::regproc);
    FOR g IN 1 .. cardinality(p_roles) LOOP
        SELECT * INTO f FROM fencegate.fence WHERE role = p_roles[g] FOR NO KEY UPDATE;
        v_now := clock_timestamp();
        v_verdict := fencegate.decide(f, p_tokens[g], p_issued[g], v_now, v_here);
        v_max := f.max_token_seen;
        IF f.role IS NOT NULL AND v_verdict = 0 THEN
            v_max := p_tokens[g];
            UPDATE fencegate.fence t SET max_token_seen = p_tokens[g], holder = ''
             WHERE t.role = f.role AND p_tokens[g] > t.max_token_seen;
            IF p_enforce[g] THEN v_until := least(v_until, f.valid_until); END IF;
        END IF;
        FOR i IN v_base + 1 .. v_base + p_counts[g] LOOP
            verdict := v_verdict; max_token_seen := v_max; seconds_left := NULL; effect := NULL; answer := NULL;
            v_digest := substr(p_key_digests, (i - 1) * 16 + 1, 16);
            v_payload := substr(p_payload_digests, (i - 1) * 16 + 1, 16);
            IF p_keyed[i] THEN
                SELECT * INTO v_found FROM fencegate.idempotency_key WHERE role_id = f.role_id AND key = v_digest;
                IF FOUND THEN
                    IF v_found.payload = v_payload AND v_found.answer IS NOT NULL THEN
                        effect := 1; answer := v_found.answer;
                    ELSIF v_found.payload IS NULL THEN
                        effect := CASE WHEN v_found.running_until > v_now THEN 3 ELSE 5 END;
                    ELSE
                        effect := 2;
                    END IF;
                    RETURN NEXT;
                    CONTINUE;
                END IF;
            END IF;
            IF f.role IS NULL OR (v_verdict <> 0 AND p_enforce[g]) THEN
                RETURN NEXT;
                CONTINUE;
            END IF;
            BEGIN
                EXECUTE v_call INTO v_result USING p_bodies[i]::jsonb, p_contexts[i]::jsonb;
                -- What would fail at COMMIT fails here, in this write alone. The look is undone, for it leaves all constraints
                -- immediate, which would refuse writes that come later in the batch and not those that come alone.
                v_looked := false;
                BEGIN
                    SET CONSTRAINTS ALL IMMEDIATE;
                    v_looked := true;
                    IF i < v_writes THEN RAISE EXCEPTION USING ERRCODE = 'ZF000'; END IF;
                EXCEPTION WHEN SQLSTATE 'ZF000' THEN
                    IF NOT v_looked THEN RAISE; END IF;
                END;
                effect := 0; answer := convert_to(coalesce(v_result, 'null')::text, 'UTF8');
                IF p_keyed[i] THEN
                    INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, status, answer)
                    VALUES (f.role_id, v_digest, v_payload, p_tokens[g], v_now, 200, answer);
                END IF;
            EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN
                GET STACKED DIAGNOSTICS v_message = MESSAGE_TEXT, v_state = RETURNED_SQLSTATE,
                                        v_detail = PG_EXCEPTION_DETAIL, v_hint = PG_EXCEPTION_HINT;
                -- Conflicts and want of resources are not the function's word on this write: try again.
                IF v_state IN ('40001', '40P01', '55P03') OR v_state LIKE '53%' THEN RAISE; END IF;
                effect := 4;
                answer := convert_to(json_build_object('message', v_message, 'sqlstate', v_state,
                                     'detail', nullif(v_detail, ''), 'hint', nullif(v_hint, ''))::text, 'UTF8');
            END;
            RETURN NEXT;
        END LOOP;
        v_base := v_base + p_counts[g];
    END LOOP;
    IF v_writes > 1 THEN
        SET CONSTRAINTS ALL IMMEDIATE;  -- and nothing is left for COMMIT, which comes after the look at the clock
    END IF;
    PERFORM fencegate.require_safe_session();  -- a function may have changed the settings
    verdict := -1; max_token_seen := NULL; effect := NULL; answer := NULL;
    seconds_left := fencegate.seconds_left(v_until);
    RETURN NEXT;
END $$;
