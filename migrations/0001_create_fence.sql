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
CREATE FUNCTION fencegate.read_system_identifier() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN set_config('fencegate.system_identifier', (SELECT system_identifier::text FROM pg_control_system()), false);
END $$;

-- This function and the next two are SQL so that they dissolve into the expressions that call them.
CREATE FUNCTION fencegate.incarnation() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(nullif(current_setting('fencegate.system_identifier', true), ''), fencegate.read_system_identifier())
           || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
$$;

-- The rule. Order and numbers are those of fencegate/fence.py.
CREATE FUNCTION fencegate.decide(
    f fencegate.fence, p_token bigint, p_issued bigint, p_now timestamptz, p_incarnation text
) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN f.role IS NULL THEN 4
                WHEN f.sealed >= f.max_token_seen OR p_now >= f.valid_until THEN 2
                WHEN f.incarnation <> p_incarnation THEN 5
                WHEN f.draining THEN 6
                WHEN p_token < f.max_token_seen THEN 1
                WHEN p_token > f.max_token_seen AND (f.mode = 'lease' OR p_token > p_issued) THEN 3
                ELSE 0 END::smallint
$$;

-- Rule R1: the check must see what committed while it waited for the lock; and an answer must
-- mean that the commit is on disk. The name of the setting that is in the way, or NULL.
CREATE FUNCTION fencegate.unsafe_setting() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN current_setting('transaction_isolation') <> 'read committed' THEN 'transaction_isolation'
                WHEN current_setting('synchronous_commit') = 'off' THEN 'synchronous_commit'
                WHEN current_setting('fsync') = 'off' THEN 'fsync' END
$$;

CREATE FUNCTION fencegate.require_safe_session() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    CASE fencegate.unsafe_setting()
        WHEN 'transaction_isolation' THEN
            RAISE EXCEPTION 'fencegate needs READ COMMITTED, not %', upper(current_setting('transaction_isolation'))
                USING ERRCODE = 'ZF501';
        WHEN 'synchronous_commit' THEN
            RAISE EXCEPTION 'fencegate needs synchronous_commit, which is off in this session' USING ERRCODE = 'ZF501';
        WHEN 'fsync' THEN
            RAISE EXCEPTION 'fencegate needs fsync, which is off on this server' USING ERRCODE = 'ZF501';
        ELSE NULL;
    END CASE;
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

-- The next hash of the ledger's chain. p_head is the token and the instant in microseconds, 8 bytes each.
CREATE FUNCTION fencegate.chain(
    p_previous bytea, p_seq bigint, p_head bytea, p_key text, p_body text
) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT sha256(p_previous || int8send(p_seq) || p_head || convert_to(p_key || chr(31) || p_body, 'UTF8'))
$$;

-- Writes of a batch whose key was seen before, in the store or earlier in the batch: effects 1 (the same payload) or 2,
-- with the first one's seq, or its place in the batch where it has none yet. 0 is a write to be applied, NULL a refused
-- one. Call it with the roles' locks held: nobody else adds keys to them.
CREATE FUNCTION fencegate.probe(
    p_ids integer[], p_open boolean[], p_group integer[], p_keys text[], p_key_digests bytea, p_payload_digests bytea,
    OUT effects smallint[], OUT seqs bigint[], OUT firsts integer[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(CASE WHEN x.found THEN CASE WHEN x.same THEN 1 ELSE 2 END
                          WHEN x.keyed AND x.first_is_new AND x.first < x.i
                          THEN CASE WHEN x.payload = x.first_payload THEN 1 ELSE 2 END
                          WHEN x.open THEN 0 END::smallint ORDER BY x.i),
           array_agg(CASE WHEN x.same THEN x.seq END ORDER BY x.i),
           array_agg(CASE WHEN x.keyed AND x.first_is_new AND x.first < x.i THEN x.first END ORDER BY x.i)
      INTO effects, seqs, firsts
      FROM (SELECT w.i, w.open, w.keyed, w.payload, k.seq, k.role_id IS NOT NULL AS found,
                   k.payload = w.payload AND k.seq IS NOT NULL AS same,
                   first_value(w.i) OVER same_key AS first,
                   first_value(w.payload) OVER same_key AS first_payload,
                   first_value(w.open AND k.role_id IS NULL) OVER same_key AS first_is_new
              FROM (SELECT u.i::integer, p_ids[u.g] AS role_id, p_open[u.g] AS open, u.key <> '' AS keyed,
                           substr(p_key_digests, u.i::integer * 16 - 15, 16) AS digest,
                           substr(p_payload_digests, u.i::integer * 16 - 15, 16) AS payload
                      FROM unnest(p_group, p_keys) WITH ORDINALITY u(g, key, i)) w
              LEFT JOIN LATERAL (SELECT * FROM fencegate.idempotency_key t
                                  WHERE w.keyed AND t.role_id = w.role_id AND t.key = w.digest
                                    AND (w.open OR t.seq IS NOT NULL) LIMIT 1) k ON true
            WINDOW same_key AS (PARTITION BY w.role_id, w.keyed, w.digest
                                ORDER BY w.open AND k.role_id IS NULL DESC, w.i)) x;
END $$;

-- Append to the ledger. One group per (role, token), sorted; the groups' writes follow one another in p_keys and
-- p_bodies (joined by chr(30), which no JSON text and no key can hold) and in the two digest strings (16 bytes each).
--
-- However many roles and writes: one statement locks, one inserts the entries, one their keys, one raises. Statements
-- read unnest() and not generate_series(): its rows can be counted before it runs, so that each call would be planned anew.
--
-- verdicts and max_seen hold one element a group; seqs, hashes and effects one a write. hashes is NULL where nothing
-- was applied. effects is NULL in the usual case: no key was seen before, all writes of the groups let in are applied.
CREATE FUNCTION fencegate.append(
    p_roles text[], p_tokens bigint[], p_issued bigint[], p_enforce boolean[], p_counts integer[],
    p_keys text, p_key_digests bytea, p_payload_digests bytea, p_bodies text,
    OUT verdicts smallint[], OUT max_seen bigint[], OUT recorded_at timestamptz,
    OUT seqs bigint[], OUT hashes bytea[], OUT effects smallint[], OUT seconds_left double precision
) LANGUAGE plpgsql AS $$
DECLARE
    v_bodies  text[] := string_to_array(p_bodies, chr(30));
    n         integer := cardinality(v_bodies);
    -- One key without a character is no element at all for string_to_array.
    v_keys    text[] := CASE WHEN n = 1 THEN ARRAY[p_keys] ELSE string_to_array(p_keys, chr(30)) END;
    v_here    text := fencegate.incarnation();
    v_until   timestamptz := 'infinity';
    v_micros  bytea;
    f         fencegate.fence;
    v_fences  fencegate.fence[];   -- the rows found, and the groups that they were found for
    v_found   integer[];
    v_next    integer := 1;
    v_ids     integer[];           -- a group's role
    v_open    boolean[];           -- whether its writes are taken
    v_rows    integer[];           -- which of the rows below is its role's
    c         integer := 0;
    c_ids     integer[];           -- the rows that change, and what they become
    c_max     bigint[];
    c_seqs    bigint[];
    c_hashes  bytea[];
    v_group   integer[];           -- a write's group
    v_first   integer[];           -- the write of this batch that it repeats
    v_probed  boolean := false;    -- whether keys seen before have been looked for
    v_seq     bigint;
    v_hash    bytea;
    v_head    bytea;
    r         integer;
    i         integer;
BEGIN
    IF fencegate.unsafe_setting() IS NOT NULL THEN PERFORM fencegate.require_safe_session(); END IF;
    IF cardinality(v_keys) <> n OR length(p_key_digests) <> n * 16 OR length(p_payload_digests) <> n * 16 THEN
        RAISE EXCEPTION 'fencegate: a key or a body holds the separator, or a digest is not 16 bytes'
            USING ERRCODE = 'ZF502';
    END IF;

    -- Rule R1: the lock, then the check, on the row as it is after the wait.
    IF cardinality(p_roles) = 1 THEN
        SELECT * INTO f FROM fencegate.fence WHERE role = p_roles[1] FOR NO KEY UPDATE;
        IF FOUND THEN v_found := ARRAY[1]; END IF;
    ELSE
        SELECT array_agg(l.fence), array_agg(l.g) INTO v_fences, v_found
          FROM (SELECT t AS fence, u.g::integer FROM unnest(p_roles) WITH ORDINALITY u(role, g)
                  JOIN fencegate.fence t USING (role) ORDER BY u.g FOR NO KEY UPDATE OF t) l;
    END IF;
    recorded_at := clock_timestamp();
    FOR g IN 1 .. cardinality(p_roles) LOOP
        IF v_found[v_next] = g THEN
            -- A second group of a role goes on from what the first has made of the row.
            IF f.role IS DISTINCT FROM p_roles[g] THEN f := v_fences[v_next]; END IF;
            v_next := v_next + 1;
        ELSE
            f := NULL;
        END IF;
        verdicts[g] := fencegate.decide(f, p_tokens[g], p_issued[g], recorded_at, v_here);
        v_ids[g] := f.role_id;
        v_open[g] := f.role IS NOT NULL AND (verdicts[g] = 0 OR NOT p_enforce[g]);
        v_group := v_group || array_fill(g, ARRAY[p_counts[g]]);
        IF v_open[g] THEN
            IF c_ids[c] IS DISTINCT FROM f.role_id THEN
                c := c + 1;
                c_ids[c] := f.role_id; c_seqs[c] := f.last_seq;
                c_hashes[c] := CASE WHEN f.last_seq = 0 THEN sha256(convert_to('fencegate:' || f.role, 'UTF8'))
                                    ELSE f.last_hash END;
            END IF;
            IF verdicts[g] = 0 THEN
                f.max_token_seen := p_tokens[g];
                IF p_enforce[g] THEN v_until := least(v_until, f.valid_until); END IF;
            END IF;
            c_max[c] := f.max_token_seen;
            v_rows[g] := c;
        ELSIF v_ids[g] IS NOT NULL THEN
            v_probed := true;  -- refused; a result stored under its key is given back all the same
        END IF;
        max_seen[g] := f.max_token_seen;
    END LOOP;
    IF cardinality(v_group) <> n THEN
        RAISE EXCEPTION 'fencegate: % writes are announced and % sent', cardinality(v_group), n USING ERRCODE = 'ZF502';
    END IF;
    IF v_probed THEN
        SELECT * INTO effects, seqs, v_first
          FROM fencegate.probe(v_ids, v_open, v_group, v_keys, p_key_digests, p_payload_digests);
    END IF;

    WHILE c > 0 LOOP
        DECLARE
            a_seqs   bigint[] := c_seqs;
            a_hashes bytea[] := c_hashes;
        BEGIN
            IF NOT v_probed THEN seqs := array_fill(NULL::bigint, ARRAY[n]); END IF;
            hashes := array_fill(NULL::bytea, ARRAY[n]);
            v_micros := int8send((extract(epoch FROM recorded_at) * 1000000)::bigint);
            i := 0;
            FOR g IN 1 .. cardinality(p_roles) LOOP
                r := v_rows[g]; v_seq := a_seqs[r]; v_hash := a_hashes[r];
                v_head := int8send(p_tokens[g]) || v_micros;
                FOR w IN i + 1 .. i + p_counts[g] LOOP
                    IF v_probed THEN
                        IF v_first[w] IS NOT NULL AND effects[w] = 1 THEN seqs[w] := seqs[v_first[w]]; END IF;
                        CONTINUE WHEN effects[w] IS DISTINCT FROM 0;
                    END IF;
                    EXIT WHEN NOT v_open[g];
                    v_seq := v_seq + 1;
                    v_hash := fencegate.chain(v_hash, v_seq, v_head, v_keys[w], v_bodies[w]);
                    seqs[w] := v_seq; hashes[w] := v_hash;
                END LOOP;
                i := i + p_counts[g];
                IF v_open[g] THEN a_seqs[r] := v_seq; a_hashes[r] := v_hash; END IF;
            END LOOP;
            INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body)
            SELECT v_ids[u.g], u.seq, p_tokens[u.g], append.recorded_at, u.hash, nullif(u.key, ''), u.body::json
              FROM unnest(v_group, append.seqs, append.hashes, v_keys, v_bodies) u(g, seq, hash, key, body)
             WHERE u.hash IS NOT NULL;
            INSERT INTO fencegate.idempotency_key (role_id, key, payload, token, created_at, seq)
            SELECT v_ids[u.g], substr(p_key_digests, u.i::integer * 16 - 15, 16),
                   substr(p_payload_digests, u.i::integer * 16 - 15, 16), p_tokens[u.g], append.recorded_at, u.seq
              FROM unnest(v_group, append.seqs, append.hashes, v_keys) WITH ORDINALITY u(g, seq, hash, key, i)
             WHERE u.hash IS NOT NULL AND u.key <> '';
            c_seqs := a_seqs; c_hashes := a_hashes;
            EXIT;
        EXCEPTION WHEN unique_violation THEN
            -- A key seen before, in this batch or an earlier one. The locks are held: found once is found for good.
            IF v_probed THEN RAISE; END IF;
            v_probed := true;
            SELECT * INTO effects, seqs, v_first
              FROM fencegate.probe(v_ids, v_open, v_group, v_keys, p_key_digests, p_payload_digests);
        END;
    END LOOP;

    IF c > 0 THEN
        UPDATE fencegate.fence t
           SET max_token_seen = c_max[array_position(c_ids, t.role_id)],
               -- A term that a write brought in: its holder is not known until it is claimed.
               holder = CASE WHEN c_max[array_position(c_ids, t.role_id)] > t.max_token_seen THEN '' ELSE t.holder END,
               last_seq = c_seqs[array_position(c_ids, t.role_id)],
               last_hash = c_hashes[array_position(c_ids, t.role_id)]
         WHERE t.role_id = ANY (c_ids) AND c_max[array_position(c_ids, t.role_id)] >= t.max_token_seen;
        GET DIAGNOSTICS i = ROW_COUNT;
        IF i <> cardinality(c_ids) THEN
            RAISE EXCEPTION 'fencegate: a token is below the fence' USING ERRCODE = 'ZF001';
        END IF;
    END IF;
    seconds_left := fencegate.seconds_left(v_until);
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
