-- A seal counts only where the row says that its own term, or a later one, was claimed on this server.
--
-- seal() as in 0010_count_seals_by_the_row, which counted it where any term had been claimed here. Two standbys of one
-- primary that are promoted one after the other pass for the same server. Where the store's address goes from the first to the
-- second and back, a term opened at the second was sealed at the first, by the row of an earlier term, and the lease was given back.

-- Rule R7: the seal. The row's lock makes it wait for every transaction under way. True where the
-- seal is known to stand on the server where the term was open: the row itself says that it was claimed on this server.
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
    RETURN fencegate.incarnation() = p_incarnation AND f.incarnation = p_incarnation AND f.max_token_seen >= p_token;
END $$;
