-- A seal counts only where the row says that a term was claimed on this server.
--
-- seal() as in 0001_create_fence, which also counted it where the row knows of no such term, since it can never open there. But two
-- standbys of one primary that are promoted one after the other are both on its next timeline, and pass for the same
-- server: the term may be open at the first while the second is being sealed, and the lease was given back for it.

-- Rule R7: the seal. The row's lock makes it wait for every transaction under way. True where the
-- seal is known to stand on the server where the term was open: the row itself says that terms are of this server.
CREATE OR REPLACE FUNCTION fencegate.seal(p_role text, p_token bigint, p_incarnation text) RETURNS boolean
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
    RETURN fencegate.incarnation() = p_incarnation AND f.incarnation = p_incarnation;
END $$;
