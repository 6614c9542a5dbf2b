-- A renewal that is over before it is written is told so, as a claim is.
--
-- extend() as in 0001_create_fence, which said "extended" of it: where the store's clock stepped ahead between the reading that a
-- renewal counts from and its end, the elector announced a term that its own store refused.

-- Rule R3, step c: a renewal. NULL when extended, else why not.
CREATE OR REPLACE FUNCTION fencegate.extend(
    p_role text, p_token bigint, p_holder text, p_from timestamptz, p_valid_for double precision, p_incarnation text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz;
    f       fencegate.fence;
BEGIN
    PERFORM fencegate.require_safe_session();
    SELECT * INTO f FROM fencegate.fence WHERE role = p_role FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN 'no_fence'; END IF;
    IF p_token <= f.sealed THEN RETURN 'sealed'; END IF;
    IF p_token <> f.max_token_seen OR p_holder <> f.holder THEN RETURN 'superseded'; END IF;
    IF f.incarnation <> p_incarnation OR fencegate.incarnation() <> p_incarnation THEN RETURN 'incarnation'; END IF;
    v_until := greatest(f.valid_until, fencegate.lease_end(f.mode, p_from, p_valid_for));
    IF v_until <= clock_timestamp() THEN RETURN 'expired'; END IF;
    UPDATE fencegate.fence SET valid_until = v_until WHERE role = p_role AND max_token_seen = p_token AND sealed < p_token;
    RETURN NULL;
END $$;
