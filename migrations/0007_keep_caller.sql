-- Who wrote an entry, where callers have an identity.
--
-- An entry without a caller is hashed as ever, so that old chains stay whole. With one, chr(31) and the caller follow the
-- body: no JSON text and no key holds that character, so no entry can be read as another, with a caller or without.
-- NOT VALID: no entry has a caller yet, so that none of a long ledger has to be read while all writes wait.
ALTER TABLE fencegate.entry ADD COLUMN caller text, ADD CONSTRAINT entry_caller_check CHECK (caller <> '') NOT VALID;

COMMENT ON COLUMN fencegate.entry.caller IS 'NULL: written by nobody who had an identity';

-- append() as in 0001_create_fence, with callers. A gateway of before this migration calls it without them.
DROP FUNCTION fencegate.append(
    text[], bigint[], bigint[], boolean[], integer[], text, bytea, bytea, text
);

-- Append to the ledger. One group per (role, token), sorted; the groups' writes follow one another in p_keys and
-- p_bodies (joined by chr(30), which no JSON text and no key can hold) and in the two digest strings (16 bytes each).
-- p_callers: who sent each of them, joined likewise, empty for nobody; NULL where none of them has an identity.
--
-- However many roles and writes: one statement locks, one inserts the entries, one their keys, one raises. Statements
-- read unnest() and not generate_series(): its rows can be counted before it runs, so that each call would be planned anew.
--
-- verdicts and max_seen hold one element a group; seqs, hashes and effects one a write. hashes is NULL where nothing
-- was applied. effects is NULL in the usual case: no key was seen before, all writes of the groups let in are applied.
CREATE FUNCTION fencegate.append(
    p_roles text[], p_tokens bigint[], p_issued bigint[], p_enforce boolean[], p_counts integer[],
    p_keys text, p_key_digests bytea, p_payload_digests bytea, p_bodies text, p_callers text DEFAULT NULL,
    OUT verdicts smallint[], OUT max_seen bigint[], OUT recorded_at timestamptz,
    OUT seqs bigint[], OUT hashes bytea[], OUT effects smallint[], OUT seconds_left double precision
) LANGUAGE plpgsql AS $$
DECLARE
    v_bodies  text[] := string_to_array(p_bodies, chr(30));
    n         integer := cardinality(v_bodies);
    -- One key without a character is no element at all for string_to_array.
    v_keys    text[] := CASE WHEN n = 1 THEN ARRAY[p_keys] ELSE string_to_array(p_keys, chr(30)) END;
    v_callers text[];
    v_said    text[] := v_bodies;  -- what a write's hash is made over, beside its key
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
    IF p_callers IS NOT NULL THEN
        v_callers := CASE WHEN n = 1 THEN ARRAY[p_callers] ELSE string_to_array(p_callers, chr(30)) END;
        IF cardinality(v_callers) <> n THEN
            RAISE EXCEPTION 'fencegate: % writes have % callers', n, cardinality(v_callers) USING ERRCODE = 'ZF502';
        END IF;
        v_said := (SELECT array_agg(CASE WHEN u.caller = '' THEN u.body ELSE u.body || chr(31) || u.caller END ORDER BY u.i)
                     FROM unnest(v_bodies, v_callers) WITH ORDINALITY u(body, caller, i));
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
                    v_hash := fencegate.chain(v_hash, v_seq, v_head, v_keys[w], v_said[w]);
                    seqs[w] := v_seq; hashes[w] := v_hash;
                END LOOP;
                i := i + p_counts[g];
                IF v_open[g] THEN a_seqs[r] := v_seq; a_hashes[r] := v_hash; END IF;
            END LOOP;
            IF v_callers IS NULL THEN
                INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body)
                SELECT v_ids[u.g], u.seq, p_tokens[u.g], append.recorded_at, u.hash, nullif(u.key, ''), u.body::json
                  FROM unnest(v_group, append.seqs, append.hashes, v_keys, v_bodies) u(g, seq, hash, key, body)
                 WHERE u.hash IS NOT NULL;
            ELSE
                INSERT INTO fencegate.entry (role_id, seq, token, recorded_at, hash, key, body, caller)
                SELECT v_ids[u.g], u.seq, p_tokens[u.g], append.recorded_at, u.hash, nullif(u.key, ''), u.body::json,
                       nullif(u.caller, '')
                  FROM unnest(v_group, append.seqs, append.hashes, v_keys, v_bodies, v_callers)
                       u(g, seq, hash, key, body, caller)
                 WHERE u.hash IS NOT NULL;
            END IF;
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
