-- What the fence refuses and an observing route lets through all the same stands in nobody's way.
--
-- admit() as in 0001_create_fence, but for the mark: it was made for such writes too, under whatever token they came with. A
-- newer term waited for them as long as they came, and so did a drain, though nothing stops them.

-- Rule R12: mark in flight first, then check, both under the fence row's lock; then the gateway forwards.
-- A newer term is let through only when no older mark stands. One row a write, then the clock's.
-- p_marks names the gateway's mark, one per group; p_owners (16 bytes a write) tells its key's row from another's.
CREATE OR REPLACE FUNCTION fencegate.admit(
    p_marks text[],
    p_roles text[], p_tokens bigint[], p_issued bigint[], p_enforce boolean[], p_limits double precision[],
    p_counts integer[], p_keyed boolean[], p_key_digests bytea, p_owners bytea
) RETURNS TABLE (
    verdict smallint, max_token_seen bigint, seconds_left double precision, effect smallint,
    status smallint, headers text, answer bytea, payload bytea, orphans integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_here    text := fencegate.incarnation();
    v_until   timestamptz := 'infinity';
    v_base    integer := 0;
    v_verdict smallint;
    v_max     bigint;
    v_now     timestamptz;
    v_limit   timestamptz;
    v_rows    integer;
    v_orphans integer;
    v_open    boolean;
    v_digest  bytea;
    v_found   fencegate.idempotency_key;
    f         fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    FOR g IN 1 .. cardinality(p_roles) LOOP
        SELECT * INTO f FROM fencegate.fence WHERE role = p_roles[g] FOR NO KEY UPDATE;
        v_now := clock_timestamp();
        v_limit := v_now + make_interval(secs => p_limits[g]);
        v_verdict := fencegate.decide(f, p_tokens[g], p_issued[g], v_now, v_here);
        v_max := f.max_token_seen;
        v_orphans := 0;
        IF v_verdict = 0 THEN
            -- Raised even while older marks stand: from here on no older write is admitted anywhere.
            v_max := p_tokens[g];
            UPDATE fencegate.fence t SET max_token_seen = p_tokens[g], holder = ''
             WHERE t.role = f.role AND p_tokens[g] > t.max_token_seen;
            IF p_enforce[g] THEN
                v_until := least(v_until, f.valid_until);
                DELETE FROM fencegate.mark m
                 WHERE m.role_id = f.role_id AND m.token < p_tokens[g] AND m.expires_at <= v_now;
                GET DIAGNOSTICS v_orphans = ROW_COUNT;
                IF EXISTS (SELECT FROM fencegate.mark m WHERE m.role_id = f.role_id AND m.token < p_tokens[g]) THEN
                    v_verdict := 7;
                END IF;
            END IF;
        END IF;
        v_open := f.role IS NOT NULL AND (v_verdict = 0 OR NOT p_enforce[g]);
        IF v_verdict = 0 THEN
            -- A second of grace, and one written ahead, so that a busy term rewrites its mark about once a second.
            INSERT INTO fencegate.mark AS m (role_id, token, gateway, expires_at)
            VALUES (f.role_id, p_tokens[g], p_marks[g], v_limit + interval '2 seconds')
            ON CONFLICT (role_id, token, gateway) DO UPDATE SET expires_at = excluded.expires_at
             WHERE m.expires_at < v_limit + interval '1 second';
        END IF;
        FOR i IN v_base + 1 .. v_base + p_counts[g] LOOP
            verdict := v_verdict; max_token_seen := v_max; seconds_left := NULL; effect := NULL;
            status := NULL; headers := NULL; answer := NULL; payload := NULL;
            orphans := v_orphans; v_orphans := 0;
            IF p_keyed[i] AND f.role IS NOT NULL THEN
                v_digest := substr(p_key_digests, (i - 1) * 16 + 1, 16);
                v_rows := 0;
                IF v_open THEN
                    INSERT INTO fencegate.idempotency_key (role_id, key, token, created_at, owner, running_until)
                    VALUES (f.role_id, v_digest, p_tokens[g], v_now, substr(p_owners, (i - 1) * 16 + 1, 16), v_limit)
                    ON CONFLICT DO NOTHING;
                    GET DIAGNOSTICS v_rows = ROW_COUNT;
                END IF;
                IF v_rows = 1 THEN
                    effect := 0;
                ELSE
                    SELECT * INTO v_found FROM fencegate.idempotency_key k
                     WHERE k.role_id = f.role_id AND k.key = v_digest;
                    IF FOUND THEN
                        status := v_found.status; headers := v_found.headers::text;
                        answer := v_found.answer; payload := v_found.payload;
                        effect := CASE WHEN v_found.payload IS NULL AND v_found.running_until > v_now THEN 3
                                       WHEN v_found.payload IS NULL THEN 5
                                       WHEN v_found.status IS NULL OR v_found.running_until IS NULL THEN 2
                                       ELSE 1 END;
                    END IF;
                END IF;
            ELSIF v_open THEN
                effect := 0;
            END IF;
            RETURN NEXT;
        END LOOP;
        v_base := v_base + p_counts[g];
    END LOOP;
    verdict := -1; max_token_seen := NULL; effect := NULL; orphans := NULL;
    status := NULL; headers := NULL; answer := NULL; payload := NULL;
    seconds_left := fencegate.seconds_left(v_until);
    RETURN NEXT;
END $$;
