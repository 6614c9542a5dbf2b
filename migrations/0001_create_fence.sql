-- The fence, the ledger and the idempotency keys of one region's store.
--
-- Every function that admits a write is one statement for its caller, and therefore one
-- transaction: it takes the fence row's lock, decides on what it sees after the wait, writes,
-- and looks at the clock last. fencegate.decide() is the rule; fencegate/fence.py states the
-- same rule in Python, and a property test holds the two equal.

CREATE SCHEMA IF NOT EXISTS fencegate;

CREATE TABLE fencegate.fence (
    role            text PRIMARY KEY CHECK (role <> ''),
    role_id         integer GENERATED ALWAYS AS IDENTITY UNIQUE,
    mode            text NOT NULL CHECK (mode IN ('lease', 'token')),
    max_token_seen  bigint NOT NULL DEFAULT 0 CHECK (max_token_seen >= 0),
    sealed          bigint NOT NULL DEFAULT 0 CHECK (sealed >= 0),
    valid_until     timestamptz NOT NULL DEFAULT '-infinity',
    incarnation     text NOT NULL DEFAULT '',
    holder          text NOT NULL DEFAULT '',
    draining        boolean NOT NULL DEFAULT false,
    last_seq        bigint NOT NULL DEFAULT 0 CHECK (last_seq >= 0),
    last_hash       bytea NOT NULL DEFAULT '\x'
) WITH (fillfactor = 10);  -- room for many HOT versions in the page: the row changes with every batch

COMMENT ON TABLE fencegate.fence IS
    'One row per role. Never deleted; max_token_seen, sealed and last_seq never fall.';

CREATE FUNCTION fencegate.refuse_to_lower() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'fencegate: fences are never deleted' USING ERRCODE = 'ZF500';
    END IF;
    RAISE EXCEPTION 'fencegate: the fence of role "%" is never % (token %, sealed %, sequence %)',
        OLD.role, CASE TG_OP WHEN 'DELETE' THEN 'deleted' ELSE 'lowered' END,
        OLD.max_token_seen, OLD.sealed, OLD.last_seq
        USING ERRCODE = 'ZF500',
              HINT = 'A restore that moved tokens back is mended by moving the issuer up, not the fence down.';
END $$;

CREATE TRIGGER fence_only_rises BEFORE UPDATE ON fencegate.fence FOR EACH ROW
    WHEN (NEW.max_token_seen < OLD.max_token_seen OR NEW.sealed < OLD.sealed OR NEW.last_seq < OLD.last_seq
          OR NEW.role <> OLD.role OR NEW.role_id <> OLD.role_id)
    EXECUTE FUNCTION fencegate.refuse_to_lower();

CREATE TRIGGER fence_is_never_deleted BEFORE DELETE ON fencegate.fence FOR EACH ROW
    EXECUTE FUNCTION fencegate.refuse_to_lower();

CREATE TRIGGER fence_is_never_truncated BEFORE TRUNCATE ON fencegate.fence FOR EACH STATEMENT
    EXECUTE FUNCTION fencegate.refuse_to_lower();

CREATE TABLE fencegate.entry (
    role_id      integer NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL,
    recorded_at  timestamptz NOT NULL,
    hash         bytea NOT NULL,
    key          text,
    body         json NOT NULL,  -- json, not jsonb: what was sent, byte for byte
    PRIMARY KEY (role_id, seq)
);

COMMENT ON TABLE fencegate.entry IS 'The append-only ledger: gapless seq per role, each hash chained to the one before.';

CREATE FUNCTION fencegate.refuse_to_rewrite() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate: the ledger is append-only; % is refused', TG_OP USING ERRCODE = 'ZF500';
END $$;

CREATE TRIGGER entry_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON fencegate.entry FOR EACH STATEMENT
    EXECUTE FUNCTION fencegate.refuse_to_rewrite();

CREATE TABLE fencegate.idempotency_key (
    role_id        integer NOT NULL,
    key            bytea NOT NULL,       -- 16 bytes over (caller, key)
    payload        bytea,                -- 16 bytes over the payload; NULL while a forward is under way
    token          bigint NOT NULL,
    created_at     timestamptz NOT NULL,
    owner          bytea,                -- a forwarded write: the admission that made the row, 16 bytes
    running_until  timestamptz,          -- a forwarded write: when the upstream's limit has passed
    seq            bigint,               -- ledger: the entry
    status         smallint,             -- function, http: the stored answer
    answer         bytea,
    headers        json,
    PRIMARY KEY (role_id, key)
);
CREATE INDEX idempotency_key_age ON fencegate.idempotency_key (created_at);

CREATE TABLE fencegate.mark (
    role_id     integer NOT NULL,
    token       bigint NOT NULL,
    gateway     text NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (role_id, token, gateway)
) WITH (fillfactor = 50);

COMMENT ON TABLE fencegate.mark IS 'Writes under way in an upstream outside the store, per role, term and gateway.';

-- Which server this is: a promoted standby or a restored copy is another one. The system identifier is read
-- from a file, and a session never moves to another server: so it is read once a session. The timeline moves
-- under a session that lives through a promotion: it is read each time.
CREATE FUNCTION fencegate.incarnation() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_system text := current_setting('fencegate.system_identifier', true);
BEGIN
    IF v_system IS NULL OR v_system = '' THEN
        SELECT s.system_identifier::text INTO STRICT v_system FROM pg_control_system() s;
        PERFORM set_config('fencegate.system_identifier', v_system, false);
    END IF;
    RETURN v_system || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
END $$;

-- The rule. Order and numbers are those of fencegate/fence.py.
CREATE FUNCTION fencegate.decide(
    f fencegate.fence, p_token bigint, p_issued bigint, p_now timestamptz, p_incarnation text
) RETURNS smallint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF f.role IS NULL THEN RETURN 4; END IF;
    IF f.sealed >= f.max_token_seen OR p_now >= f.valid_until THEN RETURN 2; END IF;
    IF f.incarnation <> p_incarnation THEN RETURN 5; END IF;
    IF f.draining THEN RETURN 6; END IF;
    IF p_token < f.max_token_seen THEN RETURN 1; END IF;
    IF p_token > f.max_token_seen AND (f.mode = 'lease' OR p_token > p_issued) THEN RETURN 3; END IF;
    RETURN 0;
END $$;

-- Rule R1: the check must see what committed while it waited for the lock; and an answer must
-- mean that the commit is on disk.
CREATE FUNCTION fencegate.require_safe_session() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'fencegate needs READ COMMITTED, not %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'ZF501';
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        RAISE EXCEPTION 'fencegate needs synchronous_commit, which is off in this session' USING ERRCODE = 'ZF501';
    END IF;
    IF current_setting('fsync') = 'off' THEN
        RAISE EXCEPTION 'fencegate needs fsync, which is off on this server' USING ERRCODE = 'ZF501';
    END IF;
END $$;

-- Rule R2: the clock is looked at last, after every possible wait, in the same transaction.
-- Returns the seconds from the statement's start to the lease's end: a caller to whom the whole of it took
-- longer may have been answered by a commit after that end.
CREATE FUNCTION fencegate.seconds_left(p_valid_until timestamptz) RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_valid_until = 'infinity' THEN RETURN 'Infinity'; END IF;
    IF v_now >= p_valid_until THEN
        RAISE EXCEPTION 'fencegate: the lease ended while the write waited' USING ERRCODE = 'ZF001';
    END IF;
    RETURN extract(epoch FROM p_valid_until - statement_timestamp());
END $$;

CREATE FUNCTION fencegate.chain(
    p_previous bytea, p_seq bigint, p_token bigint, p_micros bigint, p_key text, p_body text
) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT sha256(p_previous || int8send(p_seq) || int8send(p_token) || int8send(p_micros)
                  || convert_to(p_key || chr(31) || p_body, 'UTF8'))
$$;

-- Append to the ledger. One group per (role, token), sorted; the groups' entries follow one another
-- in p_keys and p_bodies (joined by chr(30), which no JSON text and no key can hold) and in the
-- two digest strings (16 bytes an entry).
--
-- One row a group. In the usual case, no key seen before, effects and seqs are NULL and the
-- entries are first_seq, first_seq + 1, … with their hashes (32 bytes each) in one string.
CREATE FUNCTION fencegate.append(
    p_roles text[], p_tokens bigint[], p_issued bigint[], p_enforce boolean[], p_counts integer[],
    p_keys text, p_key_digests bytea, p_payload_digests bytea, p_bodies text
) RETURNS TABLE (
    verdict smallint, max_token_seen bigint, seconds_left double precision,
    first_seq bigint, recorded_at timestamptz, hashes bytea, effects smallint[], seqs bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_keys    text[] := string_to_array(p_keys, chr(30));
    v_bodies  text[] := string_to_array(p_bodies, chr(30));
    v_here    text := fencegate.incarnation();
    v_base    integer := 0;
    v_left    double precision;
    v_until   timestamptz := 'infinity';
    f         fencegate.fence;
    v_now     timestamptz;
    v_micros  bigint;
    v_hash    bytea;
    v_chain   bytea[];
    v_seq     bigint;
    v_seqs    bigint[];
    v_effects smallint[];
    v_found   record;
    v_digest  bytea;
    v_rows    integer;
    n         integer;
BEGIN
    PERFORM fencegate.require_safe_session();
    n := (SELECT sum(c) FROM unnest(p_counts) c);
    -- One key without a character is no element at all for string_to_array.
    IF cardinality(v_bodies) <> n OR (cardinality(v_keys) <> n AND NOT (n = 1 AND p_keys = ''))
       OR length(p_key_digests) <> n * 16 OR length(p_payload_digests) <> n * 16 THEN
        RAISE EXCEPTION 'fencegate: a key or a body holds the separator, or a digest is not 16 bytes'
            USING ERRCODE = 'ZF502';
    END IF;
    FOR g IN 1 .. cardinality(p_roles) LOOP
        n := p_counts[g];
        SELECT * INTO f FROM fencegate.fence WHERE role = p_roles[g] FOR NO KEY UPDATE;
        v_now := clock_timestamp();
        verdict := fencegate.decide(f, p_tokens[g], p_issued[g], v_now, v_here);
        max_token_seen := f.max_token_seen;
        first_seq := NULL; recorded_at := NULL; hashes := NULL; effects := NULL; seqs := NULL; seconds_left := NULL;

        IF f.role IS NULL OR (verdict <> 0 AND p_enforce[g]) THEN
            -- Refused. A stored result is given back all the same: it tells what happened, and applies nothing.
            IF f.role IS NOT NULL THEN
                SELECT array_agg(CASE WHEN k.key IS NULL THEN NULL
                                      WHEN k.payload = substr(p_payload_digests, (v_base + i - 1) * 16 + 1, 16) THEN 1
                                      ELSE 2 END::smallint ORDER BY i),
                       array_agg(k.seq ORDER BY i)
                  INTO v_effects, v_seqs
                  FROM generate_series(1, n) i
                  LEFT JOIN fencegate.idempotency_key k
                    ON k.role_id = f.role_id AND v_keys[v_base + i] <> '' AND k.seq IS NOT NULL
                   AND k.key = substr(p_key_digests, (v_base + i - 1) * 16 + 1, 16);
                effects := v_effects; seqs := v_seqs;
            END IF;
            v_base := v_base + n;
            RETURN NEXT;
            CONTINUE;
        END IF;

        v_micros := (extract(epoch FROM v_now) * 1000000)::bigint;
        v_hash := CASE WHEN f.last_seq = 0 THEN sha256(convert_to('fencegate:' || f.role, 'UTF8')) ELSE f.last_hash END;
        v_seq := f.last_seq;
        BEGIN
            v_chain := NULL;
            FOR i IN 1 .. n LOOP
                v_hash := fencegate.chain(v_hash, v_seq + i, p_tokens[g], v_micros,
                                          coalesce(v_keys[v_base + i], ''), v_bodies[v_base + i]);
                v_chain[i] := v_hash;
            END LOOP;
            INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body)
            SELECT f.role_id, v_seq + i, p_tokens[g], v_now, v_chain[i], nullif(v_keys[v_base + i], ''),
                   v_bodies[v_base + i]::json
              FROM generate_series(1, n) i;
            INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
            SELECT f.role_id, substr(p_key_digests, (v_base + i - 1) * 16 + 1, 16),
                   substr(p_payload_digests, (v_base + i - 1) * 16 + 1, 16), p_tokens[g], v_now, v_seq + i
              FROM generate_series(1, n) i WHERE v_keys[v_base + i] <> '';
            v_seq := v_seq + n;
            hashes := (SELECT string_agg(h, '' ORDER BY o) FROM unnest(v_chain) WITH ORDINALITY u(h, o));
        EXCEPTION WHEN unique_violation THEN
            -- A key seen before, in this batch or an earlier one: one by one.
            v_hash := CASE WHEN f.last_seq = 0 THEN sha256(convert_to('fencegate:' || f.role, 'UTF8'))
                           ELSE f.last_hash END;
            v_seq := f.last_seq; v_effects := NULL; v_seqs := NULL; v_chain := NULL;
            FOR i IN 1 .. n LOOP
                v_found := NULL;
                IF v_keys[v_base + i] <> '' THEN
                    v_digest := substr(p_key_digests, (v_base + i - 1) * 16 + 1, 16);
                    INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
                    VALUES (f.role_id, v_digest, substr(p_payload_digests, (v_base + i - 1) * 16 + 1, 16),
                            p_tokens[g], v_now, v_seq + 1)
                    ON CONFLICT DO NOTHING;
                    GET DIAGNOSTICS v_rows = ROW_COUNT;
                    IF v_rows = 0 THEN
                        SELECT payload, seq INTO STRICT v_found FROM fencegate.idempotency_key
                         WHERE role_id = f.role_id AND key = v_digest;
                        IF v_found.payload = substr(p_payload_digests, (v_base + i - 1) * 16 + 1, 16)
                           AND v_found.seq IS NOT NULL THEN
                            v_effects[i] := 1; v_seqs[i] := v_found.seq;
                        ELSE
                            v_effects[i] := 2; v_seqs[i] := NULL;
                        END IF;
                        v_chain[i] := ''::bytea;
                        CONTINUE;
                    END IF;
                END IF;
                v_seq := v_seq + 1;
                v_hash := fencegate.chain(v_hash, v_seq, p_tokens[g], v_micros,
                                          coalesce(v_keys[v_base + i], ''), v_bodies[v_base + i]);
                INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body)
                VALUES (f.role_id, v_seq, p_tokens[g], v_now, v_hash, nullif(v_keys[v_base + i], ''),
                        v_bodies[v_base + i]::json);
                v_effects[i] := 0; v_seqs[i] := v_seq; v_chain[i] := v_hash;
            END LOOP;
            effects := v_effects; seqs := v_seqs;
            hashes := (SELECT string_agg(h, '' ORDER BY o) FROM unnest(v_chain) WITH ORDINALITY u(h, o));
        END;

        UPDATE fencegate.fence t
           SET max_token_seen = greatest(t.max_token_seen, CASE WHEN verdict = 0 THEN p_tokens[g] ELSE 0 END),
               -- A term that a write brought in: its holder is not known until it is claimed.
               holder = CASE WHEN verdict = 0 AND p_tokens[g] > t.max_token_seen THEN '' ELSE t.holder END,
               last_seq = v_seq, last_hash = v_hash
         WHERE t.role = f.role AND (p_tokens[g] >= t.max_token_seen OR NOT p_enforce[g]);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'fencegate: token % is below the fence' , p_tokens[g] USING ERRCODE = 'ZF001';
        END IF;
        IF verdict = 0 THEN
            max_token_seen := p_tokens[g];
            IF p_enforce[g] THEN v_until := least(v_until, f.valid_until); END IF;
        END IF;
        first_seq := f.last_seq + 1; recorded_at := v_now;
        v_base := v_base + n;
        RETURN NEXT;
    END LOOP;
    v_left := fencegate.seconds_left(v_until);
    -- The clock's answer comes in a row of its own, the last one.
    verdict := -1; max_token_seen := NULL; seconds_left := v_left;
    first_seq := NULL; recorded_at := NULL; hashes := NULL; effects := NULL; seqs := NULL;
    RETURN NEXT;
END $$;

-- Call the user's function f(body jsonb, context jsonb) returns jsonb, once per write, each in a
-- subtransaction of its own: an exception undoes that write alone. Groups as in append().
-- One row a write, then one row with the clock's answer (verdict -1).
CREATE FUNCTION fencegate.call(
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
    v_base     integer := 0;
    v_verdict  smallint;
    v_max      bigint;
    v_now      timestamptz;
    v_result   jsonb;
    v_digest   bytea;
    v_payload  bytea;
    v_found    fencegate.idempotency_key;
    v_rows     integer;
    v_message  text; v_state text; v_detail text; v_hint text;
    f          fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    IF v_function IS NULL OR (SELECT prorettype FROM pg_proc WHERE oid = v_function) <> 'jsonb'::regtype THEN
        RAISE EXCEPTION 'fencegate: there is no function %(jsonb, jsonb) that returns jsonb', p_function
            USING ERRCODE = 'ZF404';
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
                SET CONSTRAINTS ALL IMMEDIATE;  -- what would fail at COMMIT fails here, in this write alone
                effect := 0; answer := convert_to(coalesce(v_result, 'null')::text, 'UTF8');
                IF p_keyed[i] THEN
                    INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, status, answer)
                    VALUES (f.role_id, v_digest, v_payload, p_tokens[g], v_now, 200, answer);
                END IF;
            EXCEPTION WHEN OTHERS THEN
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
    PERFORM fencegate.require_safe_session();  -- a function may have changed the settings
    verdict := -1; max_token_seen := NULL; effect := NULL; answer := NULL;
    seconds_left := fencegate.seconds_left(v_until);
    RETURN NEXT;
END $$;

-- Rule R12: mark in flight first, then check, both under the fence row's lock; then the gateway forwards.
-- A newer term is let through only when no older mark stands. One row a write, then the clock's.
-- p_marks names the gateway's mark, one per group; p_owners (16 bytes a write) tells its key's row from another's.
CREATE FUNCTION fencegate.admit(
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
        IF v_open THEN
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

-- Forwarded writes have ended with an answer: keep it under the key.
CREATE FUNCTION fencegate.settle(
    p_roles text[], p_key_digests bytea, p_owners bytea, p_payload_digests bytea,
    p_status smallint[], p_headers text[], p_answers bytea[]
) RETURNS void LANGUAGE sql AS $$
    UPDATE fencegate.idempotency_key k
       SET payload = substr(p_payload_digests, (i - 1)::integer * 16 + 1, 16),
           status = p_status[i], headers = p_headers[i]::json, answer = p_answers[i]
      FROM unnest(p_roles) WITH ORDINALITY u(role, i)
      JOIN fencegate.fence f USING (role)
     WHERE k.role_id = f.role_id AND k.key = substr(p_key_digests, (i - 1)::integer * 16 + 1, 16)
       AND k.owner = substr(p_owners, (i - 1)::integer * 16 + 1, 16) AND k.payload IS NULL
$$;

-- Not one byte reached the upstream: the key is free again. Only the row that this admission made: by the
-- time that a late statement runs, the key may be another try's.
CREATE FUNCTION fencegate.take_back(p_roles text[], p_key_digests bytea, p_owners bytea) RETURNS void LANGUAGE sql AS $$
    DELETE FROM fencegate.idempotency_key k
     USING unnest(p_roles) WITH ORDINALITY u(role, i)
      JOIN fencegate.fence f USING (role)
     WHERE k.role_id = f.role_id AND k.key = substr(p_key_digests, (i - 1)::integer * 16 + 1, 16)
       AND k.owner = substr(p_owners, (i - 1)::integer * 16 + 1, 16) AND k.payload IS NULL
$$;

-- The instant up to which a term is asked to be open. Only in token mode is there an open end.
CREATE FUNCTION fencegate.lease_end(
    p_mode text, p_from timestamptz, p_valid_for double precision
) RETURNS timestamptz LANGUAGE plpgsql AS $$
BEGIN
    IF p_valid_for = 'Infinity' AND p_mode = 'token' THEN RETURN 'infinity'; END IF;
    IF p_valid_for IS NULL OR p_valid_for IN ('Infinity', '-Infinity', 'NaN') THEN
        RAISE EXCEPTION 'fencegate: a lease lasts a finite number of seconds, not %', p_valid_for USING ERRCODE = 'ZF400';
    END IF;
    RETURN p_from + make_interval(secs => p_valid_for);
END $$;

-- Rule R5: the claim of a term. NULL when taken, else why not.
CREATE FUNCTION fencegate.claim(
    p_role text, p_token bigint, p_holder text, p_from timestamptz, p_valid_for double precision, p_incarnation text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz;
    f       fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    IF p_token < 1 OR p_holder = '' THEN
        RAISE EXCEPTION 'fencegate: a claim needs a token above 0 and a holder' USING ERRCODE = 'ZF400';
    END IF;
    SELECT * INTO f FROM fencegate.fence WHERE role = p_role FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'no_fence'; END IF;
    IF fencegate.incarnation() <> p_incarnation THEN RETURN 'incarnation'; END IF;
    IF p_token <= f.sealed THEN RETURN 'sealed'; END IF;
    IF p_token < f.max_token_seen THEN RETURN 'superseded'; END IF;
    v_until := fencegate.lease_end(f.mode, p_from, p_valid_for);
    IF p_token = f.max_token_seen THEN
        -- In token mode a write may have brought the term in before its claim: then it has no holder yet.
        IF p_holder <> f.holder AND NOT (f.mode = 'token' AND f.holder = '') THEN RETURN 'superseded'; END IF;
        -- Rule R9. In lease mode a promoted server needs a new term; in token mode the fence is
        -- re-seeded from the highest token issued, which this is.
        IF p_incarnation <> f.incarnation AND f.mode = 'lease' THEN RETURN 'incarnation'; END IF;
        v_until := greatest(v_until, f.valid_until);
    END IF;
    IF v_until <= clock_timestamp() THEN RETURN 'expired'; END IF;
    UPDATE fencegate.fence
       SET max_token_seen = p_token, holder = p_holder, incarnation = p_incarnation, valid_until = v_until,
           draining = CASE WHEN p_token = f.max_token_seen THEN draining ELSE false END
     WHERE role = p_role AND p_token >= max_token_seen AND p_token > sealed;
    RETURN NULL;
END $$;

-- Rule R3, step c: a renewal. NULL when extended, else why not.
CREATE FUNCTION fencegate.extend(
    p_role text, p_token bigint, p_holder text, p_from timestamptz, p_valid_for double precision, p_incarnation text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    f fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    SELECT * INTO f FROM fencegate.fence WHERE role = p_role FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'no_fence'; END IF;
    IF p_token <= f.sealed THEN RETURN 'sealed'; END IF;
    IF p_token <> f.max_token_seen OR p_holder <> f.holder THEN RETURN 'superseded'; END IF;
    IF f.incarnation <> p_incarnation OR fencegate.incarnation() <> p_incarnation THEN RETURN 'incarnation'; END IF;
    UPDATE fencegate.fence
       SET valid_until = greatest(valid_until, fencegate.lease_end(f.mode, p_from, p_valid_for))
     WHERE role = p_role AND max_token_seen = p_token AND sealed < p_token;
    RETURN NULL;
END $$;

-- Rule R7: the seal. The row's lock makes it wait for every transaction under way. True where the
-- seal is known to stand on the server where the term was open, or where it can never open any more.
CREATE FUNCTION fencegate.seal(p_role text, p_token bigint, p_incarnation text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    f fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    SELECT * INTO f FROM fencegate.fence WHERE role = p_role FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE fencegate.fence
       SET sealed = greatest(sealed, p_token),
           valid_until = CASE WHEN max_token_seen <= p_token THEN '-infinity' ELSE valid_until END,
           draining = CASE WHEN max_token_seen <= p_token THEN false ELSE draining END
     WHERE role = p_role;
    RETURN fencegate.incarnation() = p_incarnation
       AND (f.incarnation = p_incarnation OR f.max_token_seen < p_token);
END $$;

CREATE FUNCTION fencegate.set_draining(p_role text, p_token bigint, p_draining boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fencegate.require_safe_session();
    UPDATE fencegate.fence SET draining = p_draining WHERE role = p_role AND max_token_seen = p_token AND sealed < p_token;
    RETURN FOUND;
END $$;
